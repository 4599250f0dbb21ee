package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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
	nodes  int
	dir    string // where the witnesses write
	bounds witness.Bounds

	mu      sync.Mutex
	names   []string // of jobs, in the order of their launches
	faults  []witness.Fault
	overs   []witness.Over
	asks    []witness.Ask
	watches map[string]*exec.Cmd
	users   sync.WaitGroup // what people on the hosts have typed
	counts  map[string]int
}

// act is one thing that may happen. It returns when it is done; what it broke is
// whole again.
type act struct {
	name   string
	weight int
	breaks bool // else it is something that people type
	do     func(*player)
}

// player does one thing after another.
type player struct {
	*storm
	rng  *rand.Rand
	over <-chan struct{} // closed when there is no use in waiting any more
}

const stormGrace = time.Second

func newStorm(t testing.TB, sparkrun string, bounds witness.Bounds) *storm {
	t.Helper()
	s := &storm{dir: scratch(t), nodes: 3, bounds: bounds, watches: map[string]*exec.Cmd{}, counts: map[string]int{}}
	t.Cleanup(s.users.Wait) // when the lab is down, and with it whom they wait for
	s.lab = up(t, s.nodes, "--binary", sparkrun)
	for _, h := range other(s.nodes) {
		s.watch(h)
	}
	t.Cleanup(func() { // before the lab goes down
		for h := range s.watches {
			s.unwatch(h)
		}
	})
	return s
}

// watch has a host ask for all jobs' states again and again.
func (s *storm) watch(host string) {
	cmd := s.command("exec", host, "--", witnessBinary, "watch", s.dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.watches[host] = cmd
}

func (s *storm) unwatch(host string) {
	if cmd := s.watches[host]; cmd != nil {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait() // with whatever code: its host may have lost power
		delete(s.watches, host)
	}
}

func (p *player) pick(from ...string) string { return from[p.rng.IntN(len(from))] }

func (p *player) host() string { return p.pick(other(p.nodes)...) }

// one tells whether one of n chances has come.
func (p *player) one(n int) bool { return p.rng.IntN(n) == 0 }

// broken notes a fault around what happens in while.
func (s *storm) broken(what witness.Broken, host string, while func()) {
	s.mu.Lock()
	i := len(s.faults)
	s.faults = append(s.faults, witness.Fault{Host: host, What: what, From: witness.Now()})
	s.mu.Unlock()
	while()
	s.mu.Lock()
	s.faults[i].To = witness.Now()
	s.mu.Unlock()
}

// about waits for d, less or more by a half.
func (p *player) about(d time.Duration) {
	select {
	case <-time.After(d/2 + time.Duration(p.rng.Int64N(int64(d)))):
	case <-p.over:
	}
}

// types has somebody on a host type a command, and waits for it elsewhere.
func (s *storm) types(host string, then func(result), args ...string) {
	s.users.Go(func() {
		r := s.start(host, append([]string{"timeout", "60", "sparkrun"}, args...)...).wait()
		if then != nil {
			then(r)
		}
	})
}

// launch starts a job of witnesses: flags of launch, then those of the rank.
func (s *storm) launch(host string, flags, rank []string) {
	s.mu.Lock()
	name := fmt.Sprintf("w-%d", len(s.names)) // the beginning of no id
	s.names = append(s.names, name)
	i := len(s.asks)
	s.asks = append(s.asks, witness.Ask{Name: name, Launch: true, Told: witness.Accepted, Host: host, From: witness.Now()})
	s.mu.Unlock()
	args := slices.Concat([]string{"launch", "exec", "-d", "--name", name, "--grace", stormGrace.String(), "--start-timeout", s.bounds.StartTimeout.String()}, flags, []string{"--", witnessBinary, "rank", s.dir}, rank)
	s.types(host, func(r result) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.code == 0 {
			s.asks[i].To = witness.Now()
		}
	}, args...)
}

