package e2e

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// BenchmarkFabricWatchIdle measures the processor time of `fabric --watch`, and
// of the agent that it follows, while nothing changes. The goal is 1 % of a
// core.
//
//	go test ./scripts/e2e -run NONE -bench FabricWatchIdle -benchtime 1x
func BenchmarkFabricWatchIdle(b *testing.B) {
	l := up(b, 2, "--topology", "pair")
	const seconds = 20
	const script = `sparkrun fabric --watch >/dev/null & watch=$!
agent=$(pgrep -of 'sparkrun agent')
ticks() { awk '{print $14 + $15}' /proc/$1/stat; }
sleep 15; w=$(ticks $watch); a=$(ticks $agent); sleep %d
echo $(($(ticks $watch) - w)) $(($(ticks $agent) - a)); kill $watch`
	for b.Loop() {
		var watch, agent int // in hundredths of a second
		out := l.on("spark2", "sh", "-c", fmt.Sprintf(script, seconds)).must(b).out
		if _, err := fmt.Sscan(out, &watch, &agent); err != nil {
			b.Fatalf("%v in %q", err, out)
		}
		b.ReportMetric(float64(watch)/seconds, "%core-watch")
		b.ReportMetric(float64(agent)/seconds, "%core-agent")
	}
}

// BenchmarkTeardown times `stop` of 9 ranks on 3 hosts that do not mind TERM, to
// the exit of their launch, which comes when no process is left on any host;
// beside it the kill of a bare process group of 9 and the wait for it.
//
//	go test ./scripts/e2e -run NONE -bench Teardown -benchtime 10x
func BenchmarkTeardown(b *testing.B) {
	const ranks = 9
	l := up(b, 3)
	var stop, bare, entry time.Duration
	for b.Loop() {
		run := l.start("spark2", "sparkrun", "launch", "exec", "--name", "bench", "--nodes", "3", "--nproc-per-node", "3", "--", "sleep", "1000")
		eventually(b, time.Minute, "all ranks", func() bool { return l.jobs("spark2")["bench"].State == "running" })
		began := time.Now()
		l.on("spark2", "sparkrun", "stop", "bench").must(b)
		run.wait()
		stop += time.Since(began)
		entry += l.on("spark2", "true").must(b).took

		group := exec.Command("sh", "-c", fmt.Sprintf("for i in $(seq %d); do sleep 1000 & done; echo up; wait", ranks))
		group.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := group.StdoutPipe()
		if err == nil {
			err = group.Start()
		}
		if err != nil {
			b.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		if err := syscall.Kill(-group.Process.Pid, syscall.SIGTERM); err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, out) // until the last of them has let go of it
		_ = group.Wait()                // by our signal
		bare += time.Since(began)
	}
	n := time.Duration(b.N)
	b.ReportMetric(float64((stop-entry).Microseconds())/1000/float64(b.N), "ms/stop")
	b.ReportMetric(float64((bare/n).Microseconds())/1000, "ms/bare-group")
	b.ReportMetric(float64(stop-entry)/float64(bare), "stop/bare")
	b.ReportMetric(0, "ns/op")
}
