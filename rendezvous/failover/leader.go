package failover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Members is what a change of roles needs from the membership.
type Members interface {
	NoteChanges(ctx context.Context, roster rendezvous.Roster)
	HandOverCA(ctx context.Context, id launcher.NodeID) error
	TakeBackCA(ctx context.Context, roster rendezvous.Roster)
}

// LeaderConfig of the leader's part. All of it is needed.
type LeaderConfig struct {
	Brain   *lead.Leader
	Members Members
	// Reopen opens a member's control stream again.
	Reopen func(launcher.NodeID)
}

// Leader keeps raft's roles as they should be while this node leads. It takes
// confirmations that machines are dead, and the record of a side that gives way.
type Leader struct {
	*Failover
	LeaderConfig
}

// Lead begins the leader's part; Close ends it.
func (f *Failover) Lead(cfg LeaderConfig) *Leader {
	l := &Leader{Failover: f, LeaderConfig: cfg}
	f.leader.Store(l)
	return l
}

// Close ends it: this node no longer leads.
func (l *Leader) Close() { l.leader.Store(nil) }

// Calls are the procedures that only a leader answers.
func (l *Leader) Calls() []wire.Call {
	return []wire.Call{wire.MarkDead.Serve(l.markDead), wire.Reunite.Serve(l.reunite)}
}

// passOnEvery is how often a leader that is about to leave looks for a successor.
const passOnEvery = 50 * time.Millisecond

