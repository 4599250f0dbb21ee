package checkup

import (
	"context"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// askTimeout bounds what is asked of every node: one that is away shall not hold up
// the word of the others.
const askTimeout = 3 * time.Second

// Counters asks every node; no leader is needed for it.
func (u *Checkup) Counters(ctx context.Context, c wire.Caller, _ wire.Empty) (wire.CountersResponse, error) {
	st, err := u.cfg.Status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return wire.CountersResponse{}, err
	}
	res := wire.CountersResponse{Nodes: make([]wire.NodeCounters, len(st.Nodes))}
	each(len(st.Nodes), func(i int) {
		id, host := st.Nodes[i].ID, st.Nodes[i].Host
		got := wire.NodeCounters{Error: host + " is away"}
		if st.Nodes[i].State != "away" { // nobody shall wait for it
			var err error
			if got, err = u.countersOf(ctx, c, id); err != nil {
				got = wire.NodeCounters{Error: err.Error()}
			}
		}
		got.ID, got.Host = id, host
		res.Nodes[i] = got
	})
	return res, nil
}

func (u *Checkup) countersOf(ctx context.Context, c wire.Caller, id launcher.NodeID) (wire.NodeCounters, error) {
	if id == u.cfg.Self {
		return u.cfg.Survey.Counters(ctx, c, wire.Empty{})
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return wire.ReadCounters.Call(ctx, u.cfg.Dial.Client(id), wire.Empty{})
}
