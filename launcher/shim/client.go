package shim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Key names the shim's attempt.
func (c *Client) Key() launcher.Key { return c.key }

// Dir is the shim's folder.
func (c *Client) Dir() string { return c.dir }

// Cgroup gives the ranks' group of cgroup v2, as a path in the mounted tree; the shim has
// made it by then. Empty: there is none, or the shim is older.
func (c *Client) Cgroup(ctx context.Context) (string, error) {
	resp, err := c.call(ctx, request{Op: opHello})
	if err != nil || resp.Hello == nil {
		return "", c.wrap("say hello to", err)
	}
	return resp.Hello.Cgroup, nil
}

// Start execs the ranks and returns once each was exec'd, or could not be: a failed exec is
// reported by an Exited event with Exit.Error. A second Start never execs anything again
// and returns nil, whatever ranks it names. ErrEnded: the attempt was ended first;
// ErrRefused: an output file or the journal could not be opened, nothing was exec'd, and
// Start may be called again.
func (c *Client) Start(ctx context.Context, ranks []Rank) error {
	op := opStart
	if hasContainer(ranks) {
		op = opContain
	}
	_, err := c.call(ctx, request{Op: op, Ranks: ranks})
	return c.wrap("start", err)
}

// StartMore is Start for ranks that may come after others of the attempt. A rank that was
// started before is skipped, so that a call without an answer may be repeated. ErrEnded:
// the attempt's end has begun. ErrUnknownOp: the shim is older.
func (c *Client) StartMore(ctx context.Context, ranks []Rank) error {
	op := opStartMore
	if hasContainer(ranks) {
		op = opContainMore
	}
	_, err := c.call(ctx, request{Op: op, Ranks: ranks})
	return c.wrap("start more of", err)
}

// Again starts ranks again that have exited, once nothing of them is left, and returns when
// each was exec'd, or could not be. Each rank's Again counts its incarnations before: a
// rank that has had this incarnation already is skipped. ErrRefused: it has not had those
// before. ErrEnded: the attempt's end has begun. ErrUnknownOp: the shim is older.
func (c *Client) Again(ctx context.Context, ranks []Rank) error {
	_, err := c.call(ctx, request{Op: opAgain, Ranks: ranks})
	return c.wrap("start again of", err)
}

// End begins the end and returns: TERM to every process of the attempt, KILL after grace (0
// or more) to what is left. The Ended event says when nothing is. A later End may shorten
// the grace, never lengthen it. Before Start it ends the attempt for good.
func (c *Client) End(ctx context.Context, grace time.Duration) error {
	_, err := c.call(ctx, request{Op: opEnd, Grace: grace})
	return c.wrap("end", err)
}

// Interrupt is End with INT first, as a terminal's Ctrl-C; TERM follows within the grace. A shim that is older sends
// TERM.
func (c *Client) Interrupt(ctx context.Context, grace time.Duration) error {
	_, err := c.call(ctx, request{Op: opEnd, Sig: syscall.SIGINT, Grace: grace})
	return c.wrap("interrupt", err)
}

// EndFor ends the attempt at once because the node has decided so: cause is in the exits of
// the ranks that run, and ByUs is not. An attempt that is being ended already only ends
// sooner.
func (c *Client) EndFor(ctx context.Context, cause string) error {
	_, err := c.call(ctx, request{Op: opEnd, Cause: cause})
	return c.wrap("end", err)
}

// Lease lets the attempt run until a moment of this machine's CLOCK_BOOTTIME: then the shim
// ends it with its own grace, and the exits have cause as after EndFor. A later moment
// renews the lease, an earlier one changes nothing. An attempt that never had a lease runs
// for ever. ErrRefused: the moment has passed, or the end has begun. ErrUnknownOp: the shim
// is older, and there is no lease.
func (c *Client) Lease(ctx context.Context, until launcher.Uptime, cause string) error {
	_, err := c.call(ctx, request{Op: opLease, Until: until, Cause: cause})
	return c.wrap("give a lease to", err)
}

// Signal sends a signal to the process group of a rank, or with AllRanks of every running
// rank. ErrNoRank: it is not running.
func (c *Client) Signal(ctx context.Context, rank int, sig syscall.Signal) error {
	_, err := c.call(ctx, request{Op: opSignal, Rank: &rank, Sig: sig})
	return c.wrap("signal", err)
}

// Input writes to a rank that was started with an input, and returns when all of it is in
// the rank's pipe: as soon as the rank reads. offset counts what was written before; what
// the rank has got already is skipped, so that a call without an answer may be repeated.
// end closes the input after data. ErrNoRank: the rank does not read any more.
func (c *Client) Input(ctx context.Context, rank int, offset int64, data []byte, end bool) error {
	_, err := c.call(ctx, request{Op: opInput, Rank: &rank, Offset: offset, Data: data, End: end})
	return c.wrap("write input of", err)
}

