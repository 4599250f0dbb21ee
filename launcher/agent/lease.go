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

// Ranks of a job with a lease run until some time after a stamp that a leader
// has answered. The agent only passes answers on: it keeps none, so that one which
// is down, or hangs, lets the leases run out.

// Uptime is this machine's clock for stamps.
func Uptime() launcher.Uptime { return shim.Uptime() }

// Renew lets ranks with a lease go on, as a leader has proven that it led after
// this node made the stamp in this boot. It never blocks.
func (a *Agent) Renew(stamp launcher.Uptime) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.attempts {
		t.answered(stamp)
	}
}

// renewal is what an attempt knows of its lease.
type renewal struct {
	wake chan struct{} // has room for one: "stamp has risen"

	mu    sync.Mutex
	stamp launcher.Uptime // the latest that was answered

	// The loop's own.
	given  launcher.Uptime      // the stamp that the shim's lease counts from; 0: not known
	giving chan launcher.Uptime // tells the next one, or 0; nil while no renewal is under way
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

// renew passes the latest stamp on where it is worth a call, beside the loop.
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

// renewed ends a renewal: one that failed is tried again with the next stamp.
func (t *attempt) renewed(stamp launcher.Uptime) {
	t.lease.giving = nil
	t.lease.given = max(t.lease.given, stamp)
}

// firstLease has to be given before the ranks are started: without it nobody could
// tell when they are gone.
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

// giveLease tells the shim how long its attempt may go on.
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
	cause := fmt.Sprintf("its lease ran out: no leader was heard for %s (--on-partition end)", length)
	err := client.Lease(ctx, stamp+launcher.Uptime(length), cause)
	if errors.Is(err, shim.ErrUnknownOp) {
		return fmt.Errorf("%w: it was prepared before this node was upgraded, and cannot have --on-partition end: "+
			"launch it again", err)
	}
	return err
}
