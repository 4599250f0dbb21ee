package node

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// allocate records an allocation; nil is recorded already.
func (n *node) allocate(ctx context.Context, allocation json.RawMessage) error {
	if allocation == nil {
		return noLonger(n.failover.Raft().Verify(ctx)) // still the leader, whom the nodes obey
	}
	return noLonger(n.failover.Recorder(0).Apply(ctx, rendezvous.Entry{Kind: rendezvous.KindNetplan, Netplan: &rendezvous.Allocated{Allocation: allocation}},
		func() bool { return bytes.Equal(n.record.Netplan(), allocation) }))
}
