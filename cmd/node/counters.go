package node

import (
	"context"
	"maps"
	"os"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	envhost "github.com/sparkrun/sparkrun/envgen/host"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// countEvery is how often the devices' counters are read: each is a question
	// to the card's firmware.
	countEvery = 10 * time.Second
	// countKept readings make what is told: the increase over the last minute.
	countKept = 7
	// askTimeout bounds what is asked of every node: one that is away shall not
	// hold up the word of the others.
	askTimeout = 3 * time.Second
)

// count keeps the last minute of the counters. They are no part of the
// inventory, which must not change while nothing happens.
func (n *node) count(ctx context.Context) error {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		now := n.reader.Counters()
		n.mu.Lock()
		n.readings = append(n.readings, now)
		n.readings = n.readings[max(0, len(n.readings)-countKept):]
		n.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// counted is what this node's devices counted since the oldest reading.
func (n *node) counted() []envgen.Counters {
	now := n.reader.Counters()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.readings) == 0 {
		return nil
	}
	return now.Since(n.readings[0])
}

func (n *node) nodeCounters(ctx context.Context, _ wire.Caller, _ wire.Empty) (wire.NodeCounters, error) {
	totals := n.reader.Counters().Counts
	if bytes, err := n.reader.Bytes(ctx); err == nil { // without them RDMA's are worth having
		maps.Copy(totals, bytes)
	}
	res := wire.NodeCounters{ID: n.m.Node, Host: n.m.Host, Counters: n.counted(), Totals: totals}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		res.MemAvailable, _ = envhost.MemAvailable(string(text)) // 0 where it is not told
	}
	return res, nil
}

// counters asks every node; no leader is needed for it.
func (n *node) counters(ctx context.Context, c wire.Caller, _ wire.Empty) (wire.CountersResponse, error) {
	st, err := n.status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return wire.CountersResponse{}, err
	}
	res := wire.CountersResponse{Nodes: make([]wire.NodeCounters, len(st.Nodes))}
	each(len(st.Nodes), func(i int) {
		id, host := st.Nodes[i].ID, st.Nodes[i].Host
		got := wire.NodeCounters{Error: host + " is away"}
		if st.Nodes[i].State != "away" { // nobody shall wait for it
			var err error
			if got, err = n.countersOf(ctx, c, id); err != nil {
				got = wire.NodeCounters{Error: err.Error()}
			}
		}
		got.ID, got.Host = id, host
		res.Nodes[i] = got
	})
	return res, nil
}

func (n *node) countersOf(ctx context.Context, c wire.Caller, id launcher.NodeID) (wire.NodeCounters, error) {
	if id == n.m.Node {
		return n.nodeCounters(ctx, c, wire.Empty{})
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return n.peers.client(id).NodeCounters(ctx)
}
