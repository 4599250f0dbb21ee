package container

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
)

const (
	sweepFirst = 15 * time.Second // until the next look, if something is undecided; doubled each time
	sweepMost  = 5 * time.Minute
	sweepWait  = 30 * time.Second // for one look
)

// cgroupRoot is where the kernel mounts cgroups.
const cgroupRoot = "/sys/fs/cgroup"

// SweepSoon triggers a sweep. It is called whenever something may have been decided: an
// attempt was forgotten, or a leader admitted.
func (h *Host) SweepSoon() {
	select {
	case h.sweepNow <- struct{}{}:
	default:
	}
}

// Ended reports which attempts have their end recorded, by a read that no later one may
// contradict; it leaves out attempts whose job the record does not know. It fails if nobody
// can say.
type Ended func(context.Context, []launcher.Key) (map[launcher.Key]bool, error)

// Sweep removes containers that were left here, until ctx ends. It looks at once, and after
// each SweepSoon. Nothing reports when an engine comes back, or when a job ends that this
// node has no more part in: so it looks again by itself as long as something is left.
func (h *Host) Sweep(ctx context.Context, ended Ended) {
	if h.cfg.Engine == nil || h.cfg.StateDir == "" {
		return
	}
	h.SweepSoon()
	var again <-chan time.Time
	var wait time.Duration
	engineAway := false
	told := map[string]bool{}
	for {
		select {
		case <-h.sweepNow:
		case <-again:
		case <-ctx.Done():
			return
		}
		left, err := h.sweep(ctx, ended, told)
		if again = nil; err == nil && left == 0 {
			wait = 0
			continue
		}
		away := errors.Is(err, ErrNoEngine)
		if err != nil && ctx.Err() == nil && !(away && engineAway) {
			h.cfg.Logger.Warn("sweep containers", "left", left, "error", err)
		}
		engineAway = away
		wait = sweepAfter(wait, away)
		again = time.After(wait)
	}
}

// sweepAfter is when to look again, after a wait. If the engine is away it is soon, however
// long that lasts: what the engine had before a power cut is back as soon as the engine is,
// and a look at a socket without a listener costs nothing.
func sweepAfter(last time.Duration, engineAway bool) time.Duration {
	if engineAway {
		return sweepFirst
	}
	return min(max(2*last, sweepFirst), sweepMost)
}

// sweep removes this node's containers whose attempt has ended: those that are not in the
// ledger here, where a shim handles them, and are over by the record. It also removes
// containers that were made to look into an image. left counts what to look at again. told
// has the containers that were already logged as staying.
func (h *Host) sweep(ctx context.Context, ended Ended, told map[string]bool) (left int, err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepWait)
	defer cancel()
	if !h.hasHadContainers() {
		return 0, nil
	}
	e, err := Open(ctx, h.cfg.Engine.Socket)
	if err != nil {
		return 0, err
	}
	all, err := e.List(ctx, h.labels())
	if err != nil {
		return 0, err
	}
	var errs []error
	remove := func(c Found) (left int) {
		if err := e.Remove(ctx, c.ID); err != nil {
			errs = append(errs, err)
			return 1
		}
		return 0
	}
	orphans := map[launcher.Key][]Found{}
	for _, c := range all {
		if incarnation, looks := c.Labels[lookLabel]; looks {
			if incarnation != h.cfg.Incarnation { // else it may be in use
				left += remove(c)
			}
			continue
		}
		switch key, err := keyOfLabels(c.Labels); {
		case err != nil && !told[c.ID]:
			told[c.ID] = true
			h.cfg.Logger.Error("sweep containers", "container", c.Name, "error", err)
		case err == nil && !h.cfg.Held()[key]: // else it was adopted: its shim has it
			orphans[key] = append(orphans[key], c)
		}
	}
	if len(orphans) > 0 {
		over, err := ended(ctx, slices.Collect(maps.Keys(orphans)))
		if err != nil {
			return left + len(orphans), errors.Join(append(errs, err)...)
		}
		left += h.sweepOrphans(orphans, over, told, remove)
	}
	return left + h.dropGroups(cgroupRoot), errors.Join(errs...)
}

// sweepOrphans removes those of attempts that are over by the record, and counts those that
// may end later.
func (h *Host) sweepOrphans(
	orphans map[launcher.Key][]Found, isOver map[launcher.Key]bool, told map[string]bool, remove func(Found) int,
) (left int) {
	for key, containers := range orphans {
		over, known := isOver[key]
		for _, c := range containers {
			log := h.cfg.Logger.With("container", c.Name, "job", key.Job, "running", c.Running)
			switch {
			case h.cfg.Held()[key]: // it came while the record was asked
			case !known && !told[c.ID]:
				told[c.ID] = true
				log.Warn("a container is left: the record does not know its job; docker rm -f removes it")
			case !known:
			case !over:
				left++
			default:
				log.Info("remove a leftover container")
				left += remove(c)
			}
		}
	}
	return left
}

// dropGroups removes the cgroups of containers whose attempts are forgotten, and counts
// those that still have processes.
func (h *Host) dropGroups(root string) (left int) {
	found, _ := filepath.Glob(filepath.Join(root, "sparkrun", string(h.cfg.Node)+"-*.boxes"))
	scopes, _ := filepath.Glob(filepath.Join(root, "sparkrun.slice",
		"sparkrun-"+sliceName(string(h.cfg.Node)+"-")+"*.slice"))
	found = append(found, scopes...)
	mine := map[string]bool{}
	for k := range h.cfg.Held() {
		for _, systemd := range []bool{false, true} {
			_, folder := groupOf(root, systemd, h.groupName(k))
			mine[folder] = true
		}
	}
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
		return k, fmt.Errorf("labels %v: %w: no attempt has these labels: left alone", l, launcher.ErrInvalid)
	}
	return k, nil
}