func (s *storm) stop(host, name string) {
	ask := witness.Ask{Name: name, Told: witness.Ended, Host: host, From: witness.Now()}
	s.types(host, func(r result) {
		s.mu.Lock()
		defer s.mu.Unlock()
		ask.To = witness.Now()
		switch f := strings.Fields(r.out); {
		case strings.Contains(r.err, string(witness.NoSuch)+":"):
			ask.Told = witness.NoSuch
		case r.code != 0:
			return // no leader in time
		case len(f) > 1 && f[len(f)-1] == "ended": // the id is what witnesses know: "job ID has ended"
			s.overs = append(s.overs, witness.Over{Job: f[1], At: ask.To})
		}
		s.asks = append(s.asks, ask)
	}, "stop", name)
}

// The acts.

func launches(p *player) {
	flags := []string{"--nodes", p.pick("1", "2", "3", "2:3"), "--nproc-per-node", p.pick("1", "1", "2"), "--node-timeout", p.pick("3s", "10s")}
	rank := []string{"--life", fmt.Sprintf("%dms", 1000+p.rng.IntN(8000))}
	switch p.rng.IntN(4) {
	case 0:
		rank = append(rank, "--code", "3", "--only", "0")
	case 1:
		rank = nil // until it is stopped
	}
	if p.one(2) {
		flags = append(flags, "--max-restarts", p.pick("1", "2"))
	}
	if p.one(4) {
		flags = append(flags, "--on-failure", "continue")
	}
	if p.one(3) {
		rank = append(rank, "--forks")
	}
	if p.one(4) {
		rank = append(rank, "--deaf")
	}
	if p.one(4) { // more than is kept
		flags = append(flags, "--max-output", "512KiB")
		rank = append(rank, "--pace", "3ms")
	}
	if p.one(5) {
		flags = append(flags, "--before", fmt.Sprintf("exec %s rank %s --stage before --life 200ms", witnessBinary, p.dir))
	}
	p.launch(p.host(), flags, rank)
	p.about(600 * time.Millisecond)
}

// refused launches what one host cannot run: the others alone have its folder.
func refused(p *player) {
	lacks := p.host()
	have := other(p.nodes, lacks)
	folder := fmt.Sprintf("/tmp/not-on-%s", lacks)
	for _, h := range have {
		p.on(h, "mkdir", "-p", folder) // fails where the power is out
	}
	p.launch(p.host(), []string{"--on", strings.Join(append(have, lacks), ","), "--workdir", folder}, []string{"--life", "2s"})
	p.about(300 * time.Millisecond)
}

// stops ends one of the latest jobs.
func stops(p *player) {
	p.mu.Lock()
	names := slices.Clone(p.names)
	p.mu.Unlock()
	if len(names) > 0 {
		p.stop(p.host(), p.pick(names[max(0, len(names)-6):]...))
	}
	p.about(300 * time.Millisecond)
}

func killsAgent(p *player) { p.agentDown(p.host()) }

func killsLeader(p *player) {
	if l := p.leader(p.host()); l != "" {
		p.agentDown(l)
	}
}

func (p *player) agentDown(host string) {
	p.broken(witness.Agent, host, func() {
		p.do("kill", host, "--agent")
		p.about(time.Second)
		p.do("start", host, "--agent")
	})
	p.about(time.Second)
}

// halts has an agent stand still until the others have long elected another leader: it wakes up with what it knew.
func halts(p *player) { p.halt(p.host()) }

func haltsLeader(p *player) {
	if l := p.leader(p.host()); l != "" {
		p.halt(l)
	}
}

func (p *player) halt(host string) {
	p.broken(witness.Agent, host, func() {
		p.on(host, "pkill", "-STOP", "-f", "sparkrun agent")
		p.about(8 * time.Second)
		p.on(host, "pkill", "-CONT", "-f", "sparkrun agent")
	})
	p.about(time.Second)
}

func losesPower(p *player) {
	host := p.host()
	p.broken(witness.Power, host, func() {
		p.do("kill", host)
		p.unwatch(host)
		p.about(1500 * time.Millisecond)
		p.do("start", host)
	})
	p.watch(host)
	p.about(time.Second)
}

func cuts(p *player) {
	host := p.host()
	p.broken(witness.Network, host, func() {
		p.do("cut", host, p.pick("mgmt", "all", "all", "fabric"))
		p.about(3 * time.Second)
		p.do("heal", host)
	})
	p.about(500 * time.Millisecond)
}

