package wire

import (
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// GatewayResponse is the gateway as a user sees it: hashes of keys stay out of it.
type GatewayResponse struct {
	Open bool `json:"open"`
	// Port is where each member listens.
	Port     uint16               `json:"port"`
	Keys     []GatewayKey         `json:"keys,omitempty"` // by name
	Aliases  map[string]string    `json:"aliases,omitempty"`
	Backends []rendezvous.Backend `json:"backends"`
	// VirtualIP is the address that the leader's machine holds for all; nil: none is set.
	VirtualIP *VirtualIP `json:"virtual_ip,omitempty"`
	// Member is the one that was asked.
	Member GatewayMember `json:"member"`
}

// GatewayMember is where one member's gateway listens.
type GatewayMember struct {
	Host  string           `json:"host"`
	Addrs []netip.AddrPort `json:"addrs"`
	// Problem is why it does not listen on all addresses that it should; empty: it does.
	Problem string `json:"problem,omitempty"`
}

// GatewayKey is what is known of a key.
type GatewayKey struct {
	Name    string     `json:"name"`
	Models  []string   `json:"models,omitempty"` // none: all
	Rate    float64    `json:"rate,omitempty"`   // requests a second at each member; 0: not bounded
	Expires *time.Time `json:"expires,omitempty"`
	Wake    bool       `json:"wake,omitempty"`
	Created time.Time  `json:"created"`
	By      string     `json:"by"`
}

// VirtualIP is the cluster's further address, and how it stands.
type VirtualIP struct {
	Addr netip.Prefix `json:"addr"`
	// Host holds it; empty: none does, for what Why says.
	Host string `json:"host,omitempty"`
	Why  string `json:"why,omitempty"`
}
