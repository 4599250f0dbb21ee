package wire

import (
	"fmt"
	"net/netip"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// MemberList lists the members and the clients, at a place of the record.
type MemberList struct {
	Epoch   launcher.Epoch      `json:"epoch"`
	Index   uint64              `json:"index"`
	Members []Member            `json:"members"`
	Clients []rendezvous.Client `json:"clients,omitempty"`
}

// Member is one of them.
type Member struct {
	ID   launcher.NodeID `json:"id"`
	Host string          `json:"host"`
	Key  string          `json:"key,omitempty"` // SHA-256 of its public key; empty: any of this CA's
	Addr netip.AddrPort  `json:"addr"`
}

// GossipKey is one of the cluster's keys.
type GossipKey struct {
	Number uint64 `json:"number"`
	Key    []byte `json:"key"`
}

// String keeps the key out of logs.
func (k GossipKey) String() string { return fmt.Sprintf("gossip key %d", k.Number) }

// GoString does so for %#v.
func (k GossipKey) GoString() string { return k.String() }

// Trusted is whom a member shall let in, and the keys to gossip with, the one that encrypts first.
type Trusted struct {
	Members MemberList  `json:"roll"`
	Keyring []GossipKey `json:"ring"`
	// Retired are the keys of before, for the secrets of jobs that go on. Settled: the leader can open all of them with
	// these, so that a member may forget others.
	Retired []GossipKey `json:"retired,omitempty"`
	Settled bool        `json:"settled,omitempty"`
}

// String keeps the keys out of logs.
func (t Trusted) String() string {
	return fmt.Sprintf("%d members, %d clients, %d keys and %d of before, of epoch %d, entry %d",
		len(t.Members.Members), len(t.Members.Clients), len(t.Keyring), len(t.Retired), t.Members.Epoch.N, t.Members.Index)
}

// GoString does so for %#v.
func (t Trusted) GoString() string { return t.String() }

// RenewExpiredRequest is a renewal by a node whose certificate has ended: it comes unauthenticated.
type RenewExpiredRequest struct {
	Cert []byte `json:"cert"` // the one that has ended, DER
	CSR  []byte `json:"csr"`  // DER, by the same key
}

// LeaveRequest takes the machine that is asked out of its cluster.
type LeaveRequest struct {
	Force bool `json:"force,omitempty"` // tell nobody: it has been taken out, or its cluster is gone
}

// RemoveNodeRequest takes a member out of the cluster.
type RemoveNodeRequest struct {
	Host  string `json:"host"`
	Force bool   `json:"force,omitempty"` // end the jobs that have ranks there first
}

// RemoveNodeResponse says what became of it.
type RemoveNodeResponse struct {
	Told   bool   `json:"told"`                       // the machine knows, and has removed its keys
	OnlyOn string `json:"recorded_only_on,omitempty"` // see Acknowledged
}
