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

// stageDir is the folder of a job's files on this node.
func (a *Agent) stageDir(id launcher.JobID) string {
	return filepath.Join(a.cfg.StageDir, string(id), "tree")
}

// bring lays out the files that a job brings, before anything looks for them.
func (a *Agent) bring(ctx context.Context, as launcher.Assignment) error {
	if as.Spec.Staged == nil {
		return nil
	}
	if a.cfg.Files == nil || a.cfg.StageDir == "" {
		return errors.New("this node takes no --stage files: leave --stage out")
	}
	if !a.isThere(as) {
		need := as.Spec.Staged.Bytes // the job's own copy
		if as.Spec.Staged.From != as.Node {
			need *= 2 // and the content, which has yet to be fetched
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

// atStage sets the paths of an assignment to where its files are on this node: in the
// node's own state folder, which the spec cannot name.
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

// isThere is false in a dry run of a job that would bring files: what is among them cannot
// be checked yet.
func (a *Agent) isThere(as launcher.Assignment) bool {
	if as.Spec.Staged == nil {
		return true
	}
	_, err := os.Stat(a.stageDir(as.Job))
	return err == nil
}

// dropCache frees the page cache for a job that takes the GPU, which shares the machine's
// memory: it is then free at once, where the kernel would give it back page by page under
// the first large allocation. Not while another job runs, which may rely on the cache.
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

// alone reports whether no other attempt is on this node.
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
