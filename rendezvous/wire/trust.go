package wire

import (
	"fmt"
	"net/netip"
	"time"

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

// LoginRequest comes from a machine that is to be a client. Its secret proves
// that somebody of the cluster invited it; the CSR proves that it holds its key.
type LoginRequest struct {
	Secret []byte `json:"secret"`
	CSR    []byte `json:"csr"`    // DER
	Client string `json:"client"` // the id that it has given itself, a UUID
	Host   string `json:"host"`   // its name, for people
}

// String keeps the secret out of logs and errors.
func (r LoginRequest) String() string { return "login of " + r.Host + " (" + r.Client + ")" }

// GoString does the same for %#v.
func (r LoginRequest) GoString() string { return r.String() }

// LoginResponse makes it a client.
type LoginResponse struct {
	Cluster string   `json:"cluster"`
	User    string   `json:"user"` // whose client it is
	Cert    []byte   `json:"cert"` // DER
	CACert  []byte   `json:"ca_cert"`
	Members []Member `json:"members"`
	OnlyOn  string   `json:"recorded_only_on,omitempty"` // see Acknowledged
}

// RefreshRequest comes from a client from time to time.
type RefreshRequest struct {
	CSR []byte `json:"csr,omitempty"` // DER, by the client's own key; empty: no certificate is wanted
}

// RefreshResponse is what a client needs to reach the cluster.
type RefreshResponse struct {
	User    string   `json:"user"`
	Home    string   `json:"home,omitempty"` // the user's, on the member that answers
	Members []Member `json:"members"`
	Cert    []byte   `json:"cert,omitempty"` // DER; empty: this member cannot sign, ask another
}

// ClientsResponse lists the clients.
type ClientsResponse struct {
	Clients []rendezvous.Client `json:"clients"`
}

// RemoveClientsRequest removes clients: one, or all of a user.
type RemoveClientsRequest struct {
	Client string `json:"client,omitempty"` // see rendezvous.FindClient
	User   string `json:"user,omitempty"`
}

// RemoveClientsResponse names those that were removed.
type RemoveClientsResponse struct {
	Removed []rendezvous.Client `json:"removed"`
	OnlyOn  string              `json:"recorded_only_on,omitempty"` // see Acknowledged
}

// WebLink opens the page of the member that was asked, once, for the user who asked.
type WebLink struct {
	Host string `json:"host"` // the member's
	// URLs have one token, a secret; the first is the one that most can reach: by TLS, where it speaks that.
	URLs  []string  `json:"urls"`
	Until time.Time `json:"until"` // later it opens nothing
	// Problem is why it is on loopback alone; empty: others reach it too.
	Problem string `json:"problem,omitempty"`
}

// String keeps the token out of logs and errors.
func (l WebLink) String() string { return "a link to the page of " + l.Host }

// GoString does the same for %#v.
func (l WebLink) GoString() string { return l.String() }
