package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/preflight"
)

// stageDir is where a job's files are laid out on this node.
func (a *Agent) stageDir(id launcher.JobID) string {
	return filepath.Join(a.cfg.StageDir, string(id), "tree")
}

// bring has what a job brings along laid out here, before anything looks for it.
func (a *Agent) bring(ctx context.Context, as launcher.Assignment) error {
	if as.Spec.Staged == nil {
		return nil
	}
	if a.cfg.Files == nil || a.cfg.StageDir == "" {
		return errors.New("this node takes no --stage files: leave it out")
	}
	if !a.isThere(as) {
		need := as.Spec.Staged.Bytes // the job's own copy
		if as.Spec.Staged.From != as.Node {
			need *= 2 // and the content, which has yet to come
		}
		if err := preflight.RoomToStage(a.cfg.StageDir, need); err != nil {
			return err
		}
	}
	who, err := login.Lookup(ctx, as.Spec.User)
	if err != nil {
		return err
	}
	return a.cfg.Files.Bring(ctx, as, who.UID, who.GID)
}

// atStage puts an assignment where its files are on this node: in each node's
// own state folder, which the spec cannot name.
func (a *Agent) atStage(as launcher.Assignment) launcher.Assignment {
	if as.Spec.Staged == nil {
		return as
	}
	dir := a.stageDir(as.Job)
	as.Spec.Stages = slices.Clone(as.Spec.Stages)
	for i := range as.Spec.Stages {
		st := &as.Spec.Stages[i]
		if as.Spec.Staged.Workdir {
			st.Workdir = dir
		}
		at := launcher.Var{Name: launcher.StageEnv, Value: launcher.Lit(dir), Source: "--stage"}
		st.Env = append([]launcher.Var{at}, st.Env...)
	}
	return as
}

// isThere is false in a dry run of a job that would bring its files first: what
// is among them cannot be looked for.
func (a *Agent) isThere(as launcher.Assignment) bool {
	if as.Spec.Staged == nil {
		return true
	}
	_, err := os.Stat(a.stageDir(as.Job))
	return err == nil
}

// dropCache frees the page cache for a job that takes the GPU, whose memory is
// the machine's: what the kernel would give back page by page under the first
// large allocation is then free at once. Another job may live off the cache.
func (a *Agent) dropCache(as launcher.Assignment) {
	st := as.Spec.MainStage()
	if a.cfg.DropCache == nil || !st.GPU || as.Spec.Share || as.Spec.KeepCache || !a.alone(as.Key) {
		return
	}
	if err := a.cfg.DropCache(); err != nil {
		a.cfg.Logger.Warn("drop page cache", "job", as.Job, "error", fmt.Errorf("%w: the job starts all the same", err))
		return
	}
	a.cfg.Logger.Info("page cache dropped", "job", as.Job)
}

// alone tells whether no other attempt is on this node.
func (a *Agent) alone(k launcher.Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for other, t := range a.attempts {
		if other != k && t.snapshot().Phase != launcher.PhaseEnded {
			return false
		}
	}
	return true
}
