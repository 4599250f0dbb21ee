package lead

import (
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// The leases of fake nodes, and the echoes that renew them.

// uptime is the node's clock for stamps; n.mu is held.
func (n *fakeNode) uptime() launcher.Uptime { return launcher.Uptime(time.Since(n.booted)) }

// lease lets an attempt go on from a stamp; false: that is over. n.mu is held.
func (n *fakeNode) lease(tr *fakeTry, stamp launcher.Uptime) bool {
	until := stamp + launcher.Uptime(tr.a.Spec.Lease())
	if stamp == 0 || stamp > n.uptime() || until <= n.uptime() || tr.ending || tr.Phase == launcher.PhaseEnded {
		return false
	}
	tr.until = max(tr.until, until)
	n.later(time.Duration(tr.until-n.uptime()), func() {
		if n.uptime() >= tr.until && tr.Phase == launcher.PhaseStarted && !tr.ending {
			tr.cause = "its lease ran out"
			n.end(tr, tr.a.Spec.WithDefaults().Grace)
		}
	})
	return true
}

// echoes answers a node's stamps while a stream is open and the reign leads. What is
// proven late, or comes late, does harm in neither way.
func (r *reign) echoes(n *fakeNode, lk *link) {
	for {
		select {
		case <-time.After(500 * time.Millisecond):
		case <-lk.broken:
			return
		case <-r.ctx.Done():
			return
		}
		n.mu.Lock()
		stamp, boot, there := n.uptime(), n.boot, n.links[lk] && !n.away && !n.old
		n.mu.Unlock()
		r.w.mu.Lock()
		leads := r.w.reign == r
		slow := r.w.slowProof
		r.w.mu.Unlock()
		if !there || !leads {
			continue
		}
		time.Sleep(slow)
		r.mu.Lock()
		dead := r.dead
		r.mu.Unlock()
		if dead {
			return
		}
		r.leader.Echo(n.id, boot, stamp)
		r.w.wg.Go(func() {
			time.Sleep(r.w.lag)
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.away || n.boot != boot {
				return
			}
			for _, tr := range n.ledger {
				if tr.a != nil && tr.a.Spec.Lease() > 0 && tr.Phase == launcher.PhaseStarted {
					n.lease(tr, stamp)
				}
			}
		})
	}
}
