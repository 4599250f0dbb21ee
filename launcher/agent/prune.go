package agent

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
)

// pruneEvery is the shortest time between two looks at all output that is kept: with
// hundreds of jobs one costs as much as a launch.
const pruneEvery = 30 * time.Second

// pruneSoon has pruneLogs run, at once or pruneEvery after the last time. An attempt's own
// goroutine calls it, so that loops is not being waited for yet.
func (a *Agent) pruneSoon() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pruning {
		return
	}
	a.pruning = true
	wait := time.Until(a.pruned.Add(pruneEvery))
	a.loops.Go(func() {
		if !pause(a.ctx, wait) {
			return
		}
		a.mu.Lock()
		a.pruning, a.pruned = false, time.Now()
		a.mu.Unlock()
		a.pruneLogs()
		a.pruneCompiled(hasRoom)
	})
}

// pruneLogs removes output beyond what Keep allows. Jobs in the ledger are kept in any
// case.
func (a *Agent) pruneLogs() {
	a.mu.Lock()
	alive := map[string]bool{}
	for k := range a.attempts {
		alive[string(k.Job)] = true
	}
	a.mu.Unlock()
	dirs := a.keptDirs()
	ended := slices.DeleteFunc(logs.Jobs(dirs, a.userOf), func(j logs.Job) bool { return alive[j.Name] })
	for _, name := range a.cfg.Keep.Beyond(ended, time.Now()) {
		for _, dir := range dirs {
			remove := os.RemoveAll
			if dir == a.cfg.StageDir {
				remove = removeTree
			}
			if err := remove(filepath.Join(dir, name)); err != nil {
				a.cfg.Logger.Warn("remove old output", "job", name, "error", err)
			}
		}
	}
}

// userName is a file in a job's folder of output with the name of its user.
const userName = "user"

// userOf names the user whose job has output or files here.
func (a *Agent) userOf(job string) string {
	b, err := os.ReadFile(filepath.Join(a.cfg.LogDir, job, userName))
	if err != nil && a.cfg.Files != nil {
		return a.cfg.Files.UserOf(launcher.JobID(job))
	}
	return string(b)
}

// keptDirs have a folder for each job.
func (a *Agent) keptDirs() []string {
	if a.cfg.StageDir == "" {
		return []string{a.cfg.LogDir}
	}
	return []string{a.cfg.LogDir, a.cfg.StageDir}
}
