package consensus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// Role is a node's part in the log.
type Role int

// Outside nodes have no copy of the log; standbys have a copy but no vote.
const (
	Outside Role = iota
	Standby
	Voter
)

func (r Role) String() string { return [...]string{"outside", "standby", "voter"}[r] }

// Server is a node with a part in the log.
type Server struct {
	ID   string
	Role Role
	// Silent is how long raft's own heartbeats to it have failed; 0 while they succeed.
	// Only the leader knows.
	Silent time.Duration
}

// Membership is the committed membership, as this node knows it.
type Membership struct {
	Leader  string // this node's id if it leads, else ""
	Index   uint64 // of the entry that recorded it; see Change.Prev
	Servers []Server
}

// Member is a node of the cluster, whether or not it has a part in the log.
type Member struct {
	ID string
	// Joined orders members by age; older ones are preferred.
	Joined uint64
	// Healthy: the caller believes that it is up and ready for a part. This suffices to
	// get a part; its absence is never a reason to lose one.
	Healthy bool
	// Blank: the node itself says that it has lost its log and its vote. It loses its
	// part, whatever that was, and may get another when it is no longer blank.
	Blank bool
}

// Change is one step; the zero Change is none. Before a change to Standby or Voter the
// caller gives the node what such a node needs.
type Change struct {
	ID       string
	From, To Role
	// Transfer: make this voter the leader, because the leader has left the cluster and
	// cannot remove itself.
	Transfer bool
	Prev     uint64 // the Membership.Index from which it was computed
	Why      string
}

// Zero tells whether there is nothing to do.
func (c Change) Zero() bool { return c.ID == "" }

const (
	// ReplaceAfter is how long raft's heartbeats to a voter must have failed
	// before a standby takes its place.
	ReplaceAfter = 60 * time.Second
	maxStandbys  = 2
)

// TargetVoters is the number of voters for n members: always odd, because an even number
// tolerates no more losses than the odd one below it.
func TargetVoters(n int) int {
	switch {
	case n < 3:
		return 1
	case n < 8:
		return 3
	}
	return 5
}

// plan is the working state of Desired.
type plan struct {
	leader   string
	prev     uint64
	members  []Member // by age
	byID     map[string]Member
	servers  map[string]Server
	voters   []Server // by the member's age
	standbys []Server
}

// Desired returns the next single step from the current membership towards the right one:
// TargetVoters voters, up to two standbys, the rest outside. It is pure, and only a
// leader may act on it. members are all nodes of the cluster that have not left, also
// those that are down.
func Desired(members []Member, now Membership) Change {
	p := &plan{leader: now.Leader, prev: now.Index, byID: map[string]Member{}, servers: map[string]Server{}}
	if p.leader == "" {
		return Change{}
	}
	p.members = slices.Clone(members)
	slices.SortStableFunc(p.members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Joined, b.Joined), strings.Compare(a.ID, b.ID))
	})
	for _, m := range p.members {
		p.byID[m.ID] = m
	}
	sorted := slices.Clone(now.Servers)
	slices.SortStableFunc(sorted, func(a, b Server) int {
		return cmp.Or(cmp.Compare(p.byID[a.ID].Joined, p.byID[b.ID].Joined), strings.Compare(a.ID, b.ID))
	})
	for _, s := range sorted {
		p.servers[s.ID] = s
		switch s.Role {
		case Voter:
			p.voters = append(p.voters, s)
		case Standby:
			p.standbys = append(p.standbys, s)
		}
	}
	for _, step := range []func() Change{p.remove, p.reset, p.depart, p.shrink, p.grow, p.replace, p.fewerStandbys,
		p.moreStandbys} {
		if c := step(); !c.Zero() {
			return c
		}
	}
	return Change{}
}

func (p *plan) change(id string, to Role, why string) Change {
	return Change{ID: id, From: p.servers[id].Role, To: to, Prev: p.prev, Why: why}
}

// ready are the standbys that can become voters at once, oldest first.
func (p *plan) ready() (out []Server) {
	for _, s := range p.standbys {
		if m, ok := p.byID[s.ID]; ok && m.Healthy && !m.Blank && s.Silent == 0 {
			out = append(out, s)
		}
	}
	return out
}

