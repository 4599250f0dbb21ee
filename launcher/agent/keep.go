package agent

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Keep says how much output of ended jobs stays: what is beyond any of the
// three is removed, the oldest of whoever has most there first (launcher.Beyond).
// It is looked at whenever a job is over.
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
	ended := slices.DeleteFunc(a.loggedJobs(), func(j loggedJob) bool { return alive[j.name] })
	for _, name := range a.cfg.Keep.beyond(ended, time.Now()) {
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
	user  string    // empty: not known
	last  time.Time // when its latest try was prepared, or its files came
	bytes func() int64
}

// userName is the file in a job's folder of output that has its user's name.
const userName = "user"

// userOf tells whose job has output or files here.
func (a *Agent) userOf(job string) string {
	b, err := os.ReadFile(filepath.Join(a.cfg.LogDir, job, userName))
	if err != nil && a.cfg.StagedBy != nil {
		return a.cfg.StagedBy(launcher.JobID(job))
	}
	return string(b)
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
		jobs = append(jobs, loggedJob{name, a.userOf(name), at, func() (sum int64) {
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
	slices.SortStableFunc(jobs, func(x, y loggedJob) int { return cmp.Or(x.last.Compare(y.last), cmp.Compare(x.name, y.name)) })
	drop := func(gone []loggedJob) {
		for _, j := range gone {
			names = append(names, j.name)
			jobs = slices.DeleteFunc(jobs, func(o loggedJob) bool { return o.name == j.name })
		}
	}
	user := func(j loggedJob) string { return j.user }
	if k.For > 0 {
		drop(slices.DeleteFunc(slices.Clone(jobs), func(j loggedJob) bool { return now.Sub(j.last) <= k.For }))
	}
	drop(launcher.Beyond(jobs, int64(k.Jobs), user, func(loggedJob) int64 { return 1 }))
	if k.Bytes > 0 {
		drop(launcher.Beyond(jobs, k.Bytes, user, func(j loggedJob) int64 { return j.bytes() }))
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
