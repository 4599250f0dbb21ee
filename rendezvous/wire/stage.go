package wire

import (
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync"
)

// StageRequest hands over what a job will bring along, before it is launched.
// Asked again, the answer is what is still missing.
type StageRequest struct {
	Job      launcher.JobID    `json:"job"`
	User     string            `json:"user,omitempty"` // as whom the ranks will run; empty: the caller
	Manifest filesync.Manifest `json:"manifest"`
	// Drop takes back what came of an earlier request: the job will not be launched.
	Drop bool `json:"drop,omitempty"`
}

// StageResponse names the node that took it, for the job's spec, and the
// contents that it has yet to be sent.
type StageResponse struct {
	Node    launcher.NodeID `json:"node"`
	Missing []string        `json:"missing,omitempty"`
}

// StageChunk is a piece of a content; pieces come in order.
type StageChunk struct {
	Job    launcher.JobID `json:"job"`
	User   string         `json:"user,omitempty"`
	Sum    string         `json:"sum"`
	Offset int64          `json:"offset,omitempty"`
	Data   []byte         `json:"data,omitempty"`
}

// NodeStageRequest asks the node that took a job's files: for the manifest, or
// for the content of a Sum. They are given for a job of that user only.
type NodeStageRequest struct {
	Job  launcher.JobID `json:"job"`
	User string         `json:"user"`
	Sum  string         `json:"sum,omitempty"`
}

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
