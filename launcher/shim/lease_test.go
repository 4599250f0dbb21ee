package shim

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

const unheard = "its lease ran out: nobody was heard"

func in(d time.Duration) launcher.Uptime { return Uptime() + launcher.Uptime(d) }

// The lease runs out: TERM and, for who is deaf to it, KILL after the grace. Nothing of
// the attempt is left, not in another session either, and each exit says why.
func TestLeaseRunsOut(t *testing.T) {
	b := spawn(t, func(c *Config) { c.Grace = 300 * time.Millisecond })
	b.start(b.sh(0, `trap 'say saved; exit 0' TERM; say ready; while :; do sleep 0.01; done`),
		b.sh(1, `trap '' TERM; setsid sleep 1000 & say ready; while :; do sleep 0.01; done`))
	b.hear()
	b.hear()
	until := in(2 * time.Second)
	must(t, b.c.Lease(b.ctx, until, unheard))
	if got := b.hear(); got != "saved" {
		t.Errorf("heard %q", got)
	}
	es := b.events()
	if now := Uptime(); now < until {
		t.Errorf("it ended %s before its lease", time.Duration(until-now))
	}
	b.noneAlive()
	for rank, e := range exits(es) {
		if e.Cause != unheard || e.ByUs || !e.Failed() {
			t.Errorf("rank %d: %+v", rank, e)
		}
	}
	if last := es[len(es)-1]; len(exits(es)) != 2 || last.Kind != Ended || last.Why != unheard {
		t.Errorf("%d exits, and %+v", len(exits(es)), last)
	}
	if err := b.c.Lease(b.ctx, in(time.Hour), unheard); !errors.Is(err, ErrRefused) {
		t.Errorf("a renewal after the end: %v", err)
	}
}

// A lease that was renewed ends nobody when the first moment comes, nor does one
// that comes late and is shorter.
func TestLeaseIsRenewed(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, `trap 'say lives' USR1; say ready; while :; do sleep 0.01; done`))
	b.hear()
	first := in(2 * time.Second)
	must(t, b.c.Lease(b.ctx, first, unheard))
	must(t, b.c.Lease(b.ctx, in(time.Hour), unheard))
	must(t, b.c.Lease(b.ctx, first, unheard))
	time.Sleep(time.Duration(first-Uptime()) + 200*time.Millisecond) // nothing is to happen then
	must(t, b.c.Signal(b.ctx, 0, syscall.SIGUSR1))
	if got := b.hear(); got != "lives" {
		t.Errorf("heard %q", got)
	}
	must(t, b.c.End(b.ctx, 0))
	if e := exits(b.events())[0]; !e.ByUs || e.Cause != "" {
		t.Errorf("%+v", e)
	}
}

// Before the start a lease bounds the waiting: a start that comes late starts nothing.
func TestLeaseRunsOutBeforeTheStart(t *testing.T) {
	b := spawn(t)
	must(t, b.c.Lease(b.ctx, in(2*time.Second), unheard))
	if es := b.events(); len(es) != 1 || es[0].Kind != Ended || es[0].Why != unheard {
		t.Errorf("events %+v", es)
	}
	if err := b.c.Start(b.ctx, []Rank{b.sh(0, "say no")}); !errors.Is(err, ErrEnded) {
		t.Errorf("start: %v", err)
	}
}

// A shim that gets its turn late, as after a sleep of the machine, kills when it
// would have killed: TERM would give a grace
// that is over.
func TestLateLease(t *testing.T) {
	b := spawn(t, func(c *Config) { c.Grace = time.Second })
	b.start(b.sh(0, `trap 'exit 0' TERM; say ready; while :; do sleep 0.01; done`))
	b.hear()
	until := in(2 * time.Second)
	must(t, b.c.Lease(b.ctx, until, unheard))
	must(t, syscall.Kill(b.shim(), syscall.SIGSTOP))
	time.Sleep(time.Duration(until-Uptime()) + 1200*time.Millisecond)
	must(t, syscall.Kill(b.shim(), syscall.SIGCONT))
	es := b.events()
	if e := exits(es)[0]; e.Signal != int(syscall.SIGKILL) || e.Cause != unheard {
		t.Errorf("%+v", e)
	}
	b.noneAlive()
}
