package wire

import (
	"context"
	"net/http"

	"github.com/sparkrun/sparkrun/launcher"
)

// ExecRequest runs a command in the place of a job's rank, beside it, for as
// long as the call lasts.
type ExecRequest struct {
	Job   string           `json:"job"`
	Rank  int              `json:"rank"`
	Guest string           `json:"guest"` // the caller's name for it, 1 to 64 bytes, for ExecReachRequest
	Argv  []string         `json:"argv"`
	Env   []string         `json:"env,omitempty"` // NAME=VALUE in place of what the rank has of that name
	Stdin bool             `json:"stdin,omitempty"`
	TTY   *launcher.Window `json:"tty,omitempty"`
}

// NodeExecRequest is that for a rank of the node that is called.
type NodeExecRequest struct {
	Key   launcher.Key     `json:"key"`
	Rank  int              `json:"rank"`
	Guest string           `json:"guest"`
	Argv  []string         `json:"argv"`
	Env   []string         `json:"env,omitempty"`
	Stdin bool             `json:"stdin,omitempty"`
	TTY   *launcher.Window `json:"tty,omitempty"`
}

// ExecChunk is one thing about such a command: first Began, then Data of a
// Stream, last its Exit. One with an Error never ran, and did not begin.
type ExecChunk struct {
	Began  launcher.JobID `json:"began,omitempty"` // it runs; the job's id
	Stream Stream         `json:"stream,omitempty"`
	Data   []byte         `json:"data,omitempty"`
	Exit   *launcher.Exit `json:"exit,omitempty"`
}

// ExecReachRequest passes a signal, or else input or a terminal's new size, to
// a command that an ExecRequest began.
type ExecReachRequest struct {
	Job    string `json:"job"`
	Rank   int    `json:"rank"`
	Guest  string `json:"guest"`
	Signal int    `json:"signal,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Data   []byte `json:"data,omitempty"`
	End    bool   `json:"end,omitempty"`

	Window *launcher.Window `json:"window,omitempty"`
}

// NodeExecReachRequest is that for a command on the node that is called.
type NodeExecReachRequest struct {
	Key    launcher.Key `json:"key"`
	Guest  string       `json:"guest"`
	Signal int          `json:"signal,omitempty"`
	Offset int64        `json:"offset,omitempty"`
	Data   []byte       `json:"data,omitempty"`
	End    bool         `json:"end,omitempty"`

	Window *launcher.Window `json:"window,omitempty"`
}

func (h Cluster) mountExec(mux *http.ServeMux) {
	serverStream(mux, clusterPath+"Exec", allowUser, h.Exec)
	unary(mux, clusterPath+"ExecReach", allowUser, h.ExecReach)
}

func (h Node) mountExec(mux *http.ServeMux) {
	serverStream(mux, nodePath+"NodeExec", allowMember, h.NodeExec)
	unary(mux, nodePath+"NodeExecReach", allowMember, h.NodeExecReach)
}

// Exec runs a command in a rank's place. It ends when fn fails or ctx ends.
func (c *Client) Exec(ctx context.Context, r ExecRequest, fn func(ExecChunk) error) error {
	return receive(ctx, c, clusterPath+"Exec", r, fn)
}

// ExecReach reaches it. ErrNoReader: it has ended, or reads no more.
func (c *Client) ExecReach(ctx context.Context, r ExecReachRequest) error {
	_, err := call[ExecReachRequest, Empty](ctx, c, clusterPath+"ExecReach", r)
	return err
}

// NodeExec runs a command on the node that is called.
func (c *Client) NodeExec(ctx context.Context, r NodeExecRequest, fn func(ExecChunk) error) error {
	return receive(ctx, c, nodePath+"NodeExec", r, fn)
}

// NodeExecReach reaches one there.
func (c *Client) NodeExecReach(ctx context.Context, r NodeExecReachRequest) error {
	_, err := call[NodeExecReachRequest, Empty](ctx, c, nodePath+"NodeExecReach", r)
	return err
}
