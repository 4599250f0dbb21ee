package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/shim"
)

// BenchmarkRankStart is the processor time of a job on one node, its shim and its ranks from birth to end, beside a bare
// fork, exec and wait of the same programs in the same run. The goal is 5 ms more for each rank, which a job of one rank
// misses: launcher/shim/DESIGN.md, "What a start costs", says by what. The shim is the program
// as it is shipped, started anew for each job.
//
//	go test ./cmd/sparkrun -run NONE -bench RankStart -benchtime 50x
func BenchmarkRankStart(b *testing.B) {
	exe := filepath.Join(b.TempDir(), "sparkrun")
	build := exec.Command("go", "build", "-trimpath", "-o", exe, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build sparkrun: %v\n%s", err, out)
	}
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			base := b.TempDir()
			var ranks []shim.Rank
			for i := range n {
				ranks = append(ranks, shim.Rank{Rank: i, Argv: []string{"/bin/true"}, Dir: "/"})
			}
			var ours, bare time.Duration
			for i := 0; b.Loop(); i++ {
				began := ofChildren(b)
				cfg := shim.Config{LogDir: filepath.Join(base, "logs", fmt.Sprint(i))}
				cfg.Key.Job, cfg.Key.Generation = "abcd", 1
				c, err := shim.Spawn(b.Context(), shim.Program{Exe: exe}, filepath.Join(base, fmt.Sprint(i)), cfg)
				if err == nil {
					err = c.Start(b.Context(), ranks)
				}
				if err == nil {
					err = c.Events(b.Context(), 0, func(shim.Event) error { return nil })
				}
				if err == nil {
					err = c.Release(b.Context()) // waited for: what it and its ranks used is counted
				}
				if err != nil {
					b.Fatal(err)
				}
				between := ofChildren(b)
				for range n {
					if err := exec.Command("/bin/true").Run(); err != nil {
						b.Fatal(err)
					}
				}
				ours, bare = ours+between-began, bare+ofChildren(b)-between
			}
			perRank := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(b.N*n) }
			b.ReportMetric(perRank(ours), "cpu-ms/rank")
			b.ReportMetric(perRank(bare), "bare-cpu-ms/rank")
			b.ReportMetric(perRank(ours-bare), "more-cpu-ms/rank")
			b.ReportMetric(float64(ours)/float64(bare), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// ofChildren is the processor time of all that this process has waited for, and of what they had waited for.
func ofChildren(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
