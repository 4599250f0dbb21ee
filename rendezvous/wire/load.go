package wire

import (
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
)

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
