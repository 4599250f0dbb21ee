package e2e

import (
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BenchmarkLaunchTrue times `launch exec -- true` on 8 hosts, from the command
// line to its exit, beside a bare fork and exec of 8 on this machine.
//
//	go test ./scripts/e2e -run NONE -bench LaunchTrue -benchtime 30x
func BenchmarkLaunchTrue(b *testing.B) {
	const hosts = 8
	l := up(b, hosts)
	l.on("spark2", "sparkrun", "launch", "exec", "--nodes", fmt.Sprint(hosts), "--", "true").must(b) // connections open
	var launches, bare, entry time.Duration
	for b.Loop() {
		launches += l.on("spark2", "sparkrun", "launch", "exec", "--nodes", fmt.Sprint(hosts), "--", "true").must(b).took
		entry += l.on("spark2", "true").must(b).took

		began := time.Now()
		var wg sync.WaitGroup
		for range hosts {
			wg.Go(func() {
				if err := exec.Command("true").Run(); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		bare += time.Since(began)
	}
	n := time.Duration(b.N)
	// What it costs to enter a simulated host is the lab's, not sparkrun's.
	launch := (launches - entry) / n
	b.ReportMetric(float64(launch.Microseconds())/1000, "ms/launch")
	b.ReportMetric(float64((bare/n).Microseconds())/1000, "ms/8-bare-execs")
	b.ReportMetric(float64(launch)/float64(bare/n), "launch/bare")
	b.ReportMetric(float64((entry/n).Microseconds())/1000, "ms/lab-entry")
	b.ReportMetric(0, "ns/op")
}

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

// BenchmarkOutput measures a rank's output on its way into its file, and from
// there through the agents to a command on another host, beside cat of the same
// lines in the same run: MB/s, and the share of a core that each took.
//
//	go test ./scripts/e2e -run NONE -bench Output -benchtime 1x
func BenchmarkOutput(b *testing.B) {
	const line = "step 1234 loss 0.12345678 lr 3e-4 tokens/s 12345.6 mem 45.6 GiB"
	const lines = 4 << 20
	const size = lines * (len(line) + 1)
	const onWriter = `set -e
d=/var/lib/sparkrun/bench; mkdir -p $d; cd $d
yes '%s' | head -n %d > lines
TIMEFORMAT='%%R %%U %%S'
{ time cat lines | cat > copy; } 2>&1
rm copy
id=$(sparkrun launch exec -d -- bash -c "cd $d; TIMEFORMAT=%%R; time cat lines")
until sparkrun ps --all --json | grep -q '"state": "completed"'; do sleep 0.2; done
sparkrun logs $id --tail 3 --output raw 2>&1 >/dev/null | tr -d '\n'; echo " $id"
`
	const onReader = `TIMEFORMAT='%%R %%U %%S'
{ time sparkrun logs %[1]s --output %[2]s > /dev/null 2>&1; } 2>&1
`
	l := up(b, 2, "--topology", "pair")
	speed := func(seconds float64) float64 { return float64(size) / 1e6 / seconds }
	for b.Loop() {
		var cat, catUser, catSys, file float64
		var id string
		out := l.on("spark1", "bash", "-c", fmt.Sprintf(onWriter, line, lines)).must(b).out
		if _, err := fmt.Sscan(out, &cat, &catUser, &catSys, &file, &id); err != nil {
			b.Fatalf("%v in %q", err, out)
		}
		b.ReportMetric(speed(cat), "MB/s-cat-to-file")
		b.ReportMetric(speed(file), "MB/s-rank-to-file")
		for _, mode := range []string{"raw", "prefix", "json"} {
			var real, user, sys float64
			out := l.on("spark2", "bash", "-c", fmt.Sprintf(onReader, id, mode)).must(b).out
			if _, err := fmt.Sscan(out, &real, &user, &sys); err != nil {
				b.Fatalf("%v in %q", err, out)
			}
			b.ReportMetric(speed(real), "MB/s-cli-"+mode)
			b.ReportMetric(lines/real/1e6, "Mlines/s-cli-"+mode)
			b.ReportMetric(100*(user+sys)/real, "%core-cli-"+mode)
		}
	}
	b.ReportMetric(0, "ns/op")
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
