package e2e

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var spawnRounds = flag.Int("spawn-rounds", 30, "how often an agent or a shim is killed on the way to a rank; 0 = once for all there is")

// spawnKinds are launches whose way to the exec differs.
var spawnKinds = []spawnKind{
	{"plain", nil},
	{"user", []string{"--user", "eve"}},
	{"limits", []string{"--ulimit", "nofile=512:1024", "--user", "eve"}},
}

type spawnKind struct {
	name  string
	flags []string
}

// spawnKill is one round: who is killed when a point is passed.
type spawnKill struct {
	flags []string
	point string // its number in the build
	where string // file:line function
	who   string
}

func (k spawnKill) String() string { return fmt.Sprintf("%s killed at %s %v", k.who, k.where, k.flags) }

// An agent, a shim, or both, die at any step between Prepare and the rank's
// exec: a rank is started once, or the launch ends with 125 and none was; the
// record has the job's end, and nothing is left. What steps there are a launch
// tells itself: scripts/failpoint makes each statement of both packages a place
// to die, and all that an undisturbed launch passes are the way.
func TestSpawnFailpoints(t *testing.T) {
	dir := scratch(t)
	build, list := filepath.Join(dir, "sparkrun"), filepath.Join(dir, "points")
	out, err := exec.Command("go", "run", "../failpoint", "-o", build, "-points", list, "../../cmd/sparkrun", "../../launcher/agent", "../../launcher/preflight", "../../launcher/shim").CombinedOutput()
	if err != nil {
		t.Fatalf("build with failpoints: %v\n%s", err, out)
	}
	witness := filepath.Join(dir, "witness")
	if err := os.Mkdir(witness, 0o777); err != nil || os.Chmod(witness, 0o777) != nil {
		t.Fatal(err)
	}
	s := spawner{lab: upWith(t, build, 3), witness: witness, tally: &tally{}}
	s.from = s.leader("spark1")
	victims := other(3, s.from)
	for _, h := range victims {
		s.on(h, "useradd", "-M", "eve").must(t)
		s.on(h, "install", "-d", "-m", "777", "/tmp/failpoint").must(t)
	}
	all := s.kills(victims[0], readPoints(t, list), spawnKinds)
	kills := spread(all, *spawnRounds)
	t.Logf("%d places to die for 1 to 3 processes, %d rounds", len(all), len(kills))

	began := time.Now()
	var next atomic.Int64
	t.Run("rounds", func(t *testing.T) {
		for _, h := range victims {
			t.Run(h, func(t *testing.T) {
				t.Parallel()
				own := s
				own.lab = &lab{t: t, name: s.name}
				for i := next.Add(1) - 1; i < int64(len(kills)); i = next.Add(1) - 1 {
					own.round(h, fmt.Sprintf("r%d", i), kills[i])
				}
			})
		}
	})
	t.Logf("%d rounds in %s: %d launches ended well, %d were broken off before a rank ran, %d after, %d did not pass the point",
		len(kills), time.Since(began).Round(time.Second), s.well, s.none, s.broken, s.missed)
	if s.missed > len(kills)/5 || s.well == 0 || s.none == 0 {
		t.Error("that is not what the points are for")
	}
	for _, h := range victims {
		// A shim that is killed before its journal names its cgroup leaves that, empty.
		if left := s.on(h, "sh", "-c", "cat /sys/fs/cgroup/sparkrun/*/cgroup.procs 2>/dev/null").out; left != "" {
			t.Errorf("processes in cgroups of jobs on %s: %s", h, left)
		}
	}
}

// readPoints gives each point's place by its number.
func readPoints(t *testing.T, list string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	points := map[string]string{}
	for line := range strings.Lines(string(b)) {
		number, where, _ := strings.Cut(strings.TrimSpace(line), " ")
		points[number] = where
	}
	return points
}

// spread takes n of all, evenly: the same ones each time.
func spread(all []spawnKill, n int) []spawnKill {
	if n == 0 {
		return all
	}
	var some []spawnKill
	for i := range n {
		// By the golden ratio: also neighbours in time are far apart on the way.
		some = append(some, all[int(float64(i)*0.6180339887*float64(len(all)))%len(all)])
	}
	return some
}

type spawner struct {
	*lab
	from    string // the leader's host, where launches come from and nobody is killed
	witness string
	*tally
}

// tally is what became of the rounds.
type tally struct {
	mu                         sync.Mutex
	well, none, broken, missed int
}

func (s spawner) order(host string) string {
	return "/var/tmp/sparkrun-lab/" + s.name + "/hosts/" + host + "/tmp/failpoint"
}

// launch has two ranks started on a host, which say so outside of sparkrun. The
// first thing they do is to end a trace: the exec has been reached.
func (s spawner) launch(host, name string, flags []string) *running {
	args := append([]string{"sparkrun", "launch", "exec", "--on", host, "--name", name, "--nproc-per-node", "2", "--workdir", "/"}, flags...)
	return s.start(s.from, append(args, "--", "sh", "-c", "echo $$ >>"+s.witness+"/"+name+".$RANK; rm -f /tmp/failpoint/order; sleep 0.3")...)
}

