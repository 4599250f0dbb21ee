package wire

import (
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
)

// UsageResponse is what each machine uses, and the ranks on it.
type UsageResponse struct {
	Nodes []NodeUsage `json:"nodes"`
}

// NodeUsage is one machine's.
type NodeUsage struct {
	ID   launcher.NodeID `json:"id"`
	Host string          `json:"host"`
	usage.Machine
	// Began is when its agent was started: it knows of no change of its ports before. Links are the last ones, the oldest
	// first, by its clock, which says At now.
	Began time.Time           `json:"agent_began,omitzero"`
	Links []envgen.LinkChange `json:"links,omitempty"`
	// Error says why there is nothing of it.
	Error string `json:"error,omitempty"`
}

func (n *NodeUsage) from(id launcher.NodeID, host, problem string) {
	n.ID, n.Host = id, host
	if problem != "" {
		n.Error = problem
	}
}

// UsagePastResponse is what each machine used lately.
type UsagePastResponse struct {
	Nodes []NodeUsagePast `json:"nodes"`
}

// NodeUsagePast is one machine's.
type NodeUsagePast struct {
	ID   launcher.NodeID `json:"id"`
	Host string          `json:"host"`
	// Minutes are the last 60 at most, oldest first: rates and what moves are means of the readings of a minute, the
	// rest is its last reading's.
	Minutes []usage.Machine `json:"minutes,omitempty"`
	// Error says why there is nothing of it.
	Error string `json:"error,omitempty"`
}

func (n *NodeUsagePast) from(id launcher.NodeID, host, problem string) {
	n.ID, n.Host = id, host
	if problem != "" {
		n.Error = problem
	}
}
