package wire

import (
	"errors"

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

// ErrNoReader: the rank has ended or no longer reads its input.
var ErrNoReader = errors.New("no such rank is running, or it reads no more")

// InputRequest is a piece of a job's standard input, for the ranks that its spec names.
// If it is sent twice it is written once. With a Window it is the new size of such a
// rank's terminal instead of input.
type InputRequest struct {
	Job    string `json:"job"`
	Ranks  []int  `json:"ranks,omitempty"` // of those, only these; empty = all
	Offset int64  `json:"offset"`          // of the first byte of Data, from the input's begin
	Data   []byte `json:"data,omitempty"`
	End    bool   `json:"end,omitempty"` // nothing follows

	Window *launcher.Window `json:"window,omitempty"`
}

// InputAtRequest asks where the input of a rank goes on, for another writer
// than the one before.
type InputAtRequest struct {
	Job  string `json:"job"`
	Rank int    `json:"rank"`
}

// NodeInputAtRequest is that for a rank of the node that is called.
type NodeInputAtRequest struct {
	Key  launcher.Key `json:"key"`
	Rank int          `json:"rank"`
}

// InputAtResponse is the Offset of the next InputRequest.
type InputAtResponse struct {
	Offset int64 `json:"offset"`
}

// SignalRequest passes a signal to ranks of a job; no Ranks means all.
type SignalRequest struct {
	Job    string `json:"job"`
	Ranks  []int  `json:"ranks,omitempty"`
	Signal int    `json:"signal"`
}

// NodeReachRequest is one rank's part of these requests: a Signal, or else input.
type NodeReachRequest struct {
	Key    launcher.Key `json:"key"`
	Rank   int          `json:"rank"`
	Signal int          `json:"signal,omitempty"`
	Offset int64        `json:"offset,omitempty"`
	Data   []byte       `json:"data,omitempty"`
	End    bool         `json:"end,omitempty"`

	Window *launcher.Window `json:"window,omitempty"`
}
