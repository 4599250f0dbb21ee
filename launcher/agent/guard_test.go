package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

func TestHeldBy(t *testing.T) {
	a, b := launcher.Key{Job: "aaaa", Generation: 1}, launcher.Key{Job: "bbbb", Generation: 1}
	type held = map[launcher.Key]int64
	for name, tc := range map[string]struct {
		a, b shim.Usage
		gpu  map[int]int64
		want held
	}{
		"of its own": {shim.Usage{Bytes: 3 * gib}, shim.Usage{Bytes: 5 * gib}, nil, held{a: 3 * gib, b: 5 * gib}},
		"and by the GPU": {shim.Usage{Bytes: gib, GPU: true}, shim.Usage{Bytes: 5 * gib}, nil,
			held{a: 121 * gib, b: 5 * gib}},
		"two share the GPU": {shim.Usage{Bytes: 2 * gib, GPU: true}, shim.Usage{GPU: true}, nil,
			held{a: 64 * gib, b: 62 * gib}},
		"shared pages, counted twice": {shim.Usage{Bytes: 200 * gib, GPU: true}, shim.Usage{}, nil,
			held{a: 200 * gib, b: 0}},
		"as the driver tells": {shim.Usage{Bytes: 2 * gib, GPU: true, PIDs: []int{7, 8}},
			shim.Usage{GPU: true, PIDs: []int{9}},
			map[int]int64{8: 10 * gib, 9: 90 * gib, 10: gib}, held{a: 12 * gib, b: 90 * gib}},
	} {
		if diff := cmp.Diff(tc.want, heldBy(map[launcher.Key]shim.Usage{a: tc.a, b: tc.b}, tc.gpu, 126*gib)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestVictim(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	job := holder{key: launcher.Key{Job: "job"}, bytes: 60 * gib, began: at(5)}
	later := holder{key: launcher.Key{Job: "later"}, bytes: 40 * gib, service: true, began: at(6)}
	small := holder{key: launcher.Key{Job: "small"}, bytes: 2 * gib, service: true, began: at(7)}
	earlier := holder{key: launcher.Key{Job: "earlier"}, bytes: 50 * gib, service: true, began: at(4)}
	for name, tc := range map[string]struct {
		all           []holder
		last          launcher.JobID
		servicesFirst bool
		want          launcher.JobID
	}{
		"nobody":                          {},
		"nobody who holds much":           {all: []holder{small}, servicesFirst: true},
		"the largest":                     {all: []holder{job, earlier, later, small}, last: "gone", want: "job"},
		"the largest does not go":         {all: []holder{job, earlier, later, small}, last: "job", want: "earlier"},
		"the only one does not go":        {all: []holder{job, small}, last: "job"},
		"a service that came later":       {[]holder{job, earlier, later, small}, "", true, "later"},
		"no service that was there first": {[]holder{job, earlier, small}, "", true, "job"},
		"the largest is a service":        {[]holder{earlier, later}, "", true, "earlier"},
	} {
		var got launcher.JobID
		if v := victim(tc.all, launcher.Key{Job: tc.last}, 3*gib, tc.servicesFirst); v != nil {
			got = v.key.Job
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// Who ate the memory is ended, and its exit says why: it is the cause of the
// job's failure, not a consequence. Others go on.
func TestGuardEndsTheLargest(t *testing.T) {
	n := newNode(t)
	n.a.cfg.MemoryFloor = 48 << 20 // after Open: the guard itself sleeps
	small := n.as("witness; gate", named("small23456"))
	n.launch(small)
	// tail keeps what it reads until the newline that never comes.
	n.launch(n.as("(head -c 100000000 /dev/zero; witness; exec sleep 1000) | tail -n 1"))
	n.poll("both ranks", func() bool { return len(n.witness()) == 2 && n.a.Held()[key] > 90e6 })
	// A tale of the driver from before the memory was taken is not believed.
	rank := n.entry(small.Key).Ranks[0].PID
	n.a.cfg.GPUHeld = func() (map[int]int64, bool) { return map[int]int64{rank: 300 << 20}, false }
	used := sample{total: 1 << 30, available: 1 << 20}
	last, err := n.a.endLargest(n.ctx, used, "1 MiB of memory left", launcher.Key{})
	must(t, err)
	if last != key {
		t.Errorf("it ended %s", last)
	}
	ev := n.hear(launcher.Exited)
	for _, want := range []string{"had 1 MiB of memory left; it held about ", ", job small23456 ", "sparkrun ps"} {
		if ev.Key != key || ev.Exit.ByUs || !ev.Exit.Failed() || !strings.Contains(ev.Exit.String(), want) {
			t.Errorf("%s: exit %+v, want %q", ev.Key, ev.Exit, want)
		}
	}
	if e := n.entry(key); e.Phase != launcher.PhaseEnded {
		t.Errorf("the guard went on before its attempt had ended: %s", e.Phase)
	}
	if _, err := n.a.endLargest(n.ctx, used, "", last); err == nil || !strings.Contains(err.Error(), "nothing is ended") {
		t.Errorf("of a job that held less than the floor: %v", err)
	}
	must(t, n.a.Signal(n.ctx, small.Key, 0, syscall.SIGCONT))
	n.pass(0)
	if ev := n.hear(launcher.Exited); ev.Exit.Failed() {
		t.Errorf("%s: exit %+v", ev.Key, ev.Exit)
	}
}

// A guard that watches keeps no agent from closing, and leaves a machine with
// memory alone.
func TestGuardWatches(t *testing.T) {
	n := newNode(t, func(c *Config) { c.MemoryFloor = 1 })
	n.launch(n.as("gate"))
	n.drop()
	n.open()
	n.pass(0)
	if ev := n.hear(launcher.Exited); ev.Exit.Failed() {
		t.Errorf("exit %+v", ev.Exit)
	}
}

// While ranks run the guard looks each half second, also after a look that failed, but not while what it has ended
// goes. It warns of one thing each ten minutes at most. Without ranks it does not look.
func TestGuardLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		began := time.Now()
		var looks, left, ended atomic.Int64
		var idle atomic.Bool
		left.Store(5 * gib)
		changed := make(chan struct{}, 1)
		g := &guard{headroom: headroom{floor: 3 * gib}, changed: changed, busy: func() bool { return !idle.Load() },
			logger: slog.New(slog.NewTextHandler(&log, nil)),
			read: func() (sample, error) {
				if looks.Add(1) == 2 {
					return sample{}, errors.New("no file")
				}
				return sample{at: time.Now(), total: 120 * gib, available: left.Load()}, nil
			},
			end: func(sample, string) {
				ended.Add(1)
				time.Sleep(2 * time.Second)
				left.Store(100 * gib)
			}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.run(ctx)
		step := func(d time.Duration, wantLooks, wantEnded int64) {
			t.Helper()
			looks.Store(0)
			ended.Store(0)
			time.Sleep(d)
			synctest.Wait()
			if looks.Load() != wantLooks || ended.Load() != wantEnded {
				t.Errorf("after %s: %d looks, ended %d, want %d and %d", time.Since(began), looks.Load(), ended.Load(),
					wantLooks, wantEnded)
			}
		}
		step(5*time.Second+time.Millisecond, 10, 0)
		if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "no file") {
			t.Errorf("%d lines in the log: %s", n, log.String())
		}
		left.Store(2 * gib)
		step(3*time.Second, 2, 1)
		idle.Store(true)
		step(time.Hour, 1, 0)
		idle.Store(false)
		changed <- struct{}{}
		step(time.Second, 2, 0)
	})
}
