package node

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// onDisk is what a voter's log file says of itself, read from a copy of it.
type onDisk struct {
	last   uint64 // index of the last entry
	writes uint64 // transactions so far, each of them fsynced
}

func (h *host) onDisk() onDisk {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.cfg.Paths.State, "raft", "raft.db"))
	if err != nil {
		h.t.Fatal(err)
	}
	path := filepath.Join(h.t.TempDir(), "raft.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		h.t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		h.t.Fatal(err)
	}
	defer db.Close()
	var d onDisk
	err = db.View(func(tx *bolt.Tx) error {
		d.writes = uint64(tx.ID())
		if last, _ := tx.Bucket([]byte("log")).Cursor().Last(); last != nil { // a newcomer's has none yet
			d.last = binary.BigEndian.Uint64(last)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

// From a submit to the moment when all ranks run, each of three voters has put
// down one entry, with one fsynced write: whoever is asked, the leader or another.
func TestLaunchIsOneEntry(t *testing.T) {
	c := newCluster(t, 3)
	c.hosts[0].waitVoters(3)
	for _, asked := range c.hosts[:2] {
		for round := 0; ; round++ { // an election in between has entries of its own
			before, writes, term := c.settledLog()
			ends := asked.running(command(3, 1, "exec sleep 1000"))
			after := make([]onDisk, len(c.hosts))
			for i, h := range c.hosts {
				after[i] = h.onDisk()
			}
			_, _, now := c.settledLog()
			ends()
			if now != term && round < 20 {
				continue
			}
			for i, h := range c.hosts {
				if got := after[i].last - before; got != 1 {
					t.Errorf("a launch by %s added %d entries to the log of %s before all ranks ran, want 1", asked.cfg.Host, got, h.cfg.Host)
				}
				if got := after[i].writes - writes[i]; got != 1 {
					t.Errorf("a launch by %s made %d fsynced writes on %s before all ranks ran, want 1", asked.cfg.Host, got, h.cfg.Host)
				}
			}
			break
		}
	}
}

// settledLog waits until all voters have the same log and nobody writes, and
// gives its last index, each voter's writes and the term.
func (c *cluster) settledLog() (last uint64, writes []uint64, term uint64) {
	c.t.Helper()
	look := func() (seen []onDisk) {
		for _, h := range c.hosts {
			seen = append(seen, h.onDisk())
		}
		return seen
	}
	seen := look()
	c.hosts[0].eventually("the logs have settled", func() bool {
		time.Sleep(300 * time.Millisecond) // a heartbeat's worth: what was under way has come
		was := seen
		seen = look()
		return slices.Equal(was, seen) && !slices.ContainsFunc(seen, func(d onDisk) bool { return d.last != seen[0].last })
	})
	_, term = c.hosts[0].now().failover.Raft().Leader()
	for _, d := range seen {
		writes = append(writes, d.writes)
	}
	return seen[0].last, writes, term
}

// running launches and returns when all ranks run; what it gives stops the job.
func (h *host) running(spec launcher.Spec) (stop func()) {
	h.t.Helper()
	runs, over := make(chan struct{}), make(chan error, 1)
	go func() {
		cl := h.client()
		defer cl.Close()
		var once sync.Once
		over <- wire.Launch.Call(h.t.Context(), cl, wire.LaunchRequest{Spec: spec}, func(p rendezvous.Progress) error {
			if p.Step == rendezvous.StepRunning {
				once.Do(func() { close(runs) })
			}
			return nil
		})
	}()
	select {
	case <-runs:
	case err := <-over:
		h.t.Fatalf("launch on %s ended: %v", h.cfg.Host, err)
	case <-time.After(time.Minute):
		h.t.Fatalf("launch on %s: the ranks do not run", h.cfg.Host)
	}
	return func() {
		h.t.Helper()
		cl := h.client()
		defer cl.Close()
		if _, err := wire.Stop.Call(h.t.Context(), cl, wire.StopRequest{Job: string(spec.ID), Grace: new(time.Duration)}); err != nil {
			h.t.Errorf("stop on %s: %v", h.cfg.Host, err)
		}
		if err := <-over; err != nil {
			h.t.Errorf("launch on %s: %v", h.cfg.Host, err)
		}
	}
}

var submitters = flag.Int("submitters", 32, "how many clients submit at once in BenchmarkSubmits")

// BenchmarkSubmits counts the jobs that three voters take, each on a disk with
// fsync, from clients of all three agents; a submit ends when the job is recorded.
// "queued" are jobs that wait in line behind one that has all GPUs, so that the
// record is all there is; "run" are jobs of one rank that do their work and end.
// Beside it in the same run: a bare append and fdatasync on the same disk.
//
//	go test ./cmd/node -run NONE -bench Submits -benchtime 1000x
func BenchmarkSubmits(b *testing.B) {
	spec := func(kind string) launcher.Spec {
		s := command(1, 1, "true")
		if kind == "queued" {
			s.GPUs, s.Wait = launcher.AllGPUs, true
		}
		return s
	}
	for _, kind := range []string{"queued", "run"} {
		b.Run(kind, func(b *testing.B) {
			c := newCluster(b, 3)
			c.hosts[0].waitVoters(3)
			holder := func() {}
			if kind == "queued" {
				all := command(3, 1, "exec sleep 1000")
				all.GPUs = launcher.AllGPUs
				holder = c.hosts[0].running(all)
			}
			fsync := bareFsync(b)
			var mu sync.Mutex
			var took []time.Duration
			var taken []launcher.JobID
			var g errgroup.Group
			jobs := make(chan struct{})
			b.ResetTimer()
			began := time.Now()
			for i := range *submitters {
				h := c.hosts[i%len(c.hosts)]
				g.Go(func() error {
					cl := h.client()
					defer cl.Close()
					for range jobs {
						job := spec(kind)
						d, err := submit(b.Context(), cl, job, kind == "run")
						if err != nil {
							return fmt.Errorf("submit on %s: %w", h.cfg.Host, err)
						}
						mu.Lock()
						took, taken = append(took, d), append(taken, job.ID)
						mu.Unlock()
					}
					return nil
				})
			}
			for range b.N {
				jobs <- struct{}{}
			}
			close(jobs)
			if err := g.Wait(); err != nil {
				b.Fatal(err)
			}
			all := time.Since(began)
			b.StopTimer()
			slices.Sort(took)
			ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
			p50, p99 := took[len(took)/2], took[len(took)*99/100]
			b.ReportMetric(float64(b.N)/all.Seconds(), "submits/s")
			b.ReportMetric(ms(p50), "p50-ms")
			b.ReportMetric(ms(p99), "p99-ms")
			b.ReportMetric(ms(fsync), "fsync-ms")
			b.ReportMetric(float64(p50)/float64(fsync), "p50/fsync")
			b.ReportMetric(0, "ns/op")
			if kind == "queued" {
				cl := c.hosts[0].client()
				defer cl.Close()
				for _, id := range taken { // before the one that they wait for
					if _, err := wire.Stop.Call(b.Context(), cl, wire.StopRequest{Job: string(id)}); err != nil {
						b.Errorf("stop %s: %v", id, err)
					}
				}
			}
			holder()
		})
	}
}

var errEnough = errors.New("enough is known")

// submit launches and tells how long it took until the job was recorded. It waits
// for the job's end, or leaves it to its fate.
func submit(ctx context.Context, cl *wire.Client, s launcher.Spec, toTheEnd bool) (took time.Duration, err error) {
	began := time.Now()
	err = wire.Launch.Call(ctx, cl, wire.LaunchRequest{Spec: s}, func(p rendezvous.Progress) error {
		if took == 0 { // nothing is told of a job before it is recorded
			took = time.Since(began)
		}
		switch {
		case !toTheEnd:
			return errEnough
		case p.Step == rendezvous.StepEnded && p.Outcome.End != rendezvous.Completed:
			return fmt.Errorf("%s: %s", p.Outcome.End, p.Outcome.Cause)
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return took, err
}

// bareFsync is the median of an append of a small entry and its fdatasync.
func bareFsync(b *testing.B) time.Duration {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "bare"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		b.Fatalf("TMPDIR is no disk (%v): fsync has to cost what it costs", err)
	}
	entry := make([]byte, 1024)
	var took []time.Duration
	for range 200 {
		began := time.Now()
		if _, err := f.Write(entry); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}
