package agent

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Keep says how much output of ended jobs stays: what is beyond any of the
// three is removed, oldest first. It is looked at whenever a job is over.
type Keep struct {
	Jobs  int           // 0 means 200
	For   time.Duration // since the job's last try; 0: for ever
	Bytes int64         // of all jobs together; 0: any
}

const keepJobs = 200

// pruneLogs removes what is not to be kept. A job that is in the ledger is kept
// in any case.
func (a *Agent) pruneLogs() {
	a.mu.Lock()
	alive := map[string]bool{}
	for k := range a.tries {
		alive[string(k.Job)] = true
	}
	a.mu.Unlock()
	for _, name := range a.cfg.Keep.beyond(a.loggedJobs(), time.Now()) {
		if alive[name] {
			continue
		}
		for _, dir := range a.keptDirs() {
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

// loggedJob is one job's output, and what it has brought along.
type loggedJob struct {
	name  string
	last  time.Time // when its latest try was prepared, or its files came
	bytes func() int64
}

func (a *Agent) loggedJobs() []loggedJob {
	last := map[string]time.Time{}
	for _, dir := range a.keptDirs() {
		entries, _ := os.ReadDir(dir)
		for _, d := range entries {
			fi, err := d.Info()
			if err == nil && d.IsDir() && launcher.JobID(d.Name()).Validate() == nil && fi.ModTime().After(last[d.Name()]) {
				last[d.Name()] = fi.ModTime()
			}
		}
	}
	var jobs []loggedJob
	for name, at := range last {
		jobs = append(jobs, loggedJob{name, at, func() (sum int64) {
			for _, dir := range a.keptDirs() {
				sum += bytesIn(filepath.Join(dir, name))
			}
			return sum
		}})
	}
	return jobs
}

// keptDirs have a folder for each job.
func (a *Agent) keptDirs() []string {
	if a.cfg.StageDir == "" {
		return []string{a.cfg.LogDir}
	}
	return []string{a.cfg.LogDir, a.cfg.StageDir}
}

// beyond names the jobs that are not to be kept.
func (k Keep) beyond(jobs []loggedJob, now time.Time) (names []string) {
	slices.SortStableFunc(jobs, func(x, y loggedJob) int { return y.last.Compare(x.last) })
	var sum int64
	for i, j := range jobs {
		over := i >= k.Jobs || k.For > 0 && now.Sub(j.last) > k.For
		if !over && k.Bytes > 0 {
			sum += j.bytes()
			over = sum > k.Bytes
		}
		if over {
			names = append(names, j.name)
		}
	}
	return names
}

func bytesIn(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what is gone takes no room
		}
		if fi, err := d.Info(); err == nil && d.Type().IsRegular() {
			sum += fi.Size()
		}
		return nil
	})
	return sum
}
