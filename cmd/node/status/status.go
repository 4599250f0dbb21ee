// Package status tells users about the cluster: who is there, who leads, what is in the
// way, and how far each copy of the record has got.
//
// It decides whose view is told (the leader's, or without one this node's own), when it
// is told again, and what is said where nobody leads.
//
// It must not change anything, and must tell what gossip says only as a hint.
package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's Status. All of it is needed, but for Management.
type Config struct {
	Self       rendezvous.Self
	Management string // as the user named it
	Record     *rendezvous.Record
	Dial       *dial.Dialer
	Failover   *failover.Failover
	Leader     *wire.ToLeader
	// NoLeader says why there is no leader, and what helps.
	NoLeader func() error
	// Inventory is this machine's hardware, Present the members that gossip knows, Leads
	// the node whose control stream this node has.
	Inventory *rendezvous.Latest[envgen.Inventory]
	Present   *rendezvous.Latest[[]gossip.Peer]
	Leads     *rendezvous.Latest[launcher.NodeID]
	Logger    *slog.Logger
}

// Status is what this node tells of the cluster.
type Status struct {
	cfg  Config
	line rendezvous.Latest[string]
}

// New makes it.
func New(cfg Config) *Status { return &Status{cfg: cfg} }

// Calls are what this node answers, leader or not.
func (s *Status) Calls() []wire.Call {
	return []wire.Call{wire.ShowStatus.Around(s.status), wire.Follow.Around(s.follow), wire.ShowRaft.Serve(s.raft)}
}

// Of is status's answer to c.
func (s *Status) Of(ctx context.Context, c wire.Caller, r wire.StatusRequest) (wire.Status, error) {
	return s.status(ctx, c, r, func(ctx context.Context, r wire.StatusRequest) (wire.Status, error) {
		return wire.ShowStatus.Call(ctx, s.cfg.Leader.As(c), r)
	})
}

// status asks the leader for its view, or without one gives this node's own; it adds what
// this node knows better about itself.
func (s *Status) status(ctx context.Context, _ wire.Caller, r wire.StatusRequest,
	ask wire.Ask[wire.StatusRequest, wire.Status]) (wire.Status, error) {
	st, err := awaitNodes(ctx, r, nil, func(ctx context.Context) (wire.Status, <-chan struct{}, error) {
		r := r
		leads, leadsChanged := s.cfg.Leader.Leads()
		if !leads {
			r.Timeout -= min(r.Timeout/10, time.Second) // so that its answer about what is missing precedes our time-out
		}
		st, err := ask(ctx, r)
		if errors.Is(err, wire.ErrRetry) || errors.Is(err, wire.ErrNoLeader) {
			return s.alone(s.Why(err)), soon(ctx, leadsChanged), nil
		}
		return st, leadsChanged, err
	})
	self := s.cfg.Self
	st.Self = self.Host
	if r.Brief {
		st.Nodes = nil
	}
	i := slices.IndexFunc(st.Nodes, func(m wire.NodeStatus) bool { return m.ID == self.ID })
	if noVote := s.cfg.Failover.NoVote(); i >= 0 && noVote != "" {
		st.Nodes[i].NoVote = noVote // this node knows better than the leader
	}
	return st, err
}

// awaitNodes asks until that many nodes are ready. It asks again when one of the channels
// is closed.
func awaitNodes(ctx context.Context, r wire.StatusRequest, over <-chan struct{},
	now func(context.Context) (wire.Status, <-chan struct{}, error)) (wire.Status, error) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	for {
		st, more, err := now(ctx)
		if err != nil || ready(st) >= r.WaitNodes {
			return st, err
		}
		select {
		case <-more:
		case <-over:
		case <-ctx.Done():
			return st, fmt.Errorf("%w after %s: %d of %d nodes are ready%s",
				wire.ErrNotYet, r.Timeout, ready(st), r.WaitNodes, because(st.Problem))
		}
	}
}

func ready(st wire.Status) (n int) {
	for _, m := range st.Nodes {
		if m.State == "ready" {
			n++
		}
	}
	return n
}

func because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}

