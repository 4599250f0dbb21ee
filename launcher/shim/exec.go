package shim

import (
	"bufio"
	"context"
	"syscall"

	"github.com/sparkrun/sparkrun/launcher"
)

// Exec is a command to run beside a rank: an exec session.
type Exec struct {
	// Session names it among those that run, for ExecInput and the like: 1 to 64 bytes,
	// chosen by the caller.
	Session string
	Rank    int // a running one, whose user, folder, environment, cgroup and limits it gets
	Argv    []string
	Env     []string         // NAME=VALUE, replacing the rank's
	Stdin   bool             // has an input; else an empty one
	TTY     *launcher.Window // a terminal for all three, input included
}

// Exec runs a command beside a rank and returns how it ended. began is called once it runs,
// then out with its output; an error of either ends it, as does the end of ctx: TERM, KILL
// after the attempt's grace. It ends with the attempt, too. An Exit with an Error never
// ran: its Code is 127 if the command was not found, else 126. ErrNoRank: that rank is not
// running. ErrUnknownOp: the shim is older.
func (c *Client) Exec(ctx context.Context, e Exec, began func() error,
	out func(launcher.Stream, []byte) error) (launcher.Exit, error) {
	conn, off, err := c.dial(ctx)
	if err != nil {
		return launcher.Exit{}, c.wrap("exec in", err)
	}
	defer conn.Close()
	defer off()
	req := request{V: protocolVersion, ID: 1, Op: opExec, Session: e.Session, Rank: &e.Rank, Argv: texts(e.Argv),
		Env: texts(e.Env), Stdin: e.Stdin, TTY: e.TTY}
	if err := writeLine(conn, req); err != nil {
		return launcher.Exit{}, c.wrap("exec in", cut(ctx, err))
	}
	in := bufio.NewReader(conn)
	for {
		resp, err := readResponse(in)
		switch {
		case err != nil:
			return launcher.Exit{}, c.wrap("exec in", cut(ctx, err))
		case resp.Began != nil:
			err = began()
		case resp.Output != nil:
			err = out(launcher.Stream(resp.Output.Stream), resp.Output.Data)
		case resp.Exit != nil:
			return *resp.Exit, nil
		default: // an ok without an exit
			err = ErrRequest
		}
		if err != nil {
			return launcher.Exit{}, err
		}
	}
}

// ExecInput writes to an exec session, as Input does to a rank.
func (c *Client) ExecInput(ctx context.Context, session string, offset int64, data []byte, end bool) error {
	_, err := c.call(ctx, request{Op: opExecInput, Session: session, Offset: offset, Data: data, End: end})
	return c.wrap("write input of an exec session of", err)
}

// ExecSignal sends a signal to an exec session's process group.
func (c *Client) ExecSignal(ctx context.Context, session string, sig syscall.Signal) error {
	_, err := c.call(ctx, request{Op: opExecSignal, Session: session, Sig: sig})
	return c.wrap("signal an exec session of", err)
}

// ExecResize sets the size of an exec session's terminal.
func (c *Client) ExecResize(ctx context.Context, session string, w launcher.Window) error {
	_, err := c.call(ctx, request{Op: opExecResize, Session: session, Window: &w})
	return c.wrap("resize terminal of an exec session of", err)
}