var everything = []act{
	{"launch", 6, false, launches}, {"launch what a host refuses", 1, false, refused}, {"stop", 2, false, stops},
	{"kill an agent", 2, true, killsAgent}, {"kill the leader's agent", 2, true, killsLeader},
	{"halt an agent", 1, true, halts}, {"halt the leader's agent", 1, true, haltsLeader}, {"take a host's power", 1, true, losesPower}, {"cut a network", 2, true, cuts},
}

// rage has what acts say happen until the time is up, or seen, asked again and
// again, has seen enough. People go on typing while something is broken.
func (s *storm) rage(seed uint64, d time.Duration, seen func() bool, acts ...act) {
	over := make(chan struct{})
	var players sync.WaitGroup
	for _, breaks := range []bool{false, true} {
		p := &player{storm: s, rng: rand.New(rand.NewPCG(seed, uint64(len(acts)))), over: over}
		var mine []act
		for _, a := range acts {
			if a.breaks == breaks {
				mine = append(mine, slices.Repeat([]act{a}, a.weight)...)
			}
		}
		if len(mine) == 0 {
			continue
		}
		players.Go(func() {
			for !isClosed(over) {
				a := mine[p.rng.IntN(len(mine))]
				s.mu.Lock()
				s.counts[a.name]++
				s.mu.Unlock()
				a.do(p)
			}
		})
	}
	for end := time.Now().Add(d); time.Now().Before(end) && !s.t.Failed() && !seen(); {
		time.Sleep(300 * time.Millisecond)
	}
	close(over)
	players.Wait()
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
	s.on("spark1", "sparkrun", "status", "--wait-nodes", strconv.Itoa(s.nodes), "--timeout", "60s").must(s.t)
	for name, j := range s.jobs("spark1") {
		if j.ExitCode == nil {
			s.stop("spark1", name)
		}
	}
	s.users.Wait()
	eventually(s.t, 90*time.Second, "every job has ended", func() bool {
		for _, j := range s.jobs("spark1") {
			if j.ExitCode == nil {
				return false
			}
		}
		return true
	})
	for _, h := range other(s.nodes) {
		s.unwatch(h)
	}
	s.assertNothingLeft(other(s.nodes)...)
}

// history is what has been seen so far; with logs, also what is read back.
func (s *storm) history(logs bool) witness.History {
	s.t.Helper()
	records, err := witness.Read(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	h := witness.History{Records: records, Faults: slices.Clone(s.faults), Overs: slices.Clone(s.overs), Asks: slices.Clone(s.asks), Bounds: s.bounds}
	s.mu.Unlock()
	h.Births = s.births()
	if logs {
		h.Logs = s.readLogs(h)
	}
	return h
}

// births looks at the folders for output on the hosts' disks.
func (s *storm) births() []witness.Birth {
	s.t.Helper()
	var all []witness.Birth
	for _, host := range other(s.nodes) {
		dir := filepath.Join("/var/tmp/sparkrun-lab", s.name, "hosts", host, "lib", "logs")
		jobs, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			s.t.Fatal(err)
		}
		for _, job := range jobs {
			tries, err := os.ReadDir(filepath.Join(dir, job.Name()))
			if err != nil {
				s.t.Fatal(err)
			}
			for _, try := range tries {
				gen, err := strconv.ParseUint(try.Name(), 10, 64)
				if err != nil {
					continue
				}
				var st unix.Statx_t
				path := filepath.Join(dir, job.Name(), try.Name())
				if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &st); err != nil {
					s.t.Fatal(&fs.PathError{Op: "statx", Path: path, Err: err})
				}
				if st.Mask&unix.STATX_BTIME == 0 {
					s.t.Fatalf("%s: this file system keeps no time of birth", path)
				}
				all = append(all, witness.Birth{Key: witness.Key{Job: job.Name(), Generation: gen}, Host: host,
					Real: st.Btime.Sec*1e9 + int64(st.Btime.Nsec)})
			}
		}
	}
	return all
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
