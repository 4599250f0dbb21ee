package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Ranks of a job with a lease run until some time after the last stamp that a leader has
// answered. The agent only passes answers on and keeps none, so that the leases run out if
// it is down or hangs.

// Uptime is the clock of this machine that stamps are made by.
func Uptime() launcher.Uptime { return shim.Uptime() }

// Renew extends leases: a leader has proven that it led after this node made the stamp, in
// this boot. It never blocks.
func (a *Agent) Renew(stamp launcher.Uptime) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.attempts {
		t.answered(stamp)
	}
}

// renewal is what an attempt knows of its lease.
type renewal struct {
	wake chan struct{} // capacity 1: "stamp has risen"

	mu    sync.Mutex
	stamp launcher.Uptime // the latest that was answered

	// Only the loop touches what follows.
	given  launcher.Uptime      // the stamp that the shim's lease counts from; 0: not known
	giving chan launcher.Uptime // receives the stamp that was given, or 0 on failure; nil while no renewal is under way
}

func (t *attempt) answered(stamp launcher.Uptime) {
	t.lease.mu.Lock()
	t.lease.stamp = max(t.lease.stamp, stamp)
	t.lease.mu.Unlock()
	select {
	case t.lease.wake <- struct{}{}:
	default:
	}
}

// renew passes the latest stamp to the shim when it is worth a call, beside the loop.
func (t *attempt) renew(ctx context.Context, beside *sync.WaitGroup) {
	if t.assignment == nil || t.entry.Phase != launcher.PhaseStarted || t.ending || t.lease.giving != nil {
		return
	}
	length := t.assignment.Spec.Lease()
	t.lease.mu.Lock()
	stamp := t.lease.stamp
	t.lease.mu.Unlock()
	if length == 0 || stamp == 0 || time.Duration(stamp-t.lease.given) < length/10 {
		return
	}
	giving, client := make(chan launcher.Uptime, 1), t.shim
	t.lease.giving = giving
	beside.Go(func() {
		if err := t.giveLease(ctx, client, stamp, length); err != nil {
			if ctx.Err() == nil {
				t.a.cfg.Logger.Warn("renew lease", "job", t.key.Job, "error", err)
			}
			stamp = 0
		}
		giving <- stamp
	})
}

// renewed completes a renewal; one that failed is tried again with the next stamp.
func (t *attempt) renewed(stamp launcher.Uptime) {
	t.lease.giving = nil
	t.lease.given = max(t.lease.given, stamp)
}

// firstLease must be given before the ranks start: without a lease nobody could know when
// they are gone.
func (t *attempt) firstLease(ctx context.Context, client *shim.Client, as launcher.Assignment,
	stamp launcher.Uptime) error {
	length, now := as.Spec.Lease(), Uptime()
	switch {
	case length == 0:
		return nil
	case stamp == 0 || stamp > now:
		return errors.New("the leader has sent no lease, and --on-partition end asks for one: upgrade all nodes to " +
			"one version of sparkrun")
	case time.Duration(now-stamp) >= length:
		return fmt.Errorf("the start came %s late, and its lease (--node-timeout %s) had run out",
			time.Duration(now-stamp).Round(time.Second), length)
	}
	return t.giveLease(ctx, client, stamp, length)
}

// giveLease tells the shim how long its attempt may run.
func (t *attempt) giveLease(ctx context.Context, client *shim.Client, stamp launcher.Uptime,
	length time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	if client == nil {
		var err error
		if client, err = shim.Attach(ctx, t.dir); err != nil {
			return err
		}
	}
	cause := fmt.Sprintf("its lease ran out: no leader answered for %s (--on-partition end)", length)
	err := client.Lease(ctx, stamp+launcher.Uptime(length), cause)
	if errors.Is(err, shim.ErrUnknownOp) {
		return fmt.Errorf("%w: it was prepared before this node was upgraded, so --on-partition end cannot work: "+
			"launch it again", err)
	}
	return err
}
