package wire

import (
	"github.com/sparkrun/sparkrun/launcher"
)

// ExecRequest runs a command beside a job's rank, in the rank's environment, for as long
// as the call lasts: an exec session.
type ExecRequest struct {
	Job     string           `json:"job"`
	Rank    int              `json:"rank"`
	Session string           `json:"session"` // the caller's name for it, 1 to 64 bytes, for ExecReachRequest
	Argv    []string         `json:"argv"`
	Env     []string         `json:"env,omitempty"` // NAME=VALUE in place of what the rank has of that name
	Stdin   bool             `json:"stdin,omitempty"`
	TTY     *launcher.Window `json:"tty,omitempty"`
}

// NodeExecRequest is an ExecRequest for a rank on the called node.
type NodeExecRequest struct {
	Key     launcher.Key     `json:"key"`
	Rank    int              `json:"rank"`
	Session string           `json:"session"`
	Argv    []string         `json:"argv"`
	Env     []string         `json:"env,omitempty"`
	Stdin   bool             `json:"stdin,omitempty"`
	TTY     *launcher.Window `json:"tty,omitempty"`
}

// ExecChunk is one message about such a command: first Began, then Data of a Stream, last
// its Exit. One with an exec error never ran, and has no Began.
type ExecChunk struct {
	Began  launcher.JobID `json:"began,omitempty"` // it runs; the job's id
	Stream Stream         `json:"stream,omitempty"`
	Data   []byte         `json:"data,omitempty"`
	Exit   *launcher.Exit `json:"exit,omitempty"`
}

// ExecReachRequest passes a signal, or else input or a terminal's new size, to
// a command that an ExecRequest began.
type ExecReachRequest struct {
	Job     string `json:"job"`
	Rank    int    `json:"rank"`
	Session string `json:"session"`
	Signal  int    `json:"signal,omitempty"`
	Offset  int64  `json:"offset,omitempty"`
	Data    []byte `json:"data,omitempty"`
	End     bool   `json:"end,omitempty"`

	Window *launcher.Window `json:"window,omitempty"`
}

// NodeExecReachRequest is an ExecReachRequest for a command on the called node.
type NodeExecReachRequest struct {
	Key     launcher.Key `json:"key"`
	Session string       `json:"session"`
	Signal  int          `json:"signal,omitempty"`
	Offset  int64        `json:"offset,omitempty"`
	Data    []byte       `json:"data,omitempty"`
	End     bool         `json:"end,omitempty"`

	Window *launcher.Window `json:"window,omitempty"`
}
