package wire

import (
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
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
	// CA is the gateway's own; nil: it has none.
	CA *GatewayCA `json:"ca,omitempty"`
	// Member is the one that was asked.
	Member GatewayMember `json:"member"`
}

// GatewayMember is where one member's gateway listens.
type GatewayMember struct {
	Host  string           `json:"host"`
	Addrs []netip.AddrPort `json:"addrs"`
	// TLS: it speaks TLS on all of them but loopback.
	TLS bool `json:"tls,omitempty"`
	// Files: with a certificate of the administrator's files, whether the gateway has a CA or not.
	Files bool `json:"files,omitempty"`
	// Problem is why it does not listen on all addresses that it should; empty: it does.
	Problem string `json:"problem,omitempty"`
}

// GatewayKey is what is known of a key.
type GatewayKey struct {
	Name    string     `json:"name"`
	Models  []string   `json:"models,omitempty"` // none: all
	Rate    float64    `json:"rate,omitempty"`   // requests a second at each member; 0: not bounded
	Expires *time.Time `json:"expires,omitempty"`
	NoWake  bool       `json:"no_wake,omitempty"` // it starts no service on demand, and keeps none up
	Metrics bool       `json:"metrics,omitempty"` // it may read metrics, and ask no model
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

// UseServicesRequest tells the leader of requests at a member: for services on demand, and for those that it ends once
// their requests have.
type UseServicesRequest struct {
	Uses []rendezvous.ServiceUse `json:"uses"`
}

// UseServicesResponse says why services that were to start do not.
type UseServicesResponse struct {
	Asleep map[launcher.JobID]string `json:"asleep,omitempty"`
}

// GatewayCA is the CA that clients of the gateway trust.
type GatewayCA struct {
	Cert  string    `json:"cert"` // PEM
	Until time.Time `json:"until"`
	// Names are those that were given, beside the members' own.
	Names []string `json:"names"`
	// Permits are all names and networks that it can sign for.
	Permits []string `json:"permits"`
	// Missing are members whose host name or address is not among them: they joined, or moved, after it was made.
	Missing []string `json:"missing"`
}

// SignGatewayRequest asks for the certificate of a member's gateway. The leader adds the names.
type SignGatewayRequest struct {
	CSR   []byte       `json:"csr"`   // DER
	Addrs []netip.Addr `json:"addrs"` // where the member's gateway listens
}

// SignGatewayResponse carries it.
type SignGatewayResponse struct {
	Cert []byte `json:"cert"` // DER
}

// GatewayCount is what one key has asked of one model at a member since its agent started.
type GatewayCount struct {
	Model string `json:"model"` // as its service calls it
	Key   string `json:"key"`   // empty: no key was needed
	// Requests have come; of them Errors were refused, or ended before their answer was complete, or were answered by
	// the engine with a status from 400 on. A client that went away is none.
	Requests  int64            `json:"requests"`
	Errors    int64            `json:"errors"`
	UnderWay  int64            `json:"under_way"` // now
	Waiting   int64            `json:"waiting"`   // now
	FirstByte GatewayFirstByte `json:"first_byte"`
	// TokensIn and TokensOut are what answers said they used: streams say it only where they were asked to.
	TokensIn  int64 `json:"tokens_in"`
	TokensOut int64 `json:"tokens_out"`
}

// GatewayFirstByte is how long answers took to begin: how many did, all together in nanoseconds, and how many took no
// longer than each of GatewayTimes.
type GatewayFirstByte struct {
	Count int64         `json:"count"`
	Sum   time.Duration `json:"sum"`
	UpTo  []int64       `json:"up_to"`
}

// GatewayTimes are the bounds that GatewayFirstByte counts by.
var GatewayTimes = [...]time.Duration{
	5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute, 5 * time.Minute,
}

// Add adds what another member has counted.
func (c GatewayCount) Add(o GatewayCount) GatewayCount {
	c.Requests, c.Errors = c.Requests+o.Requests, c.Errors+o.Errors
	c.UnderWay, c.Waiting = c.UnderWay+o.UnderWay, c.Waiting+o.Waiting
	c.TokensIn, c.TokensOut = c.TokensIn+o.TokensIn, c.TokensOut+o.TokensOut
	c.FirstByte.Count, c.FirstByte.Sum = c.FirstByte.Count+o.FirstByte.Count, c.FirstByte.Sum+o.FirstByte.Sum
	c.FirstByte.UpTo = nil // of one member alone
	return c
}

// GatewayCountsRequest asks for every member's.
type GatewayCountsRequest struct {
	// Within is how long each member has to answer; 0, or more than 3 s: 3 s.
	Within time.Duration `json:"within,omitempty"`
}

func (r GatewayCountsRequest) within() time.Duration { return r.Within }

// GatewayCountsResponse are every member's counts, by host.
type GatewayCountsResponse struct {
	Nodes []NodeGatewayCounts `json:"nodes"`
}

// NodeGatewayCounts are one member's, by model and key.
type NodeGatewayCounts struct {
	ID     launcher.NodeID `json:"id"`
	Host   string          `json:"host"`
	Counts []GatewayCount  `json:"counts"`
	// Error says why there are none.
	Error string `json:"error,omitempty"`
}

func (n *NodeGatewayCounts) from(id launcher.NodeID, host, problem string) {
	n.ID, n.Host = id, host
	if problem != "" {
		n.Error = problem
	}
}