// soon is closed with changed, or a little later: no event here may tell that an election
// is over.
func soon(ctx context.Context, changed <-chan struct{}) <-chan struct{} {
	c := make(chan struct{})
	go func() { // ends by itself
		defer close(c)
		select {
		case <-changed:
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}()
	return c
}

// alone is what this node knows without a leader: its copy of the record, and gossip's
// hints.
func (s *Status) alone(problem error) wire.Status {
	raft, epoch, self := s.cfg.Failover.Raft(), s.cfg.Failover.Epoch(), s.cfg.Self
	_, term := raft.Leader()
	st := wire.Status{
		Cluster: self.Cluster, Epoch: epoch.N, EpochBy: epoch.By, Term: term, Problem: problem.Error(),
		Heard: raft.LastContact(), Removed: errors.Is(problem, rendezvous.ErrRemoved),
	}
	if st.Removed { // the others are no concern of this machine any more, and it may have no copy of the record
		st.Nodes = []wire.NodeStatus{{ID: self.ID, Host: self.Host, State: "unknown",
			Inventory: s.cfg.Inventory.Load(), Version: self.Version, Protocol: self.Protocol}}
		return st
	}
	roles := s.cfg.Failover.Roles()
	for _, m := range s.cfg.Record.Nodes() {
		n := wire.NodeStatus{ID: m.ID, Host: m.Host, Addr: m.Addr.Addr(), State: "unknown", Role: roles[m.ID],
			Witness: m.Witness}
		if since, missed := s.missed(m.ID); missed {
			n.State, n.Since = "away", since
		}
		if m.ID == self.ID {
			n.Inventory, n.Version, n.Protocol = s.cfg.Inventory.Load(), self.Version, self.Protocol
		}
		st.Nodes = append(st.Nodes, n)
	}
	return st
}

// missed tells whether gossip misses a member, and since when: the zero time where this
// agent has never heard it.
func (s *Status) missed(id launcher.NodeID) (since time.Time, missed bool) {
	for _, p := range s.cfg.Present.Load() {
		if launcher.NodeID(p.ID) == id {
			return p.Since, !p.Alive
		}
	}
	return time.Time{}, id != s.cfg.Self.ID
}

// Why gives the reason for the lack of a leader where it is known by now, in place of the
// error from asking the last one. Raft misses a leader that lost its power 10 s before
// its control stream does; until then the stream counts only as long as the leader
// answers or gossips. Silence of gossip alone is no evidence: it runs on management only.
func (s *Status) Why(err error) error {
	if why := s.cfg.NoLeader(); errors.Is(why, rendezvous.ErrRemoved) {
		return why
	}
	raft := s.cfg.Failover.Raft()
	elected, _ := raft.Leader()
	last := s.cfg.Failover.Leader()
	_, missed := s.missed(last)
	leads, _ := s.cfg.Leader.Leads()
	switch {
	case leads, elected != "":
		return err
	case last == "", errors.Is(err, wire.ErrUnreachable) && missed && len(raft.Members().Servers) > 0:
		return s.cfg.NoLeader()
	}
	return err
}

// Line says in one line what this node does or waits for; changed is closed when that is
// no longer so.
func (s *Status) Line() (line string, changed <-chan struct{}) {
	_, changed = s.line.Watch()
	return s.now(), changed
}

// Run keeps the line up to date. No event tells of a disk that hangs, so whoever checks
// that the node is alive asks for the line as well.
func (s *Status) Run(ctx context.Context) error {
	for {
		_, inventoryChanged := s.cfg.Inventory.Watch()
		_, leaderChanged := s.cfg.Leads.Watch()
		_, leadsChanged := s.cfg.Leader.Leads()
		raftChanged := s.cfg.Failover.Raft().LeaderChanged()
		if now := s.now(); now != s.line.Load() {
			s.line.Store(now)
		}
		select {
		case <-inventoryChanged:
		case <-leaderChanged:
		case <-leadsChanged:
		case <-raftChanged:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Status) now() string {
	_, err := envgen.Management(s.cfg.Inventory.Load(), s.cfg.Management)
	leader := s.cfg.Failover.Leader()
	switch {
	case err != nil:
		return "waits for a management address: " + err.Error()
	case s.cfg.Failover.NoVote() != "":
		return "takes no part in the vote: " + s.cfg.Failover.NoVote()
	case s.cfg.Failover.Blank():
		return "has lost its copy of the record: waits for a leader to give it another"
	case leader == s.cfg.Self.ID:
		return "leads the cluster"
	case leader != "":
		return "follows " + s.cfg.Dial.HostOf(leader)
	}
	return "sees no leader: `sparkrun status` says why"
}
