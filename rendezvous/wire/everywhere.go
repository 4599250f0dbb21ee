package wire

import (
	"context"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// What each node answers for itself, with the messages: see Everywhere.
var (
	Models = everywhere[ModelsRequest, NodeModels, ModelsResponse](Row{Name: "models", Asks: true,
		Does: "which machine has which models, whole or in part"})
	Images = everywhere[ImagesRequest, NodeImages, ImagesResponse](Row{Name: "images", Asks: true,
		Does: "which machine's engine has which images"})
	GatewayCounts = everywhere[GatewayCountsRequest, NodeGatewayCounts, GatewayCountsResponse](Row{Name: "gateway-counts", Asks: true,
		Does: "what was asked of the one address for all models, by model and key"})
	Usage = everywhere[Empty, NodeUsage, UsageResponse](Row{Name: "usage", Asks: true,
		Does: "what each machine uses now, and the ranks on it: memory, processor, GPU, disks, heat, fabric"})
	UsagePast = everywhere[Empty, NodeUsagePast, UsagePastResponse](Row{Name: "usage-past", Asks: true,
		Does: "what each machine used in each minute of the last hour"})
	Counters = everywhere[Empty, NodeCounters, CountersResponse](Row{Name: "counters",
		Does: "what the nodes' devices counted in the last minute"})
)

// CountersResponse is what every node's RDMA devices counted lately, by host.
type CountersResponse struct {
	Nodes []NodeCounters `json:"nodes"`
}

// NodeCounters are one node's.
type NodeCounters struct {
	ID   launcher.NodeID `json:"id"`
	Host string          `json:"host"`
	// Counters are increases, a device each; empty until the node's agent has
	// read them twice.
	Counters []envgen.Counters `json:"counters,omitempty"`
	// Totals are what each RDMA device and each interface has counted since its driver
	// came up, by counter: tests read them before and after. Interfaces have rx_bytes and
	// tx_bytes, which do not see RDMA. Nodes of before have none.
	Totals map[string]map[string]uint64 `json:"totals,omitempty"`
	// MemAvailable is the kernel's, in bytes, of this moment; 0: not known, as of nodes of before.
	MemAvailable uint64 `json:"mem_available,omitempty"`
	// Error says why there are no counters.
	Error string `json:"error,omitempty"`
}

func (n *NodeCounters) from(id launcher.NodeID, host, problem string) {
	n.ID, n.Host = id, host
	if problem != "" {
		n.Error = problem
	}
}

// Everywhere is a procedure that each node answers for itself, by one Part. Users ask any node, which asks all of them,
// and needs no leader for it. It is a row of users and one of members, both of one name.
type Everywhere[Req, Part any, All ~struct {
	Nodes []Part `json:"nodes"`
}] struct {
	Unary[Req, All]
	part Unary[Req, Part]
}

func everywhere[Req, Part any, All ~struct {
	Nodes []Part `json:"nodes"`
}](r Row) Everywhere[Req, Part, All] {
	of := r
	r.Who, of.Who, of.Does = users, members, "the node's part of "+r.Name
	_ = any(new(Part)).(ofNode) //nolint:errcheck // else the program does not start
	return Everywhere[Req, Part, All]{unary[Req, All](r), unary[Req, Part](of)}
}

// ofNode is a node's part: from sets which node's it is, and the problem if there is no answer.
type ofNode interface {
	from(id launcher.NodeID, host, problem string)
}

// Everyone is how a server asks all nodes for their parts.
type Everyone struct {
	Self   launcher.NodeID
	Status func(context.Context, Caller, StatusRequest) (Status, error) // lists the members
	Client func(launcher.NodeID) *Client
}

// partTimeout bounds the question to each node: one that is away must not delay the
// answers of the others.
const partTimeout = 3 * time.Second

// Serve makes fn answer for this node. The server asks the others for their parts: ServerConfig's Everyone.
func (e Everywhere[Req, Part, All]) Serve(fn func(context.Context, Caller, Req) (Part, error)) []Call {
	return []Call{e.part.Serve(fn), {row: e.Row, everywhere: func(ctx context.Context, everyone Everyone, c Caller,
		req any, send sender) error {
		if r, ok := req.(interface{ askedBy(user string) }); ok && c.User != nil {
			r.askedBy(c.User.Name)
		}
		parts, err := e.Ask(ctx, everyone, c, *req.(*Req), fn)
		if err != nil {
			return err
		}
		all := All(struct {
			Nodes []Part `json:"nodes"`
		}{parts})
		return send(&all)
	}}}
}

// Ask gives all nodes' parts; fn is this node's.
func (e Everywhere[Req, Part, All]) Ask(ctx context.Context, everyone Everyone, c Caller, r Req,
	fn func(context.Context, Caller, Req) (Part, error)) ([]Part, error) {
	st, err := everyone.Status(ctx, c, StatusRequest{})
	if err != nil {
		return nil, err
	}
	parts := make([]Part, len(st.Nodes))
	var asked sync.WaitGroup
	for i, n := range st.Nodes {
		asked.Go(func() { parts[i] = e.ask(ctx, c, everyone, n, r, fn) })
	}
	asked.Wait()
	return parts, nil
}

// ask gives one node's part, or in its place the reason why there is none.
func (e Everywhere[Req, Part, All]) ask(ctx context.Context, c Caller, everyone Everyone, n NodeStatus, r Req,
	fn func(context.Context, Caller, Req) (Part, error)) (part Part) {
	var err error
	problem := ""
	switch {
	case n.ID == everyone.Self:
		part, err = fn(ctx, c, r)
	case n.State == "away": // do not wait for it
		problem = n.Host + " is away"
	default:
		patience := partTimeout
		if r, ok := any(r).(interface{ within() time.Duration }); ok && r.within() > 0 {
			patience = min(patience, r.within())
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		part, err = e.part.Call(ctx, everyone.Client(n.ID), r)
	}
	if err != nil {
		var none Part
		part, problem = none, err.Error()
	}
	any(&part).(ofNode).from(n.ID, n.Host, problem) //nolint:forcetypeassert // everywhere has looked
	return part
}
