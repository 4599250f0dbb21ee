package nccltest

import (
	"fmt"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// What a GB10's links gave where somebody measured them: busbw in GB/s (10^9 bytes),
// all_gather, messages of 16 GB, NCCL over RoCE. Sources: NVIDIA's dgx-spark-playbooks
// (marks of 175 Gb/s for a pair and of 10 GB/s for a ring of three), reports of owners.
const (
	oneCable  = 24.0  // both twins, MTU 9000: 23.7 to 24.2 at best, 96 % of 200 Gb/s
	twoCables = 25.67 // a second cable between the same two adds nearly nothing
	ringOf    = 10.0  // no best figure is known: the mark itself
	passPair  = nettest.PassGbps / 8
	oneTwin   = 13.0  // 12 to 13.5: a PCIe link Gen5 x4
	smallMTU  = 20.0  // MTU 1500: 18.9 to 20.95
	sockets   = 3.0   // TCP over the fabric
	degraded  = 1.625 // a ConnectX-7 at 13 Gb/s while its link said 200
	// deeply low is what no setting explains: half of what one twin carries.
	deeply = oneTwin / 2
)

// ofLine is the part of a link's bits that NCCL's bandwidth reaches at best.
const ofLine = oneCable * 8 / 200

// latency is taken for what a collective costs apart from its bytes, a step, in
// seconds. Nobody has published it for GB10: it is an assumption on the safe side, and
// the reason why messages at which it is half of the time judge no link.
const latency = 100e-6

// Mark is what a test should reach.
type Mark struct {
	// Full is the bandwidth with messages so large that latency does not count, Pass the
	// least that is called good of it. GB/s.
	Full float64 `json:"full_gbps"`
	Pass float64 `json:"pass_gbps"`
	// Text says of what: "one cable between two nodes".
	Text string `json:"text"`
}

// busFactor is busbw / algbw (nccl-tests, doc/PERFORMANCE.md); 0 for an operation that
// is not known.
func busFactor(op string, ranks int) float64 {
	n := float64(ranks)
	switch op {
	case "all_reduce":
		return 2 * (n - 1) / n
	case "all_gather", "reduce_scatter", "alltoall":
		return (n - 1) / n
	case "broadcast", "sendrecv", "reduce":
		return 1
	}
	return 0
}

// part is how much of Full messages of that size reach, 0 to 1: the time is latency
// plus bytes, so that bandwidth is half of it where both are equal.
func (m Mark) part(op string, bytes int64, ranks int) float64 {
	if ranks < 2 {
		return 0
	}
	carried := busFactor(op, ranks) * float64(bytes)
	return carried / (carried + latency*float64(ranks-1)*m.Full*1e9)
}

// fabric is what joins the nodes of a test.
type fabric struct {
	t     envgen.Topology
	nodes []envgen.TopologyNode
	ring  bool
	// ports are the fabric ports that join them, by node and slot.
	ports []port
}

// port is one fabric port of a node of the test.
type port struct {
	node  envgen.TopologyNode
	state envgen.PortState
	inv   envgen.Inventory
	// joined are the devices of it that reach another node of the test.
	joined []string
}

func newFabric(s Setting) fabric {
	f := fabric{t: s.Topology}
	for _, id := range s.Nodes {
		if n, ok := s.Topology.Node(id); ok {
			f.nodes = append(f.nodes, n)
		}
	}
	f.ring = s.Topology.Shape == envgen.ShapeRing && len(f.nodes) > 2
	joined := map[string][]string{} // devices by node
	for _, j := range s.Topology.Joints() {
		if !slices.Contains(s.Nodes, j.A.Node) || !slices.Contains(s.Nodes, j.B.Node) {
			continue
		}
		for _, e := range []envgen.LaneEnd{j.A, j.B} {
			joined[e.Node] = append(joined[e.Node], e.Path.HCA)
		}
	}
	for _, n := range f.nodes {
		for _, p := range n.Ports {
			if p.Role != envgen.RoleFabric || !p.Live || !linked(s, n.ID, p.Slot) {
				continue
			}
			q := port{node: n, state: p, inv: s.Inventories[n.ID]}
			for _, d := range p.Devices {
				if slices.Contains(joined[n.ID], d.HCA) {
					q.joined = append(q.joined, d.HCA)
				}
			}
			f.ports = append(f.ports, q)
		}
	}
	return f
}

// linked tells whether a link leads from the port to another node of the test.
func linked(s Setting, node, slot string) bool {
	for _, l := range s.Topology.Links {
		here, there := false, false
		for _, e := range l.Ends {
			here = here || e.Node == node && e.Slot == slot
			there = there || e.Node != node && slices.Contains(s.Nodes, e.Node)
		}
		if here && there {
			return true
		}
	}
	return false
}

// of are the node's ports.
func (f fabric) of(node string) []port {
	var ps []port
	for _, p := range f.ports {
		if p.node.ID == node {
			ps = append(ps, p)
		}
	}
	return ps
}

// mark is what these nodes should reach; nil where no fabric joins them.
func (f fabric) mark() *Mark {
	if len(f.nodes) < 2 {
		return nil
	}
	cables := 0
	for i, n := range f.nodes {
		here := len(f.of(n.ID))
		if here == 0 {
			return nil
		}
		if i == 0 || here < cables {
			cables = here
		}
	}
	switch {
	case f.ring:
		return &Mark{Full: ringOf, Pass: ringOf, Text: fmt.Sprintf("a ring of %d nodes", len(f.nodes))}
	case cables > 1:
		return &Mark{Full: twoCables, Pass: twoCables * passPair / oneCable,
			Text: fmt.Sprintf("%d cables to each node", cables)}
	case len(f.nodes) > 2:
		return &Mark{Full: oneCable, Pass: passPair, Text: "one cable to each node"}
	}
	return &Mark{Full: oneCable, Pass: passPair, Text: "one cable between two nodes"}
}
