package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// InputChunk is a piece of a rank's standard input.
type InputChunk struct {
	Offset int64 // of its first byte, from the start of the input
	Data   []byte
	End    bool // nothing follows
	// Window is the terminal's new size, for a rank that has one.
	Window *launcher.Window
}

// Input writes to a local rank and returns once the rank's pipe has all of it, so it blocks
// while the rank does not read. A chunk may be sent again: what the rank has got is
// skipped. shim.ErrNoRank: the rank does not read any more.
func (a *Agent) Input(ctx context.Context, k launcher.Key, rank int, c InputChunk) error {
	client, err := a.reach(ctx, k)
	if err != nil {
		return err
	}
	if c.Window != nil {
		if err := client.Resize(ctx, rank, *c.Window); err != nil {
			return err
		}
	}
	if len(c.Data) == 0 && !c.End {
		return nil
	}
	return client.Input(ctx, rank, c.Offset, c.Data, c.End)
}

// InputAt gives the number of bytes of input that a local rank has got, so that another
// writer can go on. shim.ErrNoRank: the rank does not read any more.
func (a *Agent) InputAt(ctx context.Context, k launcher.Key, rank int) (int64, error) {
	client, err := a.reach(ctx, k)
	if err != nil {
		return 0, err
	}
	return client.InputAt(ctx, rank)
}

// ErrPreparing: the attempt is still being prepared, so that nothing can keep a signal for its ranks.
var ErrPreparing = errors.New("its ranks are still being prepared")

// Signal sends a signal to the process group of a local rank, or of each with
// shim.AllRanks. TSTP becomes STOP: the kernel drops TSTP in a session without a
// job-controlling shell (POSIX calls its groups orphaned).
func (a *Agent) Signal(ctx context.Context, k launcher.Key, rank int, sig syscall.Signal) error {
	if t := a.attempt(k); t != nil && t.snapshot().Phase == launcher.PhaseNone {
		return fmt.Errorf("job %s: %w", k.Job, ErrPreparing)
	}
	client, err := a.reach(ctx, k)
	if err != nil {
		return err
	}
	if sig == syscall.SIGTSTP {
		sig = syscall.SIGSTOP
	}
	if err := client.Signal(ctx, rank, sig); err != nil {
		return err
	}
	if sig == syscall.SIGSTOP || sig == syscall.SIGCONT {
		a.suspended(k, sig == syscall.SIGSTOP)
	}
	return nil
}

// suspended notes that ranks of an attempt were stopped or woken, and reports it once.
func (a *Agent) suspended(k launcher.Key, now bool) {
	a.mu.Lock()
	t := a.attempts[k]
	a.mu.Unlock()
	if t == nil || t.snapshot().Suspended == now {
		return
	}
	ev := launcher.Event{Kind: launcher.Suspended, Time: time.Now()}
	if now {
		ev.Text = "stopped by a signal"
	}
	t.change(&ev, func(e *launcher.LedgerEntry) { e.Suspended = now })
}

// reach finds the shim of an attempt that may have running ranks. An attempt that is only
// prepared has none yet, and its shim keeps signals for them.
func (a *Agent) reach(ctx context.Context, k launcher.Key) (*shim.Client, error) {
	a.mu.Lock()
	t := a.attempts[k]
	a.mu.Unlock()
	if t != nil {
		switch t.snapshot().Phase {
		case launcher.PhasePrepared, launcher.PhaseStarted:
			return shim.Attach(ctx, t.dir)
		}
	}
	return nil, fmt.Errorf("job %s: %w", k.Job, shim.ErrNoRank)
}

// Exec runs a command beside a local rank, which must be running, until the command, ctx or
// the attempt ends: see shim.Client.Exec. Its failures are not written to the rank's error
// file.
func (a *Agent) Exec(ctx context.Context, k launcher.Key, e shim.Exec, began func() error,
	out func(launcher.Stream, []byte) error) (launcher.Exit, error) {
	client, err := a.reach(ctx, k)
	if err == nil {
		e.Env = append(slices.Clone(e.Env), "TORCHELASTIC_ERROR_FILE=")
		var exit launcher.Exit
		if exit, err = client.Exec(ctx, e, began, out); err == nil {
			return exit, nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return launcher.Exit{}, ctx.Err()
	case errors.Is(err, shim.ErrUnknownOp):
		return launcher.Exit{}, fmt.Errorf("job %s was started by an older sparkrun, which cannot run commands beside "+
			"its ranks: launch it again: %w", k.Job, err)
	case errors.Is(err, shim.ErrNoRank):
		return launcher.Exit{}, fmt.Errorf("rank %d of job %s %s: `sparkrun logs %[2]s --rank %[1]d` has its output",
			e.Rank, k.Job, a.stateOf(k, e.Rank))
	}
	return launcher.Exit{}, err
}

// stateOf says why a rank does not run.
func (a *Agent) stateOf(k launcher.Key, rank int) string {
	a.mu.Lock()
	t := a.attempts[k]
	a.mu.Unlock()
	if t == nil {
		return "is not here any more"
	}
	e := t.snapshot()
	for _, r := range e.Ranks {
		if r.Rank == rank && r.State == launcher.RankEnded && r.Exit != nil {
			return "has ended: " + r.Exit.String()
		}
	}
	if e.Phase < launcher.PhaseStarted {
		return "has not been started yet"
	}
	return "is ending"
}

// ReachSession does for an exec session what Input and Signal do for a rank.
func (a *Agent) ReachSession(ctx context.Context, k launcher.Key, session string, sig syscall.Signal,
	c InputChunk) error {
	client, err := a.reach(ctx, k)
	switch {
	case err != nil:
		return err
	case sig == syscall.SIGTSTP:
		return client.ExecSignal(ctx, session, syscall.SIGSTOP)
	case sig != 0:
		return client.ExecSignal(ctx, session, sig)
	case c.Window != nil:
		return client.ExecResize(ctx, session, *c.Window)
	}
	return client.ExecInput(ctx, session, c.Offset, c.Data, c.End)
}
