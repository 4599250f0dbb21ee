package logs

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Keep limits the output of ended jobs: what exceeds any of the three is removed, the
// oldest of the user who has most first (launcher.Beyond). It is applied when a job is
// over, twice a minute at most.
type Keep struct {
	Jobs  int           // 0 means 200
	For   time.Duration // since the job's last attempt; 0: for ever
	Bytes int64         // of all jobs together; 0: any
}

// DefaultJobs is the default of Keep.Jobs.
const DefaultJobs = 200

// Job is one job's output, and the files that it has brought.
type Job struct {
	Name  string
	User  string    // empty: not known
	Last  time.Time // when its latest attempt was prepared, or its files came
	Bytes func() int64
}

// Jobs lists the jobs that have a folder in dirs.
func Jobs(dirs []string, user func(job string) string) []Job {
	last := map[string]time.Time{}
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir)
		for _, d := range entries {
			fi, err := d.Info()
			if err == nil && d.IsDir() && launcher.JobID(d.Name()).Validate() == nil && fi.ModTime().After(last[d.Name()]) {
				last[d.Name()] = fi.ModTime()
			}
		}
	}
	var jobs []Job
	for name, at := range last {
		jobs = append(jobs, Job{name, user(name), at, func() (sum int64) {
			for _, dir := range dirs {
				sum += bytesIn(filepath.Join(dir, name))
			}
			return sum
		}})
	}
	return jobs
}

// Beyond names the jobs to remove.
func (k Keep) Beyond(jobs []Job, now time.Time) (names []string) {
	slices.SortStableFunc(jobs, func(x, y Job) int { return cmp.Or(x.Last.Compare(y.Last), cmp.Compare(x.Name, y.Name)) })
	drop := func(gone []Job) {
		for _, j := range gone {
			names = append(names, j.Name)
			jobs = slices.DeleteFunc(jobs, func(o Job) bool { return o.Name == j.Name })
		}
	}
	user := func(j Job) string { return j.User }
	if k.For > 0 {
		drop(slices.DeleteFunc(slices.Clone(jobs), func(j Job) bool { return now.Sub(j.Last) <= k.For }))
	}
	drop(launcher.Beyond(jobs, int64(k.Jobs), user, func(Job) int64 { return 1 }))
	if k.Bytes > 0 {
		drop(launcher.Beyond(jobs, k.Bytes, user, func(j Job) int64 { return j.Bytes() }))
	}
	return names
}

func bytesIn(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // a removed file takes no space
		}
		if fi, err := d.Info(); err == nil && d.Type().IsRegular() {
			sum += fi.Size()
		}
		return nil
	})
	return sum
}
