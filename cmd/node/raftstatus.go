package node

import (
	"context"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// askTimeout bounds what is asked of every node: one that is away shall not hold up
// the word of the others.
const askTimeout = 3 * time.Second

// raftStatus asks every node for its part in raft. Who the members are the
// leader says, or where there is none this node.
func (n *node) raftStatus(ctx context.Context, c wire.Caller, _ wire.Empty) (wire.RaftStatus, error) {
	st, err := n.statusFor(ctx, c, wire.StatusRequest{})
	if err != nil {
		return wire.RaftStatus{}, err
	}
	res := wire.RaftStatus{Cluster: st.Cluster, Epoch: st.Epoch, EpochBy: st.EpochBy, Term: st.Term, Self: n.m.Host, Leader: st.Leader, Problem: st.Problem}
	for _, m := range st.Nodes {
		r := wire.NodeRaft{ID: m.ID, Host: m.Host, Role: m.Role}
		if m.State == "away" {
			r.Error = "it does not answer"
			if !m.Since.IsZero() {
				r.Silent = time.Since(m.Since)
			}
		}
		res.Nodes = append(res.Nodes, r)
	}
	if !slices.ContainsFunc(res.Nodes, func(r wire.NodeRaft) bool { return r.ID == n.m.Node }) { // without a copy it knows nobody
		res.Nodes = append(res.Nodes, wire.NodeRaft{ID: n.m.Node, Host: n.m.Host})
		for _, p := range n.present.Load() {
			if id := launcher.NodeID(p.ID); p.Alive && id != n.m.Node {
				res.Nodes = append(res.Nodes, wire.NodeRaft{ID: id, Host: p.Host})
			}
		}
	}
	each(len(res.Nodes), func(i int) {
		r := &res.Nodes[i]
		if r.Error != "" {
			return // nobody shall wait for it
		}
		got, err := n.raftOf(ctx, c, r.ID)
		if err != nil {
			r.Error = err.Error()
			return
		}
		got.ID, got.Host, got.Role = r.ID, r.Host, r.Role
		*r = got
	})
	for _, r := range res.Nodes {
		if r.ID == n.m.Node {
			res.Role = r.Role
		}
	}
	return res, nil
}

func (n *node) raftOf(ctx context.Context, c wire.Caller, id launcher.NodeID) (wire.NodeRaft, error) {
	if id == n.m.Node {
		return n.failover.NodeRaft(ctx, c, wire.Empty{})
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return wire.ReadRaft.Call(ctx, n.dial.Client(id), wire.Empty{})
}

// raftSnapshot gives a copy of the record, by the leader, who proves first that
// it is one: what anybody was told is recorded is in it.
func (l *leadership) raftSnapshot(ctx context.Context, c wire.Caller, _ wire.Empty, send func(wire.RaftPiece) error) error {
	n := l.n
	if err := c.MustBeRoot("take a snapshot of the record"); err != nil {
		return err
	}
	if err := n.failover.Raft().Verify(ctx); err != nil {
		return err
	}
	b, err := n.record.Backup(rendezvous.BackupHead{Taken: time.Now().UTC().Truncate(time.Second), Host: n.m.Host, Version: n.cfg.Version})
	if err != nil {
		return err
	}
	n.log.Info("snapshot of the record", "bytes", len(b), "user", c.User.Name, "from", c.Host)
	for at := 0; at < len(b); at += wire.MaxPiece {
		if err := send(wire.RaftPiece{Offset: int64(at), Data: b[at:min(at+wire.MaxPiece, len(b))]}); err != nil {
			return err
		}
	}
	return nil
}