// allowedStandbys includes those that are to become voters.
func (p *plan) allowedStandbys() int {
	return max(0, min(maxStandbys, len(p.members)-len(p.voters)))
}

// spares are the healthy nodes outside, oldest first.
func (p *plan) spares() (ids []string) {
	for _, m := range p.members {
		if _, in := p.servers[m.ID]; !in && m.Healthy && !m.Blank {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// remove drops a server that has left the cluster; standbys first, because that changes
// no majority.
func (p *plan) remove() Change {
	for _, s := range slices.Concat(p.standbys, p.voters) {
		if _, ok := p.byID[s.ID]; !ok && s.ID != p.leader {
			return p.change(s.ID, Outside, "it has left the cluster")
		}
	}
	return Change{}
}

// reset takes away the part of a server that has lost its log: it might vote again in a
// term in which it has voted, and it no longer has the entries that it confirmed. The
// others alone commit this change, so they have every committed entry.
func (p *plan) reset() Change {
	for _, s := range slices.Concat(p.voters, p.standbys) {
		if p.byID[s.ID].Blank && s.ID != p.leader {
			return p.change(s.ID, Outside, "it has lost its copy of the record")
		}
	}
	return Change{}
}

// depart finds a successor for a leader that has left the cluster.
func (p *plan) depart() Change {
	if _, ok := p.byID[p.leader]; ok || len(p.members) == 0 {
		return Change{}
	}
	for _, s := range p.voters {
		if s.ID != p.leader && s.Silent == 0 {
			c := p.change(s.ID, Voter, "the leader has left the cluster")
			c.Transfer = true
			return c
		}
	}
	if r := p.ready(); len(r) > 0 {
		return p.change(r[0].ID, Voter, "the leader has left the cluster")
	}
	if len(p.standbys) == 0 {
		if ids := p.spares(); len(ids) > 0 {
			return p.change(ids[0], Standby, "the leader has left the cluster")
		}
	}
	return Change{}
}

// shrink demotes a surplus voter.
func (p *plan) shrink() Change {
	if len(p.voters) <= TargetVoters(len(p.members)) {
		return Change{}
	}
	return p.drop(p.voters, Standby, "the cluster has become smaller")
}

// drop picks which of too many servers goes: a silent one first, then the youngest; never
// the leader.
func (p *plan) drop(from []Server, to Role, why string) Change {
	rank := func(s Server) int {
		switch {
		case s.ID == p.leader:
			return -1
		case s.Silent > ReplaceAfter:
			return 2
		case s.Silent > 0:
			return 1
		}
		return 0
	}
	worst := slices.MaxFunc(from, func(a, b Server) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)),
			cmp.Compare(p.byID[a.ID].Joined, p.byID[b.ID].Joined), strings.Compare(a.ID, b.ID))
	})
	if worst.ID == p.leader {
		return Change{}
	}
	return p.change(worst.ID, to, why)
}

// grow promotes a standby. From an odd number of voters it begins only when two are
// ready: the even number in between is weaker than the number before.
func (p *plan) grow() Change {
	missing := TargetVoters(len(p.members)) - len(p.voters)
	if missing <= 0 {
		return Change{}
	}
	need := 1
	if len(p.voters)%2 == 1 {
		need = 2
	}
	ready := p.ready()
	if len(ready) >= need {
		return p.change(ready[0].ID, Voter, "more voters make the cluster safer")
	}
	if ids := p.spares(); len(ids) > 0 && len(ready)+len(ids) >= need {
		return p.change(ids[0], Standby, "it is to become a voter")
	}
	return Change{}
}

// replace demotes a voter that raft has not heard for a long time, if a standby can take
// its place.
func (p *plan) replace() Change {
	if len(p.ready()) == 0 {
		return Change{}
	}
	for _, s := range p.voters {
		if s.ID != p.leader && s.Silent > ReplaceAfter {
			return p.change(s.ID, Standby, fmt.Sprintf("it has been silent for over %v", ReplaceAfter))
		}
	}
	return Change{}
}

