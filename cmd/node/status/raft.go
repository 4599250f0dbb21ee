package status

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// askTimeout bounds the question to every node: one that is away must not delay the
// answers of the others.
const askTimeout = 3 * time.Second

// raft asks every node about its part in raft. The leader says who the members are;
// without a leader this node does.
func (s *Status) raft(ctx context.Context, c wire.Caller, _ wire.Empty) (wire.RaftStatus, error) {
	self := s.cfg.Self
	st, err := s.Of(ctx, c, wire.StatusRequest{})
	if err != nil {
		return wire.RaftStatus{}, err
	}
	res := wire.RaftStatus{
		Cluster: st.Cluster, Epoch: st.Epoch, EpochBy: st.EpochBy, Term: st.Term, Self: self.Host, Leader: st.Leader,
		Problem: st.Problem,
	}
	for _, m := range st.Nodes {
		r := wire.NodeRaft{ID: m.ID, Host: m.Host, Role: m.Role}
		if m.State == "away" || m.State == "joined" {
			r.Error = "it does not answer"
			if !m.Since.IsZero() {
				r.Silent = time.Since(m.Since)
			}
		}
		res.Nodes = append(res.Nodes, r)
	}
	known := slices.ContainsFunc(res.Nodes, func(r wire.NodeRaft) bool { return r.ID == self.ID })
	if !known { // without a copy of the record it knows no member
		res.Nodes = append(res.Nodes, wire.NodeRaft{ID: self.ID, Host: self.Host})
		for _, p := range s.cfg.Present.Load() {
			if id := launcher.NodeID(p.ID); p.Alive && id != self.ID {
				res.Nodes = append(res.Nodes, wire.NodeRaft{ID: id, Host: p.Host})
			}
		}
	}
	var all sync.WaitGroup
	for i := range res.Nodes {
		r := &res.Nodes[i]
		if r.Error != "" {
			continue // it is known to be away
		}
		all.Go(func() {
			got, err := s.raftOf(ctx, c, r.ID)
			if err != nil {
				r.Error = err.Error()
				return
			}
			got.ID, got.Host, got.Role = r.ID, r.Host, r.Role
			*r = got
		})
	}
	all.Wait()
	for _, r := range res.Nodes {
		if r.ID == self.ID {
			res.Role = r.Role
		}
	}
	return res, nil
}

func (s *Status) raftOf(ctx context.Context, c wire.Caller, id launcher.NodeID) (wire.NodeRaft, error) {
	if id == s.cfg.Self.ID {
		return s.cfg.Failover.NodeRaft(ctx, c, wire.Empty{})
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return wire.ReadRaft.Call(ctx, s.cfg.Dial.Client(id), wire.Empty{})
}