// InputAt gives the number of bytes of input that a rank has got: the offset with which
// another writer continues. ErrUnknownOp: the shim is older.
func (c *Client) InputAt(ctx context.Context, rank int) (int64, error) {
	resp, err := c.call(ctx, request{Op: opInputAt, Rank: &rank})
	if err == nil && resp.At == nil {
		err = errors.New("the answer has no offset")
	}
	if err != nil {
		return 0, c.wrap("ask for the input of", err)
	}
	return *resp.At, nil
}

// Resize sets the size of a rank's terminal, which sends the rank SIGWINCH.
func (c *Client) Resize(ctx context.Context, rank int, w launcher.Window) error {
	_, err := c.call(ctx, request{Op: opResize, Rank: &rank, Window: &w})
	return c.wrap("resize terminal of", err)
}

// Release lets the shim exit, once its record is kept elsewhere, and returns when it has.
// ErrRunning: the attempt has not ended. ErrGone: the shim has exited by itself.
func (c *Client) Release(ctx context.Context) error {
	conn, off, err := c.dial(ctx)
	if err != nil {
		return c.wrap("release", err)
	}
	defer conn.Close()
	defer off()
	in := bufio.NewReader(conn)
	if _, err := exchange(conn, in, request{Op: opRelease}); err != nil {
		return c.wrap("release", cut(ctx, err))
	}
	_, err = in.ReadByte() // nothing more comes: the kernel closes it at exit
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return c.wrap("release", cut(ctx, err))
	}
	if c.reaped != nil {
		select {
		case <-c.reaped:
		case <-ctx.Done():
			return c.wrap("release", context.Cause(ctx))
		}
	}
	return c.Close()
}

// Events calls fn with each event numbered from or higher, first the recorded ones, then
// each as it happens. It returns nil after Ended, fn's error, or ErrGone when the shim
// died: Replay has its journal.
func (c *Client) Events(ctx context.Context, from int, fn func(Event) error) error {
	conn, off, err := c.dial(ctx)
	if err != nil {
		return c.wrap("watch", err)
	}
	defer conn.Close()
	defer off()
	if err := writeLine(conn, request{V: protocolVersion, ID: 1, Op: opEvents, From: from}); err != nil {
		return c.wrap("watch", cut(ctx, err))
	}
	in := bufio.NewReader(conn)
	for {
		resp, err := readResponse(in)
		if err != nil {
			return c.wrap("watch", cut(ctx, err))
		}
		if resp.Event == nil {
			return nil
		}
		if err := fn(*resp.Event); err != nil {
			return err
		}
	}
}

// Close disconnects from the shim. With Config.DieWithClient that ends the attempt;
// otherwise the shim does not notice.
func (c *Client) Close() error {
	if c.held == nil {
		return nil
	}
	err := c.held.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (c *Client) hold(ctx context.Context) error {
	conn, off, err := c.dial(ctx)
	if err != nil {
		return c.wrap("hold", err)
	}
	if _, err := exchange(conn, bufio.NewReader(conn), request{Op: opHold}); err != nil || !off() {
		conn.Close()
		return c.wrap("hold", cut(ctx, err))
	}
	c.held = conn // outlives ctx, which was for the Spawn
	return nil
}

func (c *Client) call(ctx context.Context, req request) (response, error) {
	conn, off, err := c.dial(ctx)
	if err != nil {
		return response{}, err
	}
	defer conn.Close()
	defer off()
	resp, err := exchange(conn, bufio.NewReader(conn), req)
	return resp, cut(ctx, err)
}

// dial connects. The end of ctx closes the connection until off is called, which returns
// false if it was too late.
func (c *Client) dial(ctx context.Context) (conn net.Conn, off func() bool, err error) {
	err = atSocket(c.dir, func(path string) error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		return err
	})
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, nil, context.Cause(ctx)
	case errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil, ErrGone
	case err != nil:
		return nil, nil, err
	}
	return conn, context.AfterFunc(ctx, func() { conn.Close() }), nil
}

func exchange(conn net.Conn, in *bufio.Reader, req request) (response, error) {
	req.V, req.ID = protocolVersion, 1
	if err := writeLine(conn, req); err != nil {
		return response{}, err
	}
	return readResponse(in)
}

func readResponse(in *bufio.Reader) (response, error) {
	var resp response
	line, err := in.ReadBytes('\n')
	if err != nil {
		return resp, err
	}
	if err := json.Unmarshal(line, &resp); err != nil {
		return resp, fmt.Errorf("read answer: %w", err)
	}
	if resp.Error != nil {
		return resp, resp.Error.err()
	}
	return resp, nil
}

// cut explains a broken connection.
func cut(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w: it died before it answered", ErrGone)
	}
	return err
}

func (c *Client) wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s attempt %s: %w", verb, c.key, err)
}
