package e2e

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// BenchmarkContainers times a launch on three hosts until all containers run, beside a shell's loop of
// `docker run` over the three engines, and beside three of these side by side, in one run.
//
//	go test ./scripts/e2e -run NONE -bench Containers -benchtime 10x
func BenchmarkContainers(b *testing.B) {
	hosts := []string{"spark1", "spark2", "spark3"}
	l := up(b, 3)
	l.do(append([]string{"engine"}, hosts...)...)
	launch := func() time.Duration {
		r := l.on("spark1", "sparkrun", "launch", "-d", "exec", "--image", "lab/busybox", "--nodes", "3", "--", "sleep", "1000").must(b)
		l.on("spark1", "sparkrun", "stop", strings.TrimSpace(r.out)).must(b)
		return r.took
	}
	run := func(h string) time.Duration {
		r := l.on(h, "docker", "run", "-d", "--network", "host", "--ipc", "host", "--init", "lab/busybox", "sleep", "1000").must(b)
		return r.took
	}
	away := func() {
		for _, h := range hosts {
			l.on(h, "sh", "-c", "docker rm -f $(docker ps -q)").must(b)
		}
	}
	launch() // connections open, images in the page cache
	run("spark1")
	l.on("spark1", "sh", "-c", "docker rm -f $(docker ps -q)").must(b)
	var launches, loop, beside, entry time.Duration
	for b.Loop() {
		launches += launch()
		for _, h := range hosts {
			loop += run(h)
		}
		away()
		began := time.Now()
		var all sync.WaitGroup
		for _, h := range hosts {
			all.Go(func() { run(h) })
		}
		all.Wait()
		beside += time.Since(began)
		away()
		entry += l.on("spark1", "true").must(b).took
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(b.N) }
	b.ReportMetric(ms(launches-entry), "ms/launch")
	b.ReportMetric(ms(loop-3*entry), "ms/docker-run-loop")
	b.ReportMetric(ms(beside-entry), "ms/docker-run-beside")
	b.ReportMetric(float64(launches-entry)/float64(loop-3*entry), "launch/loop")
	b.ReportMetric(0, "ns/op")
}
