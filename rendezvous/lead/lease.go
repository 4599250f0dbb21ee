package lead

import (
	"fmt"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A job with a lease need not wait until a silent node answers: its shims end the ranks
// by themselves, a known time after the last echo that the node got. rendezvous/DESIGN.md
// explains why this is safe.

// echo is a stamp that went back to its node.
type echo struct {
	at    time.Time // when it was given, or later; zero: never by this leadership
	boot  string    // of the node that made the stamp
	stamp launcher.Uptime
}

// Echo notes that a node is about to get its stamp back: this leadership was proven after
// the node made the stamp, in this boot. It is called before the node can have the echo.
func (l *Leader) Echo(id launcher.NodeID, boot string, stamp launcher.Uptime) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.members[id]; m != nil {
		m.echo = echo{time.Now(), boot, stamp}
	}
	for _, r := range l.runs {
		if r.job.Spec.Lease() > 0 {
			r.post(func() {}) // it may wait for this
		}
	}
}

// Leased tells whether any job has a lease to renew: without one no proof is needed.
func (l *Leader) Leased() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.runs {
		if r.job.Spec.Lease() > 0 {
			return true
		}
	}
	return false
}

// lastEcho is the latest moment at which a node may have got an echo: from this
// leadership, or before it began from an earlier one.
func (l *Leader) lastEcho(id launcher.NodeID) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.members[id]; m != nil && m.echo.at.After(l.began) {
		return m.echo.at
	}
	return l.began
}

// firstLeases are the stamps at which each node's first lease begins, in the order of
// placements; nil for a job without a lease. all is false while a node has no recent
// echo: with an old one its lease could be over before the start.
func (r *run) firstLeases(now time.Time) (stamps []launcher.Uptime, all bool) {
	lease := r.job.Spec.Lease()
	if lease == 0 {
		return nil, true
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	stamps, all = make([]launcher.Uptime, len(r.placements)), true
	for i, p := range r.placements {
		if m := r.l.members[p.Node]; m != nil && m.echo.boot == p.Boot && now.Sub(m.echo.at) < lease/2 {
			stamps[i] = m.echo.stamp
		} else {
			all = false
		}
	}
	return stamps, all
}

// leaseOver is when nothing runs any more on a node that stays silent; zero without a
// lease, and for a node that is up or whose ranks have ended.
func (r *run) leaseOver(p *placement) time.Time {
	if r.job.Spec.Lease() == 0 || p.up || p.phase == launcher.PhaseEnded {
		return time.Time{}
	}
	return r.l.lastEcho(p.Node).Add(r.job.Spec.LeaseOver())
}

// expire marks as ended what ran on silent nodes whose leases are over. now is read
// before the last echo is looked up: an echo given in between would come too late for the
// shim.
func (r *run) expire(now time.Time) {
	for _, p := range r.placements {
		if over := r.leaseOver(p); over.IsZero() || now.Before(over) {
			continue
		}
		p.lose("%s has not been heard for %s", p.Host, r.job.Spec.LeaseOver().Round(time.Second))
		r.l.cfg.Logger.Info("lease over", "job", r.job.Spec.ID, "node", p.Node)
		r.raisePhase(p, launcher.PhaseEnded)
	}
}

func (r *run) whyUnproven(hosts []string) string {
	on, each := strings.Join(hosts, ", "), hosts[0]
	if len(hosts) > 1 {
		each = "HOST"
	}
	if r.job.Spec.Lease() > 0 {
		return fmt.Sprintf("the next attempt waits until the leases of ranks on %s are over: at most %s after that machine was last heard, or the leader changed",
			on, r.job.Spec.LeaseOver().Round(time.Second))
	}
	return fmt.Sprintf("it waits for %s, then starts again: whether ranks still run there is not known; if that machine is off for good, "+
		"confirm that with `sudo sparkrun mark-dead %s`, and it starts elsewhere", on, each)
}
