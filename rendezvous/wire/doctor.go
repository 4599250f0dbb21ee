package wire

import (
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
)

// DoctorRequest asks for everything that is wrong in the cluster. The user is the caller's, whatever Ask says.
type DoctorRequest struct {
	Ask doctor.Ask `json:"ask"`
	// Fix first does the few things that are safe to do, see doctor.Mend.
	Fix bool `json:"fix,omitempty"`
	// Node is a host name: only problems there are reported and repaired. Empty means all.
	Node string `json:"node,omitempty"`
}

// DoctorResponse is what was found, worst first.
type DoctorResponse struct {
	Self     string           `json:"self"` // the host that asked the others
	Nodes    []DoctorNode     `json:"nodes"`
	Findings []envgen.Finding `json:"findings"`
	// Mended is what Fix did or attempted, in that order. The findings are from after it.
	Mended []Mended `json:"mended,omitempty"`
}

// DoctorNode is one node that was examined, or was not.
type DoctorNode struct {
	ID    launcher.NodeID `json:"id"`
	Host  string          `json:"host"`
	State string          `json:"state"`
	Error string          `json:"error,omitempty"` // why nothing was learnt of it
	Facts *doctor.Facts   `json:"facts,omitempty"`
}

// ExamineRequest asks a node for its facts, or to run its part of the checks, or both.
type ExamineRequest struct {
	Facts  *doctor.Ask    `json:"facts,omitempty"`
	Orders *doctor.Orders `json:"orders,omitempty"`
}

// ExamineResponse answers what was asked. The two times are the node's own clock, for the caller to compare with
// its own.
type ExamineResponse struct {
	Facts     *doctor.Facts    `json:"facts,omitempty"`
	Inventory envgen.Inventory `json:"inventory"`
	// Counters are what the node's devices counted recently.
	Counters []envgen.Counters `json:"counters,omitempty"`
	Report   *doctor.Report    `json:"report,omitempty"`
	Received time.Time         `json:"received"`
	Sent     time.Time         `json:"sent"`
}

// MendRequest asks a node for repairs, in order. It comes on behalf of a user, who must be root.
type MendRequest struct {
	Mends []doctor.Mend `json:"mends"`
}

// MendResponse reports each repair.
type MendResponse struct {
	Mended []Mended `json:"mended"`
}

// Mended is what was done, as the command that would have done it.
type Mended struct {
	Host    string      `json:"host"`
	Mend    doctor.Mend `json:"mend"`
	Command string      `json:"command"`
	Error   string      `json:"error,omitempty"`
}

// Evidence is one file of a report: what a node read and knows, without secrets. Host is
// empty if it is about the whole cluster.
type Evidence struct {
	Node launcher.NodeID `json:"node,omitempty"`
	Host string          `json:"host,omitempty"`
	// Path is relative to the node's part, with slashes.
	Path string `json:"path,omitempty"`
	Data []byte `json:"data,omitempty"`
	// Missing says, in place of a file, why a node gave nothing or not all.
	Missing string `json:"missing,omitempty"`
}

// LoadRequest asks for a short load on machines, side by side, with the rights of the user who asks.
type LoadRequest struct {
	For time.Duration `json:"for_ns"` // load.Least to load.Most
	// Node is a host name; empty means all.
	Node string `json:"node,omitempty"`
	// Path is the user's PATH, where python3 is looked for; empty means the machine's own.
	Path string `json:"path,omitempty"`
}

func (r *LoadRequest) about() (on string, does bool) { return r.Node, true }

// LoadResponse is what each machine reached, and what is to be found in that.
type LoadResponse struct {
	Self     string           `json:"self"`
	Nodes    []doctor.Load    `json:"nodes"`
	Findings []envgen.Finding `json:"findings"`
}
