package wire

import (
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