// kills are the steps of one launch of each kind, in their order, each with
// everybody who could be killed there. A later kind adds what earlier ones
// do not pass.
func (s spawner) kills(host string, points map[string]string, kinds []spawnKind) []spawnKill {
	s.t.Helper()
	var all []spawnKill
	seen := map[string]bool{}
	for _, kind := range kinds {
		at := s.order(host)
		if err := os.WriteFile(at+"/order", []byte("trace"), 0o666); err != nil {
			s.t.Fatal(err)
		}
		s.launch(host, "trace-"+kind.name, kind.flags).wait().must(s.t)
		b, err := os.ReadFile(at + "/trace")
		if err = errors.Join(err, os.Remove(at+"/trace")); err != nil {
			s.t.Fatal(err)
		}
		before := len(all)
		for number := range strings.FieldsSeq(string(b)) {
			if seen[number] {
				continue
			}
			seen[number] = true
			k := spawnKill{flags: kind.flags, point: number, where: points[number]}
			whos := []string{"agent", "shim", "agent,shim"}
			if strings.HasPrefix(k.where, "shim/confine.go") {
				whos = append(whos, "rank", "agent,shim,rank")
			}
			for _, k.who = range whos {
				all = append(all, k)
			}
		}
		if len(all) == before && kind.name != "user" {
			s.t.Errorf("a launch with %v passes no point of its own", kind.flags)
		}
	}
	return all
}

func (s spawner) round(host, name string, k spawnKill) {
	at := s.order(host)
	if err := os.WriteFile(at+"/new", []byte(k.point+" "+k.who), 0o666); err != nil {
		s.t.Error(err)
		return
	}
	agent := s.agentOf(host) // first: what it still does for an earlier job may pass the point
	s.on(host, "mv", "/tmp/failpoint/new", "/tmp/failpoint/order").must(s.t)
	run := s.launch(host, name, k.flags)
	done := make(chan result, 1)
	go func() { done <- run.wait() }()
	var r result
	for ended := false; !ended && !exists(at+"/hit"); {
		select {
		case r = <-done:
			ended = true
			done <- r
		case <-time.After(5 * time.Millisecond):
		}
	}
	hit := exists(at + "/hit")
	if hit && strings.Contains(k.who, "agent") {
		s.restart(host, agent)
	}
	r = <-done
	os.Remove(at + "/hit")
	os.Remove(at + "/order")

	starts := [2]int{}
	for rank := range starts {
		b, err := os.ReadFile(fmt.Sprintf("%s/%s.%d", s.witness, name, rank))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.t.Error(err)
		}
		starts[rank] = bytes.Count(b, []byte("\n"))
	}
	s.judge(name, k, r, hit, starts)
	s.assertNothingLeft(host)
	if left := s.leftovers(host); left != "" {
		s.t.Errorf("%s: folders are left on %s: %s", k, host, left)
	}
	// An agent that died before the launch came is no place to put a job, and a leader that fell meanwhile records none.
	unplaced := r.code == 125 && (strings.Contains(r.err, "cannot place the job") || !hit)
	if j, known := s.jobs(s.from)[name]; known && j.ExitCode == nil || !known && !unplaced {
		s.t.Errorf("%s: the record has no end of the job: %+v: %s", k, j, r)
	}
}

func (s spawner) judge(name string, k spawnKill, r result, hit bool, starts [2]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	twice := slices.ContainsFunc(starts[:], func(n int) bool { return n > 1 })
	switch {
	case twice:
		s.t.Errorf("%s: ranks were started %v times: %s", k, starts, r)
	case r.code == 0 && starts == [2]int{1, 1}:
		s.well++
	case r.code == 125 && starts == [2]int{}:
		s.none++
	case r.code == 125 && k.who != "agent", r.code == 137 && strings.Contains(k.who, "rank"):
		s.broken++ // the shim's death is that of ranks which have begun
	default:
		s.t.Errorf("%s: ranks were started %v times: %s", k, starts, r)
	}
	if !hit {
		s.missed++
	}
}

// agentOf is the process of a host's agent, as the host counts.
func (s spawner) agentOf(host string) string {
	s.t.Helper()
	b, err := os.ReadFile("/var/tmp/sparkrun-lab/" + s.name + "/hosts/" + host + "/agent.pid")
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// restart starts a host's agent again, once the last one has let go of its lock.
func (s spawner) restart(host, last string) {
	s.t.Helper()
	eventually(s.t, time.Minute, "the end of the agent of "+host, func() bool {
		return s.on(host, "test", "-e", "/proc/"+last).code != 0
	})
	s.do("start", host, "--agent")
	s.on(s.from, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(s.t)
}

// leftovers are folders of tries on a host, which go when their end is recorded.
func (s spawner) leftovers(host string) (left string) {
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(50 * time.Millisecond) {
		left = s.on(host, "sh", "-c", "ls /run/sparkrun/jobs; ls -d /dev/shm/sparkrun* 2>/dev/null").out
		if left == "" {
			break
		}
	}
	return left
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
