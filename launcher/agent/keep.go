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
		if err := os.RemoveAll(filepath.Join(a.cfg.LogDir, name)); err != nil {
			a.cfg.Logger.Warn("remove old output", "job", name, "error", err)
		}
	}
}

// loggedJob is one job's output.
type loggedJob struct {
	name  string
	last  time.Time // when its latest try was prepared
	bytes func() int64
}

func (a *Agent) loggedJobs() []loggedJob {
	entries, _ := os.ReadDir(a.cfg.LogDir)
	var jobs []loggedJob
	for _, d := range entries {
		fi, err := d.Info()
		if err == nil && d.IsDir() && launcher.JobID(d.Name()).Validate() == nil {
			dir := filepath.Join(a.cfg.LogDir, d.Name())
			jobs = append(jobs, loggedJob{d.Name(), fi.ModTime(), func() int64 { return bytesIn(dir) }})
		}
	}
	return jobs
}

// beyond names the jobs that are not to be kept.
func (k Keep) beyond(jobs []loggedJob, now time.Time) (names []string) {
	slices.SortFunc(jobs, func(x, y loggedJob) int { return y.last.Compare(x.last) })
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
