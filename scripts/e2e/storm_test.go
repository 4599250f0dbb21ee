package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

// storm is a lab in which jobs of witnesses run while things break. What it does
// is drawn from a seed; when each thing happens is up to the machine.
type storm struct {
	*lab
	nodes    int
	shared   string // what all hosts see
	dir      string // of it: where the witnesses write
	bounds   witness.Bounds
	together int // how many things break at once, at most
	most     time.Duration
	next     string // the program of the next release; empty: there is none, or all run it
	mpi      string // the MPI program; empty: there is none
	engines  bool   // of containers, on each host
	began    time.Time

	mu      sync.Mutex
	names   []string // of jobs, in the order of their launches
	faults  []witness.Fault
	overs   []witness.Over
	asks    []witness.Ask
	waited  []waited
	births  map[string]witness.Birth // by folder
	wrong   []string                 // what people saw that cannot be right
	told    []string                 // what was broken when, and what else there is to tell
	held    map[string]map[witness.Broken]bool
	watches map[string]*exec.Cmd
	users   sync.WaitGroup // what people on the hosts have typed
	counts  map[string]int
	tried   map[string]*tried // by kind

	generations map[string]int // that a job may have, by name
}

// tried is what became of one kind of thing that people typed.
type tried struct{ all, well int }

// act is one thing that may happen. It returns when it is done; what it broke is
// whole again.
type act struct {
	name   string
	weight int
	breaks bool // else it is something that people type
	do     func(*player)
}

// player does one thing.
type player struct {
	*storm
	rng  *rand.Rand
	over <-chan struct{} // closed when there is no use in waiting any more
}

const stormGrace = time.Second

func newStorm(t testing.TB, sparkrun string, nodes int, bounds witness.Bounds) *storm {
	t.Helper()
	s := &storm{
		shared: scratch(t), nodes: nodes, bounds: bounds, together: 1, most: 3 * time.Second, began: time.Now(),
		births: map[string]witness.Birth{}, held: map[string]map[witness.Broken]bool{}, watches: map[string]*exec.Cmd{}, counts: map[string]int{}, tried: map[string]*tried{},
		generations: map[string]int{},
	}
	s.dir = s.shared
	t.Cleanup(s.users.Wait) // when the lab is down, and with it whom they wait for
	s.lab = up(t, s.nodes, "--binary", sparkrun)
	t.Cleanup(s.unwatchAll) // before the lab goes down
	s.watchAll()
	return s
}

func (s *storm) watchAll() {
	for _, h := range other(s.nodes) {
		s.watch(h)
	}
}

// watch has a host ask for all jobs' states again and again, the less often the more do.
func (s *storm) watch(host string) {
	every := time.Duration(s.nodes) * 80 * time.Millisecond
	cmd := s.command("exec", host, "--", witnessBinary, "watch", s.dir, "--every", every.String())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[host] = cmd
}

func (s *storm) unwatch(host string) {
	s.mu.Lock()
	cmd := s.watches[host]
	delete(s.watches, host)
	s.mu.Unlock()
	if cmd != nil {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait() // with whatever code: its host may have lost power
	}
}

func (s *storm) unwatchAll() {
	for _, h := range other(s.nodes) {
		s.unwatch(h)
	}
}

func (p *player) pick(from ...string) string { return from[p.rng.IntN(len(from))] }

func (p *player) host() string { return p.pick(other(p.nodes)...) }

// one tells whether one of n chances has come.
func (p *player) one(n int) bool { return p.rng.IntN(n) == 0 }

// tell keeps a line for whoever wants to know what came before a violation.
func (s *storm) tell(format string, args ...any) {
	line := fmt.Sprintf("%7.1f s  ", time.Since(s.began).Seconds()) + fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, line)
}

// broken has hosts broken in one way while something happens, and notes it. Where that cannot be, for one is
// broken in that way already, or is off or to go off and broken in any, nothing happens.
func (s *storm) broken(what witness.Broken, hosts []string, how string, while func()) {
	if !s.hold(what, hosts) {
		return
	}
	s.tell("%s: %s", strings.Join(hosts, " "), how)
	s.mu.Lock()
	first := len(s.faults)
	for _, h := range hosts {
		s.faults = append(s.faults, witness.Fault{Host: h, What: what, From: witness.Now()})
	}
	s.mu.Unlock()
	while()
	s.mu.Lock()
	for i, h := range hosts {
		s.faults[first+i].To = witness.Now()
		delete(s.held[h], what)
	}
	s.mu.Unlock()
	s.tell("%s: no more: %s", strings.Join(hosts, " "), how)
}

