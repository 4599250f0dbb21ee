package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
)

const (
	sweepFirst = 15 * time.Second // until the next look, where something stays undecided; twice as long each time
	sweepMost  = 5 * time.Minute
	sweepWait  = 30 * time.Second // for one look
)

// cgroupRoot is where the kernel shows cgroups.
const cgroupRoot = "/sys/fs/cgroup"

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

// Ended tells of which attempts the end is recorded, by one read that no other one may
// contradict later; one whose job the record does not know is left out. It fails where
// nobody can say.
type Ended func(context.Context, []launcher.Key) (map[launcher.Key]bool, error)

// Sweep removes containers that were left here, from now on. It is called once.
func (a *Agent) Sweep(ended Ended) {
	if a.cfg.Containers == nil || a.cfg.StateDir == "" {
		return
	}
	a.loops.Go(func() { a.sweeps(a.ctx, ended) })
	a.sweepSoon()
}

// sweepSoon has what is left looked for. It is called whenever something may have become decided: a try
// was forgotten, a leader let in.
func (a *Agent) sweepSoon() {
	select {
	case a.sweepNow <- struct{}{}:
	default:
	}
}

// sweeps looks for what is left whenever it is told to. Of an engine's coming back, and of the end of a job
// with which this node has nothing to do any more, nobody tells: then it looks again by itself.
func (a *Agent) sweeps(ctx context.Context, ended Ended) {
	var again <-chan time.Time
	var wait time.Duration
	engineAway := false
	told := map[string]bool{}
	for {
		select {
		case <-a.sweepNow:
		case <-again:
		case <-ctx.Done():
			return
		}
		left, err := a.sweep(ctx, ended, told)
		if again = nil; err == nil && left == 0 {
			wait = 0
			continue
		}
		away := errors.Is(err, container.ErrNoEngine)
		if err != nil && ctx.Err() == nil && !(away && engineAway) {
			a.cfg.Logger.Warn("sweep containers", "left", left, "error", err)
		}
		engineAway = away
		wait = sweepAfter(wait, away)
		again = time.After(wait)
	}
}

// sweepAfter is when to look again, after a wait. Where the engine is away that is soon, however long it has been: what
// it had when the power went is there as soon as it is, and a look at a socket that nobody has open costs nothing.
func sweepAfter(last time.Duration, engineAway bool) time.Duration {
	if engineAway {
		return sweepFirst
	}
	return min(max(2*last, sweepFirst), sweepMost)
}

// sweep removes this node's containers whose try has ended: not in the ledger here, where its shim
// sees to them, and over by the record; and what was made to look into an image. left counts what is
// to be looked at again. told has the containers of which somebody has been told that they stay.
func (a *Agent) sweep(ctx context.Context, ended Ended, told map[string]bool) (left int, err error) {
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
	var errs []error
	remove := func(c container.Found) {
		if err := e.Remove(ctx, c.ID); err != nil {
			left++
			errs = append(errs, err)
		}
	}
	orphans := map[launcher.Key][]container.Found{}
	for _, c := range all {
		if life, looks := c.Labels[lookLabel]; looks {
			if life != a.life { // else somebody may be looking
				remove(c)
			}
			continue
		}
		switch key, err := keyOfLabels(c.Labels); {
		case err != nil && !told[c.ID]:
			told[c.ID] = true
			a.cfg.Logger.Error("sweep containers", "container", c.Name, "error", err)
		case err == nil && !a.knows(key): // else it is adopted: its shim has it
			orphans[key] = append(orphans[key], c)
		}
	}
	if len(orphans) > 0 {
		over, err := ended(ctx, slices.Collect(maps.Keys(orphans)))
		if err != nil {
			return left + len(orphans), errors.Join(append(errs, err)...)
		}
		for key, boxes := range orphans {
			over, known := over[key]
			for _, c := range boxes {
				switch {
				case a.knows(key): // it came while the record was asked
				case !known && !told[c.ID]:
					told[c.ID] = true
					a.cfg.Logger.Warn("a container stays: the record does not know its job; docker rm -f removes it", "container", c.Name, "job", key.Job, "running", c.Running)
				case !known:
				case !over:
					left++
				default:
					a.cfg.Logger.Info("remove a container that was left", "container", c.Name, "job", key.Job, "running", c.Running)
					remove(c)
				}
			}
		}
	}
	return left + a.dropGroups(cgroupRoot), errors.Join(errs...)
}

// dropGroups removes the cgroups of containers whose tries are forgotten, and counts those in which
// somebody still is.
func (a *Agent) dropGroups(root string) (left int) {
	found, _ := filepath.Glob(filepath.Join(root, "sparkrun", string(a.cfg.Node)+"-*.boxes"))
	scopes, _ := filepath.Glob(filepath.Join(root, "sparkrun.slice", "sparkrun-"+sliceName(string(a.cfg.Node)+"-")+"*.slice"))
	found = append(found, scopes...)
	a.mu.Lock()
	mine := map[string]bool{}
	for k := range a.tries {
		for _, systemd := range []bool{false, true} {
			_, folder := boxGroup(root, systemd, a.groupName(k))
			mine[folder] = true
		}
	}
	a.mu.Unlock()
	for _, g := range found {
		if !mine[g] && os.Remove(g) != nil {
			left++
		}
	}
	return left
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
