package e2e

import (
	"fmt"
	"os/exec"
	"sync"
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
