package node

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

var leakJobs = flag.Int("leak-jobs", 30, "how many jobs TestJobsLeaveNothing runs")

// Jobs that end well, that fail, that leave processes behind, that are stopped, and that are read from another host: when
// they have ended, three agents hold what they held before. It is no test to run beside others: what it counts is the
// whole process's.
func TestJobsLeaveNothing(t *testing.T) {
	c := newCluster(t, 3)
	sleeper := fmt.Sprintf("sleep 1000.%d", os.Getpid()) // to be told from others'
	kinds := []struct {
		line string
		stop bool
		want rendezvous.End
	}{
		{line: "true", want: rendezvous.Completed},
		{line: "echo $RANK; exit 3", want: rendezvous.Failed},
		{line: "setsid " + sleeper + " & exec true", want: rendezvous.Completed},
		{line: sleeper, stop: true, want: rendezvous.Stopped},
	}
	one := func(n int) error {
		kind, on := kinds[n%len(kinds)], c.hosts[n%3]
		cl, reader := on.client(), c.hosts[(n+1)%3].client()
		defer cl.Close()
		defer reader.Close()
		spec := command(3, 1, kind.line)
		var out *rendezvous.Outcome
		err := wire.Launch.Call(t.Context(), cl, wire.LaunchRequest{Spec: spec}, func(p rendezvous.Progress) error {
			switch {
			case p.Step == rendezvous.StepRunning && kind.stop:
				_, err := wire.Stop.Call(t.Context(), reader, wire.StopRequest{Job: string(spec.ID)})
				return err
			case p.Step == rendezvous.StepEnded:
				out = p.Outcome
			}
			return nil
		})
		if err != nil || out == nil || out.End != kind.want {
			return fmt.Errorf("job %d (%s) on %s: %w, %+v", n, kind.line, on.cfg.Host, err, out)
		}
		return wire.Logs.Call(t.Context(), reader, wire.LogsRequest{Job: string(spec.ID)}, func(wire.LogChunk) error { return nil })
	}
	run := func(jobs int) {
		t.Helper()
		var g errgroup.Group
		g.SetLimit(4)
		for n := range jobs {
			g.Go(func() error { return one(n) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	run(12) // what is made once is there: connections, buffers, threads of the poller
	before := c.settled(t, holdings{})
	run(*leakJobs)
	after := c.settled(t, before)
	t.Logf("after %d jobs %d goroutines, %d descriptors, before %d and %d", *leakJobs, after.goroutines, after.fds, before.goroutines, before.fds)
	if after.goroutines > before.goroutines {
		t.Errorf("%d goroutines, before %d", after.goroutines, before.goroutines)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	}
	if after.fds > before.fds {
		t.Errorf("%d open descriptors, before %d: %s", after.fds, before.fds, strings.Join(descriptors(), "\n"))
	}
	for what, left := range map[string][]string{"processes": after.processes, "cgroups": after.cgroups, "files": after.files} {
		if len(left) > 0 {
			t.Errorf("%s left:\n%s", what, strings.Join(left, "\n"))
		}
	}
	for _, h := range c.hosts {
		kept, err := os.ReadDir(filepath.Join(h.cfg.Paths.State, "logs"))
		if err != nil || len(kept) == 0 || len(kept) > 200 {
			t.Errorf("%s keeps the output of %d jobs, %v", h.cfg.Host, len(kept), err)
		}
	}
}

// holdings are what a process of several agents has of this world.
type holdings struct {
	goroutines, fds           int
	processes, cgroups, files []string // of jobs: there should be none
}

// settled waits until no job has left anything and no more is held than before; what is held then is given either way.
// Without a before it waits until what is held is the same for a while.
func (c *cluster) settled(t *testing.T, before holdings) holdings {
	t.Helper()
	deadline, same := time.Now().Add(2*time.Minute), 0
	for last := c.holds(t); ; time.Sleep(100 * time.Millisecond) {
		now := c.holds(t)
		clean := len(now.processes)+len(now.cgroups)+len(now.files) == 0
		if same++; now.goroutines != last.goroutines || now.fds != last.fds {
			same = 0
		}
		if last = now; time.Now().After(deadline) ||
			clean && before.fds == 0 && same >= 10 ||
			clean && before.fds > 0 && now.goroutines <= before.goroutines && now.fds <= before.fds {
			return now
		}
	}
}

func (c *cluster) holds(t *testing.T) holdings {
	t.Helper()
	h := holdings{goroutines: runtime.NumGoroutine(), fds: len(descriptors()), processes: ofJobs(t)}
	for _, host := range c.hosts {
		found, err := filepath.Glob(filepath.Join(host.cfg.Paths.Run, "jobs", "*"))
		if err != nil {
			t.Fatal(err)
		}
		h.files = append(h.files, found...)
		_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error { // groups come and go
			if err == nil && e.IsDir() && strings.Contains(e.Name(), string(host.n.self.ID)+"-") {
				h.cgroups = append(h.cgroups, path)
			}
			return nil
		})
	}
	return h
}

func descriptors() []string {
	entries, _ := os.ReadDir("/proc/self/fd")
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		out = append(out, e.Name()+" "+to)
	}
	return out
}

// ofJobs are the shims, which are children of this process, and what else runs for jobs of this test.
func ofJobs(t *testing.T) []string {
	t.Helper()
	self := os.Getpid()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Fatalf("no processes in /proc: %v", err)
	}
	var out []string
	for _, stat := range stats {
		text, _ := os.ReadFile(stat) // it may have ended meanwhile
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(stat), "cmdline"))
		_, behind, _ := strings.Cut(string(text), ") ") // state, parent
		var parent int
		_, err := fmt.Sscanf(behind, "%1s %d", new(string), &parent)
		line := strings.ReplaceAll(string(args), "\x00", " ")
		if err == nil && parent == self || strings.HasPrefix(line, fmt.Sprintf("sleep 1000.%d", self)) {
			out = append(out, filepath.Base(filepath.Dir(stat))+" "+line)
		}
	}
	return out
}
