package lead

import (
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// NodeUp takes a node's first message on a new control stream.
func (l *Leader) NodeUp(id launcher.NodeID, up Up) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.members[id]
	now := &member{
		ready: true, since: time.Now(), boot: up.Boot, version: up.Version, protocol: up.Protocol,
		inventory: up.Inventory, gpus: up.GPUs, memory: up.Memory,
		stuck: map[launcher.Key]string{}, strays: map[launcher.Key]bool{}, leases: up.Leases, blank: up.Blank,
	}
	if was != nil {
		now.retired, now.ahead, now.echo = was.retired, was.ahead, was.echo
	}
	l.members[id] = now
	l.memberChanged()

	entries := map[launcher.Key]launcher.LedgerEntry{}
	for _, e := range up.Ledger {
		entries[e.Key] = e
		if e.Stuck != "" {
			now.stuck[e.Key] = e.Stuck
		}
		l.sweep(id, e)
	}
	ahead := now.ahead // Clock changes it
	for _, r := range l.runs {
		r.post(func() { r.clockIs(id, ahead) })
		r.post(func() { r.nodeUp(id, up.Boot, entries) })
	}
}

// sweep tells a node to forget an attempt that has no run here: its end was recorded
// while the node was away, or it belongs to a side that gave way. What still runs of it
// is ended first. An attempt that runs and is not in the record was lost in a forced
// recovery, or its job ended so long ago that it was pruned: only a person can know, so
// it is left alone. l.mu is held.
func (l *Leader) sweep(id launcher.NodeID, e launcher.LedgerEntry) {
	if l.current(e.Key) {
		return
	}
	if l.stray(e) {
		l.members[id].strays[e.Key] = true
		l.cfg.Logger.Warn("node runs a job that the record does not know", "job", e.Job, "generation", e.Generation,
			"node", id)
		return
	}
	if job, known := l.cfg.Record.Job(e.Job); known && e.Phase == launcher.PhaseStarted {
		l.cfg.Send(id, launcher.Order{Fence: l.cfg.Fence,
			End: &launcher.End{Key: e.Key, Grace: job.Spec.Grace, Reason: "the job has ended, or goes on elsewhere"}})
		l.swept[sweeping{id, e.Key}] = true // Event then tells the node to forget it
		return
	}
	l.cfg.Send(id, launcher.Order{Fence: l.cfg.Fence, Forget: &e.Key})
}

// sweeping is an attempt that is being ended on a node, which is to forget it afterwards.
type sweeping struct {
	node launcher.NodeID
	key  launcher.Key
}

// current tells whether this leadership drives an attempt. l.mu is held.
func (l *Leader) current(k launcher.Key) bool {
	r := l.runs[k.Job]
	return r != nil && r.job.Key() == k
}

// NodeDown notes that a node's control stream has ended or gone silent.
func (l *Leader) NodeDown(id launcher.NodeID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.members[id]; m != nil && m.ready {
		m.ready, m.since = false, time.Now()
		l.memberChanged()
	}
	for _, r := range l.runs {
		r.post(func() { r.nodeDown(id) })
	}
}

// Clock notes how far a node's clock is ahead of ours.
func (l *Leader) Clock(id launcher.NodeID, ahead time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.members[id]; m != nil {
		m.ahead = ahead
	}
	for _, r := range l.runs {
		r.post(func() { r.clockIs(id, ahead) })
	}
}

// Inventory takes a node's new inventory.
func (l *Leader) Inventory(id launcher.NodeID, inv envgen.Inventory) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.members[id]; m != nil {
		m.inventory = inv
		l.memberChanged()
	}
}

// Event takes one event from a node.
func (l *Leader) Event(ev launcher.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drain(ev)
	l.strayEnds(ev)
	if l.current(ev.Key) {
		r := l.runs[ev.Job]
		r.post(func() { r.event(ev) })
	} else if s := (sweeping{ev.Node, ev.Key}); ev.Kind == launcher.Ended && l.swept[s] {
		delete(l.swept, s)
		l.cfg.Send(ev.Node, launcher.Order{Fence: l.cfg.Fence, Forget: &ev.Key})
	}
}

// Retire keeps new ranks away from a member that is to be removed from the record. It
// refuses while a job has ranks there, because nobody could end them afterwards. Unretire
// takes it back.
func (l *Leader) Retire(id launcher.NodeID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.runs {
		for _, p := range r.job.Plan.Nodes {
			if p.Node == id && !r.idle() {
				return fmt.Errorf("job %[1]s has ranks on %[2]s: stop it first (`sparkrun stop %[1]s`)", r.job.Spec.ID, p.Host)
			}
		}
	}
	l.retire(id, true)
	return nil
}

// Unretire is for a member that stays after all.
func (l *Leader) Unretire(id launcher.NodeID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retire(id, false)
}

func (l *Leader) retire(id launcher.NodeID, retired bool) {
	if m := l.members[id]; m != nil {
		m.retired = retired
	}
}

func (l *Leader) memberChanged() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Roster lists the members as this leadership sees them, and gives a channel that the
// next change closes.
func (l *Leader) Roster() (rendezvous.Roster, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roster(), l.changed
}

func (l *Leader) roster() rendezvous.Roster {
	var out rendezvous.Roster
	for _, n := range l.cfg.Record.Nodes() {
		m := rendezvous.Member{Node: n, Since: l.began}
		if s := l.members[n.ID]; s != nil {
			m.Ready, m.Since, m.Boot, m.Version, m.Protocol = s.ready, s.since, s.boot, s.version, s.protocol
			m.Inventory, m.Drained = s.inventory, s.drained()
			m.Blank = s.blank
		} else {
			m.Unstarted = n.Joined > l.index
		}
		if d, is := l.cfg.Record.Drain(n.ID); is && m.Drained == "" {
			m.Drained = d.String()
		}
		out = append(out, m)
	}
	return out
}
