package wire

import (
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
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
	// Error says why there are none.
	Error string `json:"error,omitempty"`
}

// Evidence is one file of a report: what a node read and knows, secrets taken
// out. Host is empty where it is about the whole cluster.
type Evidence struct {
	Node launcher.NodeID `json:"node,omitempty"`
	Host string          `json:"host,omitempty"`
	// Path is relative to the node's part, with slashes.
	Path string `json:"path,omitempty"`
	Data []byte `json:"data,omitempty"`
	// Missing says, in place of a file, why a node gave nothing or not all.
	Missing string `json:"missing,omitempty"`
}