func (s *storm) hold(what witness.Broken, hosts []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hosts {
		if s.held[h][what] || s.held[h][witness.Power] || what == witness.Power && len(s.held[h]) > 0 {
			return false
		}
	}
	for _, h := range hosts {
		if s.held[h] == nil {
			s.held[h] = map[witness.Broken]bool{}
		}
		s.held[h][what] = true
	}
	return true
}

// about waits for d, less or more by a half.
func (p *player) about(d time.Duration) {
	select {
	case <-time.After(d/2 + time.Duration(p.rng.Int64N(int64(d)))):
	case <-p.over:
	}
}

// rage has what acts say happen until the time is up, or seen, asked again and
// again, has seen enough. People go on typing while something is broken. An act
// draws from its number alone: how long others took changes nothing for it.
func (s *storm) rage(seed uint64, d time.Duration, seen func() bool, acts ...act) {
	var types, breaks []act
	for _, a := range acts {
		to := &types
		if a.breaks {
			to = &breaks
		}
		*to = append(*to, slices.Repeat([]act{a}, a.weight)...)
	}
	over := make(chan struct{})
	var players sync.WaitGroup
	play := func(acts []act, rng *rand.Rand) {
		a := acts[rng.IntN(len(acts))]
		s.mu.Lock()
		s.counts[a.name]++
		s.mu.Unlock()
		defer func() {
			if r := recover(); r != nil {
				s.cannot("%s: %v\n%s", a.name, r, debug.Stack())
			}
		}()
		a.do(&player{storm: s, rng: rng, over: over})
	}
	each := func(acts []act, stream uint64, do func(*rand.Rand)) {
		for n := uint64(0); len(acts) > 0 && !isClosed(over); n++ {
			do(rand.New(rand.NewPCG(seed, n<<1|stream)))
		}
	}
	players.Go(func() { each(types, 0, func(rng *rand.Rand) { play(types, rng) }) })
	players.Go(func() {
		each(breaks, 1, func(rng *rand.Rand) {
			var wave sync.WaitGroup
			for range 1 + rng.IntN(s.together) {
				own := rand.New(rand.NewPCG(rng.Uint64(), 0))
				wave.Go(func() { play(breaks, own) })
			}
			wave.Wait()
			if s.together > 1 && rng.IntN(3) == 0 { // time for what has to come within a time
				(&player{rng: rng, over: over}).about(s.bounds.Kill)
			}
		})
	})
	players.Go(func() { s.tend(over) })
	for end := time.Now().Add(d); time.Now().Before(end) && !s.t.Failed() && !seen(); {
		time.Sleep(300 * time.Millisecond)
		s.seeBirths()
	}
	close(over)
	players.Wait()
	s.tend(over)
}

// tend starts agents that have ended by themselves, as the unit would: one whose disk stands still for 5 s does.
func (s *storm) tend(over <-chan struct{}) {
	agents := map[string]string{}
	lives := func(host string) bool {
		if args, _ := os.ReadFile(agents[host]); strings.Contains(string(args), "agent") {
			return true
		}
		pids := s.agents(host)
		if len(pids) > 0 {
			agents[host] = fmt.Sprintf("/proc/%d/cmdline", pids[0])
		}
		return len(pids) > 0
	}
	for last := false; !last; time.Sleep(time.Second) {
		last = isClosed(over)
		for _, h := range other(s.nodes) {
			if s.wants(h) && !lives(h) {
				touched := s.touched(h)
				s.broken(witness.Agent, []string{h}, "its agent has ended by itself", func() {
					if !lives(h) {
						if !touched {
							s.cannot("the agent of %s has ended by itself, and nothing was done to it: its log tells why", h)
						}
						s.do("start", h, "--agent")
					}
				})
			}
		}
	}
}

// touched tells whether a host's agent, its disk or its power was broken within the last half minute.
func (s *storm) touched(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.faults, func(f witness.Fault) bool {
		return f.Host == host && f.What != witness.Network && (f.To == 0 || witness.Now()-f.To < int64(30*time.Second))
	})
}