// Run keeps raft's roles: one change per pass, based on raft's own evidence.
func (l *Leader) Run(ctx context.Context) error {
	retry := time.NewTicker(5 * time.Second) // for silences, which cause no event
	defer retry.Stop()
	for {
		recordChanged := l.cfg.Record.Changed()
		raftChanged := l.raft.LeaderChanged()
		_, inventoryChanged := l.cfg.Inventory.Watch() // this node's own address
		_, presentChanged := l.cfg.Present.Watch()     // and the others'
		leaving, leavingChanged := l.leaving.Watch()
		var passOn <-chan time.Time
		if leaving { // the end of a silence causes no event
			passOn = time.After(passOnEvery)
		}
		roster, rosterChanged := l.Brain.Roster()

		var members []consensus.Member
		for _, m := range roster {
			if m.ID == l.cfg.Self.ID && leaving {
				continue
			}
			members = append(members, consensus.Member{ID: string(m.ID), Joined: m.Joined, Healthy: m.Ready, Blank: m.Blank})
		}
		l.Members.NoteChanges(ctx, roster)
		l.noteHeard(ctx, roster)
		l.takeInAnew(ctx, roster)
		if again := l.changeRole(ctx, consensus.Desired(members, l.raft.Members())); again {
			continue
		}
		l.Members.TakeBackCA(ctx, roster)
		select {
		case <-recordChanged:
		case <-raftChanged:
		case <-rosterChanged:
		case <-inventoryChanged:
		case <-presentChanged:
		case <-leavingChanged:
		case <-passOn:
		case <-retry.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// changeRole makes one change of raft's membership; true: look again for more.
func (l *Leader) changeRole(ctx context.Context, c consensus.Change) bool {
	if c.Zero() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	host := l.cfg.Dial.HostOf(launcher.NodeID(c.ID))
	if c.To > c.From && c.ID != string(l.cfg.Self.ID) {
		if err := l.Members.HandOverCA(ctx, launcher.NodeID(c.ID)); err != nil {
			l.log.Warn("hand over the CA key", "node", host, "error", err)
			return false
		}
	}
	if err := l.raft.ApplyChange(ctx, c); err != nil {
		l.log.Warn("change raft membership", "node", host, "to", c.To, "error", err)
		return errors.Is(err, consensus.ErrStaleChange)
	}
	return true
}

// takeInWithin bounds the call to one member.
const takeInWithin = 3 * time.Second

// takeInAnew tells members that have lost their copy to begin again, once a majority has
// confirmed that they have no part in raft any more.
func (l *Leader) takeInAnew(ctx context.Context, roster rendezvous.Roster) {
	for _, m := range roster {
		if !m.Ready || !m.Blank || l.HasPart(m.ID) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, takeInWithin)
		err := l.raft.Verify(ctx)
		if err == nil && !l.HasPart(m.ID) {
			err = wire.BeginAnew.Call(ctx, l.cfg.Dial.Client(m.ID), wire.Empty{})
		}
		cancel()
		if err == nil {
			l.Reopen(m.ID) // its next hello says that it is not blank; a stream that the node ended itself might count as lost
		}
		l.log.Info("take in anew a node that has lost its copy of the record", "node", m.Host, "error", err)
	}
}

// reunite records a part of the record of a side that gives way.
func (l *Leader) reunite(ctx context.Context, c wire.Caller, p rendezvous.Reunited) (wire.Empty, error) {
	if p.Node != c.Node {
		return wire.Empty{}, fmt.Errorf("%w: %s hands over the record of %s", wire.ErrDenied, c.Host, p.Node)
	}
	if err := l.Recorder(0).Apply(ctx, p.Entry(), func() bool { return false }); err != nil {
		return wire.Empty{}, err
	}
	if p.Job != nil {
		l.log.Info("reunited", "job", p.Job.Spec.ID, "from", c.Host, "epoch", p.From.N)
		l.Brain.Adopt(p.Job.Spec.ID)
		for _, place := range p.Job.Plan.Nodes { // a node that is connected already sends its ledger again
			l.Reopen(place.Node)
		}
	}
	return wire.Empty{}, nil
}

// heir is a member that can take this leader's place; empty if there is none, or nothing
// to hand over.
func (l *Leader) heir() launcher.NodeID {
	roster, _ := l.Brain.Roster()
	ready := map[string]bool{}
	for _, m := range roster {
		ready[string(m.ID)] = m.Ready && !m.Blank && m.ID != l.cfg.Self.ID
	}
	sole := l.SoleVoter()
	for _, s := range l.raft.Members().Servers {
		// A pair's standby that has just come back may still count as silent; handOver
		// asks it before anything is changed.
		if ready[s.ID] && (sole || s.Role == consensus.Voter && s.Silent == 0) {
			return launcher.NodeID(s.ID)
		}
	}
	return ""
}

// markDead takes root's confirmation that a machine which does not answer runs nothing.
// It refuses for a machine that shows any sign of life.
func (l *Leader) markDead(ctx context.Context, c wire.Caller, r wire.MarkDeadRequest) (wire.Acknowledged, error) {
	if err := c.MustBeRoot("mark a machine dead"); err != nil {
		return wire.Acknowledged{}, err
	}
	roster, _ := l.Brain.Roster()
	i := slices.IndexFunc(roster, func(m rendezvous.Member) bool { return m.Host == r.Host })
	if i < 0 {
		var known []string
		for _, m := range roster {
			known = append(known, m.Host)
		}
		return wire.Acknowledged{},
			fmt.Errorf("mark %s dead: %w: the cluster has %s", r.Host, rendezvous.ErrNoNode, strings.Join(known, ", "))
	}
	m := roster[i]
	if m.Ready {
		return wire.Acknowledged{},
			fmt.Errorf("mark %s dead: %w: its agent answers and knows what runs there", r.Host, wire.ErrConflict)
	}
	at := AddressesOf(roster, rendezvous.Place{Node: m.ID, Host: m.Host}, l.cfg.Inventory.Load())
	if sign := l.SignOfLife(ctx, m.ID, at); sign != "" {
		return wire.Acknowledged{},
			fmt.Errorf("mark %s dead: %w: %s; start its agent, or switch it off first", r.Host, wire.ErrConflict, sign)
	}
	if err := l.Brain.MarkDead(m.ID); err != nil {
		return wire.Acknowledged{}, err
	}
	l.log.Warn("marked dead", "host", r.Host, "user", c.User.Name, "from", c.Host)
	if err := l.recordDeath(ctx, m.ID); err != nil {
		return wire.Acknowledged{}, err
	}
	return wire.Acknowledged{OnlyOn: l.OnlyHere(ctx)}, l.Dead(m.ID)
}

// recordDeath records the confirmation for later leaders.
func (l *Leader) recordDeath(ctx context.Context, id launcher.NodeID) error {
	return l.Recorder(0).Apply(ctx, rendezvous.Death{Node: id, Boots: l.Brain.Boots(id)}.Entry(),
		func() bool { return false })
}

// noteHeard takes back the confirmations about machines that were heard since.
func (l *Leader) noteHeard(ctx context.Context, roster rendezvous.Roster) {
	for _, d := range l.cfg.Record.Deaths() {
		if !slices.ContainsFunc(roster, func(m rendezvous.Member) bool { return m.ID == d.Node && m.Ready }) {
			continue
		}
		err := l.Recorder(0).Apply(ctx, rendezvous.Death{Node: d.Node, Heard: true}.Entry(), func() bool { return false })
		if err != nil {
			l.log.Warn("record that a machine is not dead", "node", l.cfg.Dial.HostOf(d.Node), "error", err)
		}
	}
}
