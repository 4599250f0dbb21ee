package wire

import "github.com/sparkrun/sparkrun/launcher"

// DrainRequest keeps new ranks away from a machine, or, with Over, lets it have some again.
type DrainRequest struct {
	Host   string `json:"host"`
	Reason string `json:"reason,omitempty"`
	Over   bool   `json:"over,omitempty"`
	// Once: one reply with what has ranks there now; else one after every change, until nothing has.
	Once bool `json:"once,omitempty"`
}

// DrainProgress is what still has ranks on a machine that is drained.
type DrainProgress struct {
	Left  []DrainLeft `json:"left,omitempty"`
	Empty bool        `json:"empty"`
}

// DrainLeft is a job with ranks there. A service is being moved unless Stays says why not; any other job runs to its
// end.
type DrainLeft struct {
	Job     launcher.JobID `json:"job"`
	Name    string         `json:"name,omitempty"`
	User    string         `json:"user,omitempty"`
	Service bool           `json:"service,omitempty"`
	Stays   string         `json:"stays,omitempty"`
}

func (r DrainRequest) about() (string, bool) { return r.Host, true }
