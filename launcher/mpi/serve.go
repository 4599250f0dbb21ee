package mpi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/sparkrun/sparkrun/launcher"
)

// AbortError is a rank's request to end the job: MPI_Abort.
type AbortError struct{ Code int }

func (a *AbortError) Error() string { return fmt.Sprintf("MPI_Abort with code %d", a.Code) }

// Session is one rank's side of PMI-1.
type Session struct {
	space *Space
	state atomic.Int32
}

const (
	strange   int32 = iota // init has not come yet
	inited                 // MPI_Init has begun
	finalized              // MPI_Finalize is through
)

// NewSession is for one rank of the space's node.
func (s *Space) NewSession() *Session { return &Session{space: s} }

// Finished reports whether the rank has ended MPI: it sends nothing more.
func (c *Session) Finished() bool { return c.state.Load() == finalized }

// Unfinished reports whether the rank has begun MPI and not finished it: if it exits so,
// the others wait for it.
func (c *Session) Unfinished() bool { return c.state.Load() == inited }

// Serve answers one rank until it closes the connection; then it returns nil. An
// *AbortError is the rank's request to end the job, an ErrMalformed invalid input,
// ErrClosed the end of the space. The caller closes conn afterwards, as one read may still
// be waiting.
func (c *Session) Serve(conn io.ReadWriter) error {
	in := bufio.NewReaderSize(conn, maxLine)
	next := hear(in)
	for {
		m, err := next.m, next.err
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if m.cmd == "barrier_in" && c.Unfinished() {
			if next, err = c.barrier(in, conn); err != nil {
				return err
			}
			continue
		}
		answer, err := c.answer(m)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(conn, answer+"\n"); err != nil {
			return nil //nolint:nilerr // it is gone; waitpid says how
		}
		next = hear(in)
	}
}

// said is one command of a rank; io.EOF: it has closed the connection.
type said struct {
	m   message
	err error
}

func hear(in *bufio.Reader) said {
	line, err := in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return said{err: fmt.Errorf("%w: a line of more than %d bytes", ErrMalformed, maxLine)}
	case err != nil && len(line) > 0:
		return said{err: fmt.Errorf("%w: %.80q: the connection ended within a line", ErrMalformed, line)}
	case err != nil: // end of file, or a connection that the rank's end has broken: waitpid says how the rank ended
		return said{err: io.EOF}
	}
	m, err := parse(strings.TrimSuffix(string(line), "\n"))
	if err != nil {
		return said{err: err}
	}
	if _, many := m.args["mcmd"]; many {
		err = skipSpawn(in)
	}
	return said{m, err}
}

// errLeft: a rank has closed its connection in a barrier, or sent a command that does not
// wait for its end.
var errLeft = errors.New("the rank has left the barrier")

// barrier makes the rank wait in a barrier, and returns the rank's next command. A rank
// that dies there, or in which another thread calls MPI_Abort, is noticed at once.
func (c *Session) barrier(in *bufio.Reader, conn io.Writer) (said, error) {
	ctx, leave := context.WithCancelCause(context.Background())
	defer leave(nil)
	next := make(chan said, 1)
	go func() { // ends with conn, of which this is the next read
		s := hear(in)
		if s.err != nil || s.m.cmd == "abort" {
			leave(errLeft)
		}
		next <- s
	}()
	switch err := c.space.enter(ctx); {
	case err == errLeft:
	case err != nil:
		return said{}, err
	default:
		if _, err := io.WriteString(conn, "cmd=barrier_out\n"); err != nil {
			return said{err: io.EOF}, nil //nolint:nilerr // as in Serve
		}
	}
	return <-next, nil
}

// skipSpawn reads the rest of an mcmd, which may contain anything.
func skipSpawn(in *bufio.Reader) error {
	for range maxSpawn {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("%w: an mcmd without an end", ErrMalformed)
		}
		if string(line) == "endcmd\n" {
			return nil
		}
	}
	return fmt.Errorf("%w: an mcmd of more than %d lines", ErrMalformed, maxSpawn)
}

// answer handles one command. The answers are those of Hydra 4.0.2.
func (c *Session) answer(m message) (string, error) {
	switch state := c.state.Load(); {
	case m.cmd == "abort": // at any time
		return "", c.abort(m)
	case m.cmd == "init" && state == strange:
		if m.args["pmi_version"] != "1" {
			return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1", nil
		}
		c.state.Store(inited)
		return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0", nil
	case state == strange:
		return "", fmt.Errorf("%w: %.80s before init", ErrMalformed, m.cmd)
	case state == finalized || m.cmd == "init":
		return "", fmt.Errorf("%w: %.80s after init and finalize: a rank is one MPI program", ErrMalformed, m.cmd)
	}
	switch m.cmd {
	case "get_maxes":
		return fmt.Sprintf("cmd=maxes kvsname_max=%d keylen_max=%d vallen_max=%d", MaxName, MaxKey, MaxValue), nil
	case "get_appnum":
		return "cmd=appnum appnum=0", nil
	case "get_my_kvsname":
		return "cmd=my_kvsname kvsname=" + c.space.name, nil
	case "get_universe_size":
		return fmt.Sprintf("cmd=universe_size size=%d", c.space.size), nil
	case "put":
		return c.put(m)
	case "get":
		return c.get(m)
	case "finalize":
		c.state.Store(finalized)
		return "cmd=finalize_ack", nil
	case "publish_name", "unpublish_name", "lookup_name":
		return fmt.Sprintf("cmd=%s_result rc=-1 msg=not_supported", strings.TrimSuffix(m.cmd, "_name")), nil
	case "spawn": // a job has only the ranks that it was placed with
		return "cmd=spawn_result rc=-1", nil
	}
	return "", fmt.Errorf("%w: command %.80q is not of PMI-1", ErrMalformed, m.cmd)
}

// abort takes as much of the code as an exit code can hold. Code 0 would mean success: it
// becomes 1.
func (c *Session) abort(m message) error {
	code, err := strconv.Atoi(m.args["exitcode"])
	if err != nil {
		return fmt.Errorf("%w: abort with code %.80q", ErrMalformed, m.args["exitcode"])
	}
	return &AbortError{code}
}

// Status is the abort as an exit code: its low byte, or 1 where that would be 0.
func (a *AbortError) Status() int {
	if low := a.Code & 0xff; low != 0 {
		return low
	}
	return 1
}

func (c *Session) put(m message) (string, error) {
	if m.args["kvsname"] != c.space.name {
		return "cmd=put_result rc=-1 msg=no_such_kvs", nil
	}
	value, given := m.args["value"]
	if !given {
		return "", fmt.Errorf("%w: put without a value", ErrMalformed)
	}
	switch err := c.space.put(launcher.Pair{Key: m.args["key"], Value: value}); {
	case errors.Is(err, ErrMalformed):
		return "", err
	case err != nil:
		return "cmd=put_result rc=-1 msg=duplicate_key", nil //nolint:nilerr // the rank is told
	}
	return "cmd=put_result rc=0 msg=success", nil
}

func (c *Session) get(m message) (string, error) {
	if m.args["kvsname"] != c.space.name {
		return "cmd=get_result rc=-1 msg=no_such_kvs value=unknown", nil
	}
	value, ok := c.space.get(m.args["key"])
	if !ok {
		return "cmd=get_result rc=-1 msg=key_not_found value=unknown", nil
	}
	return "cmd=get_result rc=0 msg=success value=" + value, nil
}
