package agent

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
)

// BenchmarkTrue is the price of one launch on one node: Prepare, Start, and
// the exit and end of `true`, beside a bare fork, exec and wait of the same.
// "prepare" is the part until the node is ready, which is mostly the start of
// the shim's process; "run" is from Start to Ended. The test binary has fewer
// packages to initialise than sparkrun itself.
func BenchmarkTrue(b *testing.B) {
	for _, count := range []int{1, 8} {
		b.Run(fmt.Sprintf("ranks=%d", count), func(b *testing.B) {
			n := newNode(b)
			as := n.as("", ranks(0, count))
			as.Spec.Stages[0].Argv = launcher.Lits("/bin/true")
			var preparing, bare time.Duration
			for b.Loop() {
				began := time.Now()
				as.Generation++
				n.prepare(as)
				n.hear(launcher.Prepared)
				preparing += time.Since(began)
				n.start(as.Key, 0)
				n.hear(launcher.Ended)
				b.StopTimer()
				n.order(launcher.Order{Forget: &as.Key})
				n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
				began = time.Now()
				var ps []*os.Process
				for range count {
					p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
					must(b, err)
					ps = append(ps, p)
				}
				for _, p := range ps {
					_, err := p.Wait()
					must(b, err)
				}
				bare += time.Since(began)
				b.StartTimer()
			}
			ms := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(b.N) }
			b.ReportMetric(ms(preparing), "prepare-ms")
			b.ReportMetric(ms(b.Elapsed()-preparing), "run-ms")
			b.ReportMetric(ms(bare), "bare-ms")
		})
	}
}

// BenchmarkOwnShare is what the agent does in a launch apart from the shim:
// the checks, the files, the environment of each rank.
func BenchmarkOwnShare(b *testing.B) {
	for _, count := range []int{1, 8, 256} {
		b.Run(fmt.Sprintf("ranks=%d", count), func(b *testing.B) {
			n := newNode(b)
			as := n.as("", ranks(0, count))
			dir := n.a.attemptDir(as.Key)
			for b.Loop() {
				p, err := n.a.check(n.ctx, as)
				must(b, err)
				must(b, n.a.layOut(as, dir, ports{port: 29500}, p))
				_, err = ranksFor(as, p, 0, ports{port: 29500})
				must(b, err)
			}
			must(b, os.RemoveAll(dir))
		})
	}
}

// BenchmarkFollow is one reader's way from a file.
func BenchmarkFollow(b *testing.B) {
	n := newNode(b)
	const size = 256 << 20
	n.launch(n.as(fmt.Sprintf("head -c %d /dev/zero", size)))
	n.hear(launcher.Ended)
	b.SetBytes(size)
	for b.Loop() {
		must(b, n.a.Logs(n.ctx, logs.Request{Key: key, Ranks: []int{0}, Follow: true},
			func(launcher.Chunk) error { return nil }))
	}
}
