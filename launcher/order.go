package launcher

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Epoch counts the take-overs of a cluster: each begins a new one. Two concurrent ones have
// the same number and differ in By: of any two epochs one is the lower, and gives way.
type Epoch struct {
	N uint64 `json:"epoch"` // 1 is the cluster's first
	// By is the node that took over; empty in the first epoch.
	By NodeID `json:"epoch_by,omitempty"`
}

// Compare returns -1, 0 or +1 as e is below, equal to or above f.
func (e Epoch) Compare(f Epoch) int {
	return cmp.Or(cmp.Compare(e.N, f.N), cmp.Compare(e.By, f.By))
}

// Fence orders leaders: an order under a lower one is stale and refused. Two survivors of a
// forced recovery can have the same term, so the epoch, which each recovery raises, comes
// first.
type Fence struct {
	Epoch
	Term uint64 `json:"term"`
}

// Compare returns -1, 0 or +1 as f is below, equal to or above g.
func (f Fence) Compare(g Fence) int {
	return cmp.Or(f.Epoch.Compare(g.Epoch), cmp.Compare(f.Term, g.Term))
}

// Raise is the answer of a node that obeys f to a leader with fence next: the fence that it
// obeys from now on, or ErrStaleFence if it has seen a higher one.
func (f Fence) Raise(next Fence) (Fence, error) {
	if next.Compare(f) < 0 {
		return f, fmt.Errorf("fence %s: %w: this node has seen %s", next, ErrStaleFence, f)
	}
	return next, nil
}

// Admit refuses an order under any other fence than f, with ErrStaleFence: a higher one
// must be raised first.
func (f Fence) Admit(order Fence) error {
	if order.Compare(f) != 0 {
		return fmt.Errorf("fence %s: %w: this node obeys %s", order, ErrStaleFence, f)
	}
	return nil
}

func (f Fence) String() string { return fmt.Sprintf("%d.%d", f.N, f.Term) }

// Key names one attempt of one job; a node's ledger is keyed by it.
type Key struct {
	Job        JobID      `json:"job"`
	Generation Generation `json:"generation"`
}

func (k Key) String() string { return fmt.Sprintf("%s.%d", k.Job, k.Generation) }

// Errors with which a node answers orders.
var (
	ErrStaleFence      = errors.New("order of a leader that has been replaced")
	ErrStaleGeneration = errors.New("order for an older generation")
	ErrOtherBoot       = errors.New("order meant for an earlier boot of this node")
)

// Assignment is one node's part of a plan: everything that it needs to prepare its ranks,
// and nothing that it can find out better itself (its fabric environment).
type Assignment struct {
	Key
	Spec Spec `json:"spec"`

	Node NodeID `json:"node"`
	Host string `json:"host"`
	Boot string `json:"boot"` // the node's boot id when it was planned

	NodeRank  int `json:"node_rank"`
	NodeCount int `json:"node_count"`
	FirstRank int `json:"first_rank"`         // global rank of local rank 0
	Ranks     int `json:"ranks"`              // local world size
	Restarts  int `json:"restarts,omitempty"` // attempts of the main stage before this one
	World     int `json:"world"`

	Head netip.Addr `json:"head"` // rank 0's node, reached by all
	Addr netip.Addr `json:"addr"` // this node on the same network
	// Rest are all nodes but the head's, by node rank, on the same network.
	Rest    []netip.Addr `json:"rest,omitempty"`
	Network string       `json:"network"` // "fabric", "management" or "loopback"
	// Management is this node's address on the network that the cluster talks over; without
	// a cluster it is Addr.
	Management netip.Addr `json:"management,omitzero"`
	// HeadNode is rank 0's node.
	HeadNode NodeID `json:"head_node,omitempty"`
	// Meeting is what the fabric environment needs of the plan (an envgen.Entry as JSON).
	// The launcher passes it on unread.
	Meeting []byte `json:"meeting,omitempty"`
	// Members are the addresses of all nodes of the plan, on the management network and the
	// fabric. None: the leader is older than packet filters.
	Members []netip.Addr `json:"members,omitempty"`
	// Nodes are those nodes: an address that one of them gets later is let in, too. None:
	// the leader does not send them; then Members are all.
	Nodes []NodeID `json:"nodes,omitempty"`
}

// Placement gives the placement of one local rank; port is 0 before the start.
func (a Assignment) Placement(localRank, port int) Placement {
	_, _, placement := a.Local(localRank)
	placement.Port = port
	return placement
}

// Order is what a leader, or the CLI in standalone mode, sends a node. Exactly one of the
// pointers is set.
type Order struct {
	Fence   Fence       `json:"fence"`
	Prepare *Assignment `json:"prepare,omitempty"`
	Start   *Start      `json:"start,omitempty"`
	End     *End        `json:"end,omitempty"`
	Forget  *Key        `json:"forget,omitempty"`
	Probe   *AskReady   `json:"probe,omitempty"`
	Again   *Again      `json:"again,omitempty"`
}

// Start starts prepared ranks. Sent twice, it starts them once.
type Start struct {
	Key
	Port int `json:"port,omitempty"` // found free on the head in prepare
	// Lease is the stamp from which a job's lease counts: one of the node's own, after
	// which the leader has proven its leadership. 0: there is none.
	Lease Uptime `json:"lease,omitempty"`
	// Step is the step of the job to start; each has an order of its own.
	Step int `json:"step,omitempty"`
	// HeadPorts are the named ports that were found free on the head in prepare.
	HeadPorts map[string]Ports `json:"head_ports,omitempty"`
}

// AskReady makes a node run a step's probes until they pass, and report the result by
// Probed events. Sent twice, the node reports again what it knows.
type AskReady struct {
	Key
	Step      int              `json:"step"`
	HeadPorts map[string]Ports `json:"head_ports,omitempty"`
}

// Again starts a rank of a stage that is replaced again, after its exit and once nothing of
// it is left. Sent twice, it starts once.
type Again struct {
	Key
	Rank  int `json:"rank"`
	Again int `json:"again"` // its incarnations before this one
	Port  int `json:"port,omitempty"`
	// HeadPorts are as in Start.
	HeadPorts map[string]Ports `json:"head_ports,omitempty"`
}

// End ends an attempt's ranks on a node: TERM, grace, KILL. A later End may shorten the
// grace, never lengthen it; a zero grace kills at once.
type End struct {
	Key
	Grace  time.Duration `json:"grace"`
	Reason string        `json:"reason"` // for the node's log
	// Interrupt: INT comes first, and TERM within the grace.
	Interrupt bool `json:"interrupt,omitempty"`
}
