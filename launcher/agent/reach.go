package agent

import (
	"context"
	"fmt"
	"syscall"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// InputChunk is a piece of a rank's standard input.
type InputChunk struct {
	Offset int64 // of its first byte, from the input's begin
	Data   []byte
	End    bool // nothing follows
	// Window is the terminal's new size, for a rank that has one.
	Window *launcher.Window
}

// Input writes to a local rank and returns once the rank's pipe has all of it,
// which takes as long as the rank doesn't read. A chunk may be sent again:
// what the rank has had is passed over. shim.ErrNoRank: nobody reads any more.
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

// InputAt tells how many bytes of input a local rank has had, for another
// writer to go on with. shim.ErrNoRank: nobody reads any more.
func (a *Agent) InputAt(ctx context.Context, k launcher.Key, rank int) (int64, error) {
	client, err := a.reach(ctx, k)
	if err != nil {
		return 0, err
	}
	return client.InputAt(ctx, rank)
}

// Signal passes a signal to the process group of a local rank, or with
// shim.Gang of each. TSTP becomes STOP: the kernel takes no TSTP to
// a session without a job-controlling shell (POSIX calls its groups orphaned).
func (a *Agent) Signal(ctx context.Context, k launcher.Key, rank int, sig syscall.Signal) error {
	client, err := a.reach(ctx, k)
	if err != nil {
		return err
	}
	if sig == syscall.SIGTSTP {
		sig = syscall.SIGSTOP
	}
	return client.Signal(ctx, rank, sig)
}

// reach finds the shim of a try that may have living ranks.
func (a *Agent) reach(ctx context.Context, k launcher.Key) (*shim.Client, error) {
	a.mu.Lock()
	t := a.tries[k]
	a.mu.Unlock()
	if t == nil || t.snapshot().Phase != launcher.PhaseStarted {
		return nil, fmt.Errorf("job %s: %w", k.Job, shim.ErrNoRank)
	}
	return shim.Attach(ctx, t.dir)
}