// fewerStandbys drops a surplus standby, or a silent one that can be replaced. While the
// leader departs it drops none: one of them will take the leader's place.
func (p *plan) fewerStandbys() Change {
	if _, stays := p.byID[p.leader]; !stays {
		return Change{}
	}
	if len(p.standbys) > p.allowedStandbys() {
		return p.drop(p.standbys, Outside, "there are enough standbys")
	}
	if len(p.spares()) > 0 {
		for _, s := range p.standbys {
			if s.Silent > ReplaceAfter {
				return p.change(s.ID, Outside, fmt.Sprintf("it has been silent for over %v", ReplaceAfter))
			}
		}
	}
	return Change{}
}

func (p *plan) moreStandbys() Change {
	if len(p.standbys) >= p.allowedStandbys() {
		return Change{}
	}
	if ids := p.spares(); len(ids) > 0 {
		return p.change(ids[0], Standby, "a copy of the record is kept ready")
	}
	return Change{}
}

// silence is a series of failed heartbeats to one server.
type silence struct{ since, seen time.Time }

// noteHeartbeat notes raft's own evidence about servers.
func (n *Raft) noteHeartbeat(data any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch o := data.(type) {
	case raft.FailedHeartbeatObservation:
		n.silent[string(o.PeerID)] = silence{since: o.LastContact, seen: time.Now()}
		n.copies.wake()
	case raft.ResumedHeartbeatObservation:
		delete(n.silent, string(o.PeerID))
	}
}

// Members returns the committed membership. On a leader it is complete once
// its lead function runs.
func (n *Raft) Members() Membership {
	var m Membership
	if _, ok := n.leading(); ok {
		m.Leader = n.cfg.ID
	}
	conf := n.fsm.conf.Load()
	if conf == nil {
		return m
	}
	m.Index = conf.index
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range conf.servers {
		srv := Server{ID: string(s.ID), Role: Standby}
		if s.Suffrage == raft.Voter {
			srv.Role = Voter
		}
		// The report of the end of a silence may have been dropped; then reports of
		// failures, which come every few seconds, have stopped too.
		if q, ok := n.silent[srv.ID]; ok && m.Leader != "" && time.Since(q.seen) < 3*n.cfg.RPCTimeout {
			srv.Silent = max(time.Since(q.since), time.Nanosecond)
		}
		m.Servers = append(m.Servers, srv)
	}
	return m
}

// Votes tells whether this node is a voter in the latest membership that it knows,
// committed or not: raft acts by that one.
func (n *Raft) Votes() bool {
	f := n.r.GetConfiguration()
	if f.Error() != nil {
		return false
	}
	return slices.ContainsFunc(f.Configuration().Servers, func(s raft.Server) bool {
		return string(s.ID) == n.cfg.ID && s.Suffrage == raft.Voter
	})
}

// ApplyChange makes one change and waits until it is committed. Only the
// leader can; ErrStaleChange means that the membership is not the one the
// change was computed from.
func (n *Raft) ApplyChange(ctx context.Context, c Change) error {
	verb := fmt.Sprintf("make node %s %s", c.ID, c.To)
	if c.Zero() {
		return errors.New("change membership: the change is empty")
	}
	if err := n.mayLead(); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	if c.Transfer {
		return n.transferTo(ctx, c.ID)
	}
	if c.Prev == 0 {
		return fmt.Errorf("%s: the change does not say from which membership it was computed", verb)
	}
	id, addr, t := raft.ServerID(c.ID), raft.ServerAddress(c.ID), n.cfg.ApplyTimeout
	err := n.await(ctx, func() error {
		switch {
		case c.To == Voter:
			return n.r.AddVoter(id, addr, c.Prev, t).Error()
		case c.To == Standby && c.From == Voter:
			return n.r.DemoteVoter(id, c.Prev, t).Error()
		case c.To == Standby:
			return n.r.AddNonvoter(id, addr, c.Prev, t).Error()
		}
		return n.r.RemoveServer(id, c.Prev, t).Error()
	})
	if err == nil {
		n.log.Info("membership changed", "node", c.ID, "from", c.From.String(), "to", c.To.String(), "why", c.Why)
		return nil
	}
	// raft has no type for this error.
	if strings.HasPrefix(err.Error(), "configuration changed since") {
		return fmt.Errorf("%s: %w", verb, ErrStaleChange)
	}
	return fmt.Errorf("%s: %w", verb, n.explain(err))
}
