package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
)

const (
	sweepAgain = 15 * time.Second // where nobody could say, or the engine did not answer
	sweepWait  = 30 * time.Second // for one look
)

// sweptPath is there once this node has had containers: an engine that nobody has asked for
// one is not woken.
func (a *Agent) sweptPath() string { return filepath.Join(a.cfg.StateDir, "containers") }

func (a *Agent) hasHadBoxes() bool {
	_, err := os.Stat(a.sweptPath())
	return err == nil
}

// noteBoxes says that there may be containers from now on.
func (a *Agent) noteBoxes() error {
	if a.cfg.StateDir == "" || a.hasHadBoxes() {
		return nil
	}
	return os.WriteFile(a.sweptPath(), nil, 0o600)
}

// Sweep removes containers that were left here, from now on. It is called once, when
// Containers.Over can be asked.
func (a *Agent) Sweep() {
	if a.cfg.Containers == nil || a.cfg.Containers.Over == nil || a.cfg.StateDir == "" {
		return
	}
	a.loops.Go(func() { a.sweeps(a.ctx) })
	a.sweepSoon()
}

// sweepSoon has containers looked for that no shim has removed.
func (a *Agent) sweepSoon() {
	select {
	case a.sweepNow <- struct{}{}:
	default:
	}
}

// sweeps looks for what is left whenever it is told to, and again until nothing is undecided.
func (a *Agent) sweeps(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-a.sweepNow:
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		if left, err := a.sweep(ctx); err != nil || left > 0 {
			if err != nil && ctx.Err() == nil {
				a.cfg.Logger.Warn("sweep containers", "left", left, "error", err)
			}
			again = time.After(sweepAgain)
		}
	}
}

// sweep removes this node's containers whose try has ended: not in the ledger here, where its shim
// sees to them, and over by the record. left counts those that nobody could decide on.
func (a *Agent) sweep(ctx context.Context) (left int, err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepWait)
	defer cancel()
	if !a.hasHadBoxes() {
		return 0, nil
	}
	e, err := container.Open(ctx, a.cfg.Containers.Socket)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	all, err := e.List(ctx, a.labels())
	if err != nil {
		return 0, err
	}
	for _, c := range all {
		key, kerr := keyOfLabels(c.Labels)
		if kerr != nil {
			a.cfg.Logger.Error("sweep containers", "container", c.Name, "error", kerr)
			continue
		}
		if a.knows(key) {
			continue // adopted: its shim has it
		}
		over, oerr := a.cfg.Containers.Over(ctx, key)
		if oerr != nil || !over {
			left, err = left+1, oerr
			continue
		}
		if a.knows(key) { // it came while the record was asked
			continue
		}
		a.cfg.Logger.Info("remove a container that was left", "container", c.Name, "job", key.Job, "running", c.Running)
		if rerr := e.Remove(ctx, c.ID); rerr != nil {
			left, err = left+1, rerr
		}
	}
	return left, err
}

func keyOfLabels(l map[string]string) (launcher.Key, error) {
	gen, err := strconv.ParseUint(l["com.sparkrun.generation"], 10, 64)
	k := launcher.Key{Job: launcher.JobID(l["com.sparkrun.job"]), Generation: launcher.Generation(gen)}
	if err != nil || k.Job.Validate() != nil || gen == 0 {
		return k, fmt.Errorf("labels %v: %w: of no try: left alone", l, launcher.ErrInvalid)
	}
	return k, nil
}

// knows tells whether a try is in the ledger and has not ended.
func (a *Agent) knows(k launcher.Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.tries[k]
	return t != nil && t.snapshot().Phase != launcher.PhaseEnded
}
