package status

import (
	"context"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// LeaderConfig of the leader's part. All of it is needed.
type LeaderConfig struct {
	Status *Status // this node's own part
	Brain  *lead.Leader
	Fence  launcher.Fence
	// Apart tells why a member that answers has no control stream.
	Apart func(launcher.NodeID) error
}

// Leader tells the leader's view for as long as this node leads.
type Leader struct {
	LeaderConfig
	cfg  Config
	over <-chan struct{}
}

// Lead makes the leader's part for the leadership that ends with ctx.
func Lead(ctx context.Context, cfg LeaderConfig) *Leader {
	return &Leader{LeaderConfig: cfg, cfg: cfg.Status.cfg, over: ctx.Done()}
}

// Calls are what it answers.
func (l *Leader) Calls() []wire.Call {
	return []wire.Call{wire.ShowStatus.Serve(l.status), wire.Follow.Serve(l.follow), wire.SaveRaft.Serve(l.snapshot)}
}

func (l *Leader) noLonger() error {
	return fmt.Errorf("%s no longer leads: %w", l.cfg.Self.Host, wire.ErrRetry)
}

func (l *Leader) status(ctx context.Context, _ wire.Caller, r wire.StatusRequest) (wire.Status, error) {
	st, err := awaitNodes(ctx, r, l.over, func(context.Context) (wire.Status, <-chan struct{}, error) {
		select {
		case <-l.over:
			return wire.Status{}, nil, l.noLonger()
		default:
		}
		st, more := l.Now()
		return st, more, nil
	})
	if r.Brief {
		st.Nodes = nil
	}
	return st, err
}

// Now is the leader's view; the channel is closed when it has changed.
func (l *Leader) Now() (wire.Status, <-chan struct{}) {
	self := l.cfg.Self
	cluster, _, _ := l.cfg.Record.Cluster()
	st := wire.Status{
		Cluster: cluster, Epoch: l.Fence.N, EpochBy: l.Fence.By, Term: l.Fence.Term, Self: self.Host, Leader: self.Host,
	}
	roles, voteless := l.cfg.Failover.Roles(), l.voteless()
	roster, changed := l.Brain.Roster()
	for _, m := range roster {
		s := wire.NodeStatus{ID: m.ID, Host: m.Host, Addr: m.Addr.Addr(), State: "away", Since: m.Since, Boot: m.Boot,
			Role: roles[m.ID], Witness: m.Witness, Version: m.Version, Protocol: m.Protocol, Inventory: m.Inventory}
		switch {
		case m.Ready && m.Drained != "":
			s.State, s.Why = "drained", m.Drained
		case m.Ready:
			s.State = "ready"
		default:
			if err := l.Apart(m.ID); err != nil {
				s.Why = err.Error()
			} else if m.Unstarted {
				s.State, s.Why = "joined", "its agent has not started yet: `sudo systemctl enable --now sparkrun` there"
			}
		}
		if m.Ready && voteless[m.ID] {
			s.NoVote = fmt.Sprintf("its agent answers, its raft does not: `sparkrun status` on %s says why", m.Host)
		}
		s.FabricOnly = m.Ready && m.ID != self.ID && l.cfg.Dial.Detour(string(m.ID))
		if m.ID == self.ID {
			s.Role = "leader"
		}
		st.Nodes = append(st.Nodes, s)
	}
	return st, changed
}

// voteless are voters and standbys that raft's heartbeats have not reached for a while.
// Shorter silences are elections and restarts.
func (l *Leader) voteless() map[launcher.NodeID]bool {
	out := map[launcher.NodeID]bool{}
	for _, s := range l.cfg.Failover.Raft().Members().Servers {
		out[launcher.NodeID(s.ID)] = s.Silent > 10*time.Second
	}
	return out
}

// follow sends the leader's view as long as this node leads.
func (l *Leader) follow(ctx context.Context, _ wire.Caller, _ wire.Empty, tell func(wire.Status) error) error {
	for {
		detoursChanged := l.cfg.Dial.DetoursChanged()
		recordChanged, raftChanged := l.cfg.Record.Changed(), l.cfg.Failover.Raft().LeaderChanged()
		st, rosterChanged := l.Now()
		select {
		case <-l.over:
			return l.noLonger()
		default:
		}
		if err := tell(st); err != nil {
			return err
		}
		pause := time.NewTimer(coalesce)
		select {
		case <-l.over:
		case <-detoursChanged:
		case <-recordChanged:
		case <-raftChanged:
		case <-rosterChanged:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// snapshot gives a copy of the record. The leader first proves that it leads, so that the
// copy has everything that anybody was told is recorded.
func (l *Leader) snapshot(ctx context.Context, c wire.Caller, _ wire.Empty, send func(wire.RaftPiece) error) error {
	if err := c.MustBeRoot("take a snapshot of the record"); err != nil {
		return err
	}
	if err := l.cfg.Failover.Raft().Verify(ctx); err != nil {
		return err
	}
	self := l.cfg.Self
	b, err := l.cfg.Record.Backup(rendezvous.BackupHead{
		Taken: time.Now().UTC().Truncate(time.Second), Host: self.Host, Version: self.Version,
	})
	if err != nil {
		return err
	}
	l.cfg.Logger.Info("snapshot of the record", "bytes", len(b), "user", c.User.Name, "from", c.Host)
	for at := 0; at < len(b); at += wire.MaxPiece {
		if err := send(wire.RaftPiece{Offset: int64(at), Data: b[at:min(at+wire.MaxPiece, len(b))]}); err != nil {
			return err
		}
	}
	return nil
}
