package wire

import (
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
)

// SealRequest brings a job's secrets to the agent of the machine where they were
// typed, and no further: over its socket, before the job is launched.
type SealRequest struct {
	Job     launcher.JobID `json:"job"`
	User    string         `json:"user,omitempty"` // as whom the ranks will run; empty: the caller
	Secrets []Plain        `json:"secrets"`
}

// Plain is a secret as it was given.
type Plain struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// String keeps the secret out of logs and errors.
func (p Plain) String() string { return "secret " + p.Name }

// GoString does so for %#v.
func (p Plain) GoString() string { return p.String() }

// String keeps the secrets out of logs and errors.
func (r SealRequest) String() string { return fmt.Sprintf("secrets of job %s", r.Job) }

// GoString does so for %#v.
func (r SealRequest) GoString() string { return r.String() }

// SealResponse has what the job's spec may carry.
type SealResponse struct {
	Secrets []launcher.SealedSecret `json:"secrets"`
}
