package wire

import (
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// NetplanRequest asks what the fabric's addresses shall be.
type NetplanRequest struct {
	// Compare asks every node what its files say now and what would change; its
	// answers tell of files that only root may read.
	Compare bool `json:"compare,omitempty"`
	// Rollback asks for what undoing the last change would do instead.
	Rollback bool `json:"rollback,omitempty"`
	Force    bool `json:"force,omitempty"`
}

// NetplanPlan is what each node's file shall be.
type NetplanPlan struct {
	// Why says how the nodes are cabled; of a rollback, which change it undoes.
	Why string `json:"why"`
	// Digest stands for all that is below: an apply names the one that was agreed to.
	Digest string `json:"digest"`
	// Notes are sentences on what could not be planned, or has to move.
	Notes []string      `json:"notes,omitempty"`
	Nodes []NetplanNode `json:"nodes"`
}

// NetplanNode is one node's part of a plan.
type NetplanNode struct {
	Node launcher.NodeID `json:"node"`
	Host string          `json:"host"`
	// Text is the file's content; nil takes the file away.
	Text *string `json:"text"`
	// Verdict is the node's own; nil where it was not asked.
	Verdict *NetplanVerdict `json:"verdict,omitempty"`
}

// NetplanVerdict is what a node says of an order before anything is touched.
type NetplanVerdict struct {
	// Unchanged: the file is as ordered already.
	Unchanged bool   `json:"unchanged,omitempty"`
	Diff      string `json:"diff,omitempty"` // as diff -u
	// Changes are sentences, by interface; Mentions are other files that name
	// the same interfaces.
	Changes  []string         `json:"changes,omitempty"`
	Mentions []NetplanMention `json:"mentions,omitempty"`
	// Refusal says why the node would not do it; empty where it would.
	Refusal string `json:"refusal,omitempty"`
}

// NetplanMention is another netplan file that names one of the interfaces.
type NetplanMention struct {
	Text string `json:"text"`
	// Blocks: the interface would not become what our file says.
	Blocks bool `json:"blocks,omitempty"`
}

// NetplanApplyRequest puts a plan in force on all nodes, or on none.
type NetplanApplyRequest struct {
	Rollback bool `json:"rollback,omitempty"`
	Force    bool `json:"force,omitempty"`
	// Digest is the plan's that was agreed to; another one is refused.
	Digest string `json:"digest"`
	// Grace is how long peers have to answer; 0 means 30 s.
	Grace time.Duration `json:"grace,omitempty"`
}

// NetplanProgress is one node's next step, told while the change goes on.
type NetplanProgress struct {
	Host string `json:"host"`
	NetplanStep
}

// NetplanStep is how far a node got.
type NetplanStep struct {
	// State is in the words of envgen/netplan: applied, reached, committed,
	// rolled back, ...
	State string `json:"state"`
	// Error is why it went no further.
	Error string `json:"error,omitempty"`
}

// NetplanFacts are what a node knows of its addresses.
type NetplanFacts struct {
	// Held are the addresses of its interfaces: by its netplan files, or by the
	// kernel where no file names them. The files themselves stay where they
	// are: those of Wi-Fi hold passwords.
	Held []NetplanHeld `json:"held,omitempty"`
	// Change names the last change that was committed there, and Begun its time;
	// empty where there was none.
	Change string    `json:"change,omitempty"`
	Begun  time.Time `json:"begun"`
}

// NetplanHeld are the addresses of one interface.
type NetplanHeld struct {
	NIC       string         `json:"nic"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// NetplanOrder is one node's part of a change.
type NetplanOrder struct {
	Change string `json:"change"`
	// Undo orders what was there before the node's last change; Text and Peers
	// say nothing then.
	Undo  bool          `json:"undo,omitempty"`
	Text  *string       `json:"text"`
	Peers []NetplanPeer `json:"peers,omitempty"`
	Force bool          `json:"force,omitempty"`
	Grace time.Duration `json:"grace,omitempty"`
}

// NetplanPeer is who must answer once all have applied.
type NetplanPeer struct {
	Host string     `json:"host"`
	NIC  string     `json:"nic"` // of the node that asks
	Addr netip.Addr `json:"addr"`
}

// NetplanDecision ends a node's wait for the others.
type NetplanDecision struct {
	Change string `json:"change"`
	// All is the state that every node has got to, applied or reached: go on.
	// Empty means back, and Why why.
	All string `json:"all,omitempty"`
	Why string `json:"why,omitempty"`
}
