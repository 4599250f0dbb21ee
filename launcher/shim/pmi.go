package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// mpiRank is a rank's side of PMI, as the loop sees it.
type mpiRank struct {
	session *mpi.Session
	silent  bool // the session is over
	// verdict is its exit, whatever waitpid says: it has called MPI_Abort, or sent invalid
	// input, and was killed for it.
	verdict *launcher.Exit
	told    time.Time // when it did that
}

// heard reports whether all that a rank has sent was read: its last command may be read
// after waitpid has reported its end.
func (m *mpiRank) heard() bool { return m.session == nil || m.silent || m.session.Finished() }

// layPMI makes the connection between a rank and its process manager (pmi-1.1.txt: a
// connected socket whose number is in PMI_FD).
func (p *plumbing) layPMI() error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a rank's socket: %w", err)
	}
	p.theirs = &ends[1]
	if err := unix.SetNonblock(ends[0], true); err != nil {
		unix.Close(ends[0])
		return fmt.Errorf("make a rank's socket: %w", err)
	}
	p.pmi = os.NewFile(uintptr(ends[0]), "pmi")
	return nil
}

// withPMI gives a process that descriptor, and its number in PMI_FD.
func withPMI(attr *syscall.ProcAttr, end *int) {
	if end == nil {
		return
	}
	attr.Env = with(attr.Env, []string{"PMI_FD=" + strconv.Itoa(len(attr.Files))})
	attr.Files = append(attr.Files, uintptr(*end))
}

// openSpace makes the key-value space of ranks that have a process manager.
func (a *attempt) openSpace(ranks []Rank) {
	if p := ranks[0].PMI; p != nil {
		a.space = mpi.NewSpace("sparkrun-"+a.cfg.Key.String(), p.Mapping, p.Size, len(ranks))
	}
}

// serveMPI answers a rank until it closes the connection.
func (a *attempt) serveMPI(r *rank) {
	if r.pmi == nil || a.space == nil {
		return
	}
	r.mpi.session = a.space.NewSession()
	session, conn := r.mpi.session, r.pmi
	go func() { // ends with the rank's end of the socket, or the space
		defer conn.Close()
		err := session.Serve(conn)
		at := time.Now()
		select {
		case a.in <- func() { r.mpi.silent = true; a.condemn(r, err, at) }:
		case <-a.gone:
		}
	}()
}

// hangUp closes the socket of a rank that is gone, while another process still holds its
// end.
func (r *rank) hangUp() {
	if r.pmi != nil {
		r.pmi.Close()
	}
}

// condemn ends a rank that has called MPI_Abort, or sent invalid input. What it wrote
// before it called MPI_Abort is in its pipes by then. It may have exited already.
func (a *attempt) condemn(r *rank, err error, at time.Time) {
	if err == nil || errors.Is(err, mpi.ErrClosed) || r.told {
		return
	}
	r.mpi.verdict, r.mpi.told = &launcher.Exit{Code: 1, Cause: err.Error()}, at
	if abort := new(mpi.AbortError); errors.As(err, &abort) {
		r.mpi.verdict.Code, r.mpi.verdict.Deliberate = abort.Status(), true
	}
	a.log.Info("end a rank", "rank", r.Rank.Rank, "reason", err.Error())
	if r.running() {
		_ = unix.Kill(-r.pid, unix.SIGKILL)
	}
}

// evaluate gives the exit of an MPI rank, once all that it sent was read; end is when the
// attempt's end began, or zero. Exit 0 between MPI_Init and MPI_Finalize is a failure: the
// others wait for it.
func (m *mpiRank) evaluate(exit *launcher.Exit, end time.Time) *launcher.Exit {
	switch {
	case m.verdict != nil && (end.IsZero() || m.told.Before(end) || !exit.ByUs &&
		exit.Cause == ""): // dead before the end, and read later
		return m.verdict
	case exit.ByUs || exit.Cause != "" || exit.Error != "" || exit.Signal != 0 || m.session == nil ||
		!m.session.Unfinished():
		return exit
	case exit.Code == 0:
		return &launcher.Exit{Code: 1, Cause: "it exited with 0 before MPI_Finalize", Deliberate: true}
	}
	return &launcher.Exit{Code: exit.Code, Deliberate: true}
}

// barrier is the part that spans nodes: the agent carries what ranks have put to the other
// nodes' shims, and back.
func (s *server) barrier(c net.Conn, req request, resp *response) error {
	var space *mpi.Space
	if err := s.g.do(func(answer func(error)) {
		if space = s.g.space; space == nil {
			answer(fmt.Errorf("%w: its ranks are not MPI ranks, or not started", ErrRefused))
			return
		}
		answer(nil)
	}); err != nil {
		return err
	}
	switch req.Op {
	case opBarrierLast:
		f := space.Last()
		resp.Barrier = &f
		return nil
	case opBarrierPass:
		return space.Pass(*req.Barrier)
	}
	ctx, left := context.WithCancelCause(context.Background())
	go func() { // ends with the connection, which serve closes
		_, _ = c.Read(make([]byte, 1))
		left(net.ErrClosed)
	}()
	f, err := space.Next(ctx, 0)
	if errors.Is(err, mpi.ErrClosed) {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	resp.Barrier = &f
	return err
}

// Barrier waits until every rank of this attempt is in its next MPI barrier, and returns
// what they have put before it. ErrEnded: there will be none.
func (c *Client) Barrier(ctx context.Context) (mpi.Barrier, error) {
	return c.barrier(ctx, request{Op: opBarrier}, "wait for a barrier of")
}

// LastBarrier gives the last barrier that is over, with its result; its number is 0 if
// there was none.
func (c *Client) LastBarrier(ctx context.Context) (mpi.Barrier, error) {
	return c.barrier(ctx, request{Op: opBarrierLast}, "ask for a barrier of")
}

func (c *Client) barrier(ctx context.Context, req request, verb string) (mpi.Barrier, error) {
	resp, err := c.call(ctx, req)
	switch {
	case err != nil:
		return mpi.Barrier{}, c.wrap(verb, err)
	case resp.Barrier == nil:
		return mpi.Barrier{}, c.wrap(verb, fmt.Errorf("%w: an empty answer", ErrRefused))
	}
	return *resp.Barrier, nil
}

// PassBarrier ends a barrier that the ranks of all nodes are in. One that is over does not
// change.
func (c *Client) PassBarrier(ctx context.Context, f mpi.Barrier) error {
	_, err := c.call(ctx, request{Op: opBarrierPass, Barrier: &f})
	return c.wrap("pass a barrier of", err)
}
