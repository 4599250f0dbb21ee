package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkTrue is the price of a shim: Spawn, Start, the exit of `true`, and
// Release, beside a bare fork, exec and wait of the same. "listening" is the
// part until Spawn returns. The test binary has fewer packages to initialise
// than sparkrun itself.
func BenchmarkTrue(b *testing.B) {
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			base := b.TempDir()
			var spawning, bare, cpu, bareCPU time.Duration
			var ranks []Rank
			for i := range n {
				ranks = append(ranks, Rank{Rank: i, Argv: []string{"/bin/true"}, Dir: "/"})
			}
			i := 0
			for b.Loop() {
				i++
				began, used := time.Now(), processorTime()
				cfg := Config{LogDir: filepath.Join(base, "logs")}
				cfg.Key.Job, cfg.Key.Generation = "abcd", 1
				c, err := Spawn(b.Context(), Program{Exe: SelfExe}, filepath.Join(base, fmt.Sprint(i)), cfg)
				must(b, err)
				spawning += time.Since(began)
				must(b, c.Start(b.Context(), ranks))
				must(b, c.Events(b.Context(), 0, func(Event) error { return nil }))
				b.StopTimer()
				must(b, c.Release(b.Context()))
				cpu += processorTime() - used
				began, used = time.Now(), processorTime()
				var ps []*os.Process
				for range n {
					p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
					must(b, err)
					ps = append(ps, p)
				}
				for _, p := range ps {
					_, err := p.Wait()
					must(b, err)
				}
				bare += time.Since(began)
				bareCPU += processorTime() - used
				b.StartTimer()
			}
			ms := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(b.N) }
			b.ReportMetric(ms(spawning), "listening-ms")
			b.ReportMetric(ms(bare), "bare-ms")
			b.ReportMetric(ms(b.Elapsed())/ms(bare), "ratio")
			b.ReportMetric(ms(cpu-bareCPU)/float64(n), "more-cpu-ms/rank")
		})
	}
}

// processorTime is what this process and those it has waited for have used.
func processorTime() (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

// BenchmarkTeardown is the time from an End without grace to the proof that
// nobody is left, of ranks with a child that has left their session.
func BenchmarkTeardown(b *testing.B) {
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				t := spawn(b)
				var ranks []Rank
				for i := range n {
					ranks = append(ranks, t.sh(i, "setsid sleep 1000 & say up; wait"))
				}
				t.start(ranks...)
				for range n {
					t.hear()
				}
				b.StartTimer()
				must(b, t.c.End(t.ctx, 0))
				t.events()
				b.StopTimer()
				must(b, t.c.Release(t.ctx))
				b.StartTimer()
			}
		})
	}
}

// BenchmarkOutput is one rank's way to its file.
func BenchmarkOutput(b *testing.B) {
	const size = 256 << 20
	b.SetBytes(size)
	for b.Loop() {
		t := spawn(b)
		t.start(t.sh(0, fmt.Sprintf("head -c %d /dev/zero", size)))
		t.events()
		must(b, t.c.Release(t.ctx))
		must(b, os.Remove(filepath.Join(t.cfg.LogDir, "rank-0.out")))
	}
}