// wants tells whether a host should have an agent.
func (s *storm) wants(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.held[host][witness.Power] && !s.held[host][witness.Agent]
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// settle makes everything whole, has every job end, and everything said of it.
func (s *storm) settle() {
	s.t.Helper()
	s.users.Wait()
	s.on("spark1", "sparkrun", "status", "--wait-nodes", strconv.Itoa(s.nodes), "--timeout", "90s").must(s.t)
	for _, j := range s.live() {
		s.stop("spark1", j.ID)
	}
	s.users.Wait()
	eventually(s.t, 90*time.Second, "every job has ended", func() bool { return len(s.live()) == 0 })
	s.unwatchAll()
	s.assertNothingLeft(other(s.nodes)...)
}

// live are the jobs that have not ended.
func (s *storm) live() (live []job) {
	s.t.Helper()
	check(s.t, json.Unmarshal([]byte(s.on("spark1", "sparkrun", "ps", "--json").must(s.t).out), &live))
	return live
}

// history is what has been seen so far; with logs, also what is read back.
func (s *storm) history(logs bool) witness.History {
	s.t.Helper()
	records, err := witness.Read(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	s.seeBirths()
	s.mu.Lock()
	h := witness.History{Records: records, Faults: slices.Clone(s.faults), Overs: slices.Clone(s.overs), Asks: slices.Clone(s.asks), Bounds: s.bounds,
		Births: slices.Collect(maps.Values(s.births))}
	s.mu.Unlock()
	if logs {
		h.Logs = s.readLogs(h)
	}
	return h
}

// outputs are the folders for the output of what was prepared on a host.
func (s *storm) outputs(host string) []string {
	all, _ := filepath.Glob(filepath.Join("/var/tmp/sparkrun-lab", s.name, "hosts", host, "lib/logs/*/*"))
	return all
}

// seeBirths looks at the folders for output on the hosts' disks, before they are too many to be kept.
func (s *storm) seeBirths() {
	for _, host := range other(s.nodes) {
		for _, path := range s.outputs(host) {
			gen, err := strconv.ParseUint(filepath.Base(path), 10, 64)
			s.mu.Lock()
			_, seen := s.births[path]
			s.mu.Unlock()
			if seen || err != nil {
				continue
			}
			var st unix.Statx_t
			if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &st); err == unix.ENOENT {
				continue // removed meanwhile
			} else if err != nil {
				s.t.Error(&fs.PathError{Op: "statx", Path: path, Err: err})
				return
			}
			if st.Mask&unix.STATX_BTIME == 0 {
				s.t.Errorf("%s: this file system keeps no time of birth", path)
				return
			}
			b := witness.Birth{Key: witness.Key{Job: filepath.Base(filepath.Dir(path)), Generation: gen}, Host: host,
				Real: st.Btime.Sec*1e9 + int64(st.Btime.Nsec)}
			s.mu.Lock()
			s.births[path] = b
			s.mu.Unlock()
		}
	}
}

// readLogs reads back what every rank of every try wrote.
func (s *storm) readLogs(h witness.History) []witness.Log {
	s.t.Helper()
	hosts := map[witness.Key]map[int32]string{}
	for _, r := range h.Records {
		if r.Kind == witness.Start {
			if hosts[r.Key()] == nil {
				hosts[r.Key()] = map[int32]string{}
			}
			hosts[r.Key()][r.Rank] = r.Host
		}
	}
	var all []witness.Log
	for key, ranks := range hosts {
		logs := map[int32]*witness.Log{}
		for rank, host := range ranks {
			logs[rank] = &witness.Log{Key: key, Rank: rank, Host: host}
		}
		r := s.on("spark1", "sparkrun", "logs", key.Job, "--generation", strconv.FormatUint(key.Generation, 10), "--output", "json").must(s.t)
		for line := range strings.Lines(r.out) {
			var o struct {
				Type    string
				Rank    int32
				Stream  string
				Offset  int64
				Line    string
				Partial bool
				Text    string
			}
			if err := json.Unmarshal([]byte(line), &o); err != nil {
				s.t.Fatalf("logs of %s: %v: %s", key, err, line)
			}
			switch {
			case o.Type == "note":
				_, text, _ := strings.Cut(o.Text, ": ") // behind the host's name
				var rank int32
				if _, err := fmt.Sscanf(text, "rank %d:", &rank); err == nil && logs[rank] != nil {
					logs[rank].Notes++
				}
			case o.Type == "output" && o.Stream == "out":
				if logs[o.Rank] == nil {
					s.t.Fatalf("logs of %s: rank %d, which never started, printed %s", key, o.Rank, line)
				}
				if !o.Partial {
					o.Line += "\n"
				}
				logs[o.Rank].Pieces = append(logs[o.Rank].Pieces, witness.Piece{Offset: o.Offset, Data: o.Line})
			}
		}
		for _, l := range logs {
			all = append(all, *l)
		}
	}
	return all
}
