package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

// What people type while a storm goes on.

// types has somebody on a host type a command, and waits for it elsewhere.
func (s *storm) types(host string, then func(result), args ...string) {
	s.users.Go(func() {
		r := s.start(host, append([]string{"timeout", "60"}, args...)...).wait()
		if then != nil {
			then(r)
		}
	})
}

// cannot notes what cannot be right.
func (s *storm) cannot(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.tell("%s", text)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, text)
}

// try notes that something of a kind was typed, and whether it went well.
func (s *storm) try(kind string, well bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tried[kind] == nil {
		s.tried[kind] = &tried{}
	}
	s.tried[kind].all++
	if well {
		s.tried[kind].well++
	}
}

// another names a job of these flags, and notes how many generations it may have.
func (s *storm) another(flags []string) string {
	most := 1
	if i := slices.Index(flags, "--max-restarts"); i >= 0 {
		n, err := strconv.Atoi(flags[i+1])
		check(s.t, err)
		most += n
	}
	if slices.Contains(flags, "--before") {
		most++
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprintf("w-%d", len(s.names)) // the beginning of no id
	s.names = append(s.names, name)
	s.generations[name] = most
	return name
}

// launch starts a job of witnesses: flags of launch, then those of the rank.
func (s *storm) launch(host string, flags, rank []string) {
	s.launchAs(host, "exec", flags, slices.Concat([]string{witnessBinary, "rank", s.dir}, rank))
}

// launchAs starts a job of another kind, or in other words.
func (s *storm) launchAs(host, kind string, flags, command []string) {
	name := s.another(flags)
	args := slices.Concat([]string{"sparkrun", "launch", kind, "-d", "--name", name, "--grace", stormGrace.String(),
		"--start-timeout", s.bounds.StartTimeout.String()}, flags, []string{"--"}, command)
	s.mu.Lock()
	i := len(s.asks)
	s.asks = append(s.asks, witness.Ask{Name: name, Launch: true, Told: witness.Accepted, Host: host, From: witness.Now()})
	s.mu.Unlock()
	if slices.Contains(flags, "--image") {
		kind = "a container"
	}
	s.types(host, func(r result) {
		s.try(kind, r.code == 0)
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
	}, "sparkrun", "stop", name)
}

// some is how many nodes a job is to have, in the words of --nodes.
func (p *player) some() string {
	most := 1 + p.rng.IntN(p.nodes)
	if least := 1 + p.rng.IntN(most); p.one(4) && least < most {
		return fmt.Sprintf("%d:%d", least, most)
	}
	return strconv.Itoa(most)
}

// how draws a job's flags and its ranks'.
func (p *player) how() (flags, rank []string) {
	flags = []string{"--nodes", p.some(), "--nproc-per-node", p.pick("1", "1", "2"), "--node-timeout", p.pick("3s", "10s")}
	rank = []string{"--life", fmt.Sprintf("%dms", 1000+p.rng.IntN(8000))}
	switch p.rng.IntN(4) {
	case 0:
		rank = append(rank, "--code", p.pick("3", "137"), "--only", "0")
	case 1:
		rank = nil // until it is stopped
	}
	if p.one(2) {
		flags = append(flags, "--max-restarts", p.pick("1", "2"))
	}
	if p.one(4) {
		flags, rank = append(flags, "--on-failure", "continue"), append(rank, "--spares")
	}
	if p.one(4) {
		flags = append(flags, "--on-partition", "end")
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
	return flags, rank
}

func launches(p *player) {
	flags, rank := p.how()
	if p.one(5) {
		flags = append(flags, "--before", fmt.Sprintf("exec %s rank %s --stage before --life 200ms", witnessBinary, p.dir))
	}
	p.launch(p.host(), flags, rank)
	p.about(600 * time.Millisecond)
}

// waits launches, and waits for the end, or types Ctrl-C after a while and waits then: who has seen output is told the
// job's end, by its own code.
func waits(p *player) {
	flags, rank := p.how()
	name, host, patience := p.another(flags), p.host(), strconv.Itoa(2+p.rng.IntN(12))
	args := slices.Concat([]string{"timeout", "--preserve-status", "-s", "INT", "-k", "60", patience, "sparkrun", "launch", "exec", "--name", name,
		"--grace", stormGrace.String(), "--start-timeout", p.bounds.StartTimeout.String()}, flags, []string{"--", witnessBinary, "rank", p.dir}, rank)
	p.users.Go(func() {
		w := waited{name: name, host: host, result: p.start(host, args...).wait(), at: witness.Now()}
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.out != "" && w.code >= 0 && w.code != 137 { // its machine has not lost its power meanwhile
			p.waited = append(p.waited, w)
			p.asks = append(p.asks, witness.Ask{Name: name, Told: witness.Ended, Host: host, From: w.at, To: w.at + 1})
		}
	})
	p.about(600 * time.Millisecond)
}

// waited is how a launch that showed output ended.
type waited struct {
	name, host string
	at         int64
	result
}

// assertTold compares how launches ended with how their jobs did. Ctrl-C makes it 130 where it stopped the job, or came when
// that had completed and its output was behind: then launch has nothing to stop.
func (s *storm) assertTold() {
	s.t.Helper()
	jobs := s.jobs("spark1")
	for _, w := range s.waited {
		j, ok := jobs[w.name] // else P1 tells, unless it is of long ago
		interrupted := w.code == 130 && (j.State == "stopped" || j.State == "completed" && !strings.Contains(w.err, "stopping; "))
		if ok && (j.ExitCode == nil || w.code != *j.ExitCode && !interrupted) {
			s.cannot("job %s is %s, and launch on %s had ended at %s: %s", w.name, j.State, w.host, time.Duration(w.at), w.result)
		}
	}
	s.waited = nil
}

// assertTries holds how often jobs were started against how often they may be.
func (s *storm) assertTries() {
	s.t.Helper()
	may := map[string]int{} // by id
	for name, j := range s.jobs("spark1") {
		may[j.ID] = s.generations[name]
	}
	for _, b := range s.births {
		if most := may[b.Job]; most > 0 && int(b.Generation) > most {
			s.cannot("job %s has had a generation %d on %s, and may have %d", b.Job, b.Generation, b.Host, most)
		}
	}
}

// launchesFiles brings a file to the ranks' machines, and has each rank compare it.
func launchesFiles(p *player) {
	flags, rank := p.how()
	const script = `cmp -s sent/file "$0" || echo "$SPARKRUN_GANG: rank $RANK has another file: $(cmp sent/file "$0" 2>&1)" >"$1/wrong.$SPARKRUN_GANG.$RANK"
d=$1 w=$2; shift 2; exec "$w" rank "$d" "$@"`
	command := slices.Concat([]string{"sh", "-c", script, filepath.Join(p.shared, "sent/file"), p.dir, witnessBinary}, rank)
	p.launchAs(p.host(), "exec", append(flags, "--stage", filepath.Join(p.shared, "sent")+":sent"), command)
	p.about(600 * time.Millisecond)
}

// launchesTorchrun has witnesses take the place of torchrun's workers.
func launchesTorchrun(p *player) {
	flags, rank := p.how()
	const script = `for v in LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID; do
	eval "[ -n \"\$$v\" ]" || echo "rank $RANK has no $v" >"$0/wrong.torchrun.$RANK"
done
d=$0 w=$1; shift; exec "$w" rank "$d" "$@"`
	p.launchAs(p.host(), "torchrun", append(flags, "--no-python"), slices.Concat([]string{"sh", "-c", script, p.dir, witnessBinary}, rank))
	p.about(600 * time.Millisecond)
}

// launchesContainers has witnesses in containers, where there are engines.
func launchesContainers(p *player) {
	flags, rank := p.how()
	if p.engines {
		programs := filepath.Dir(witnessBinary)
		flags = append(flags, "--image", "lab/busybox", "--mount", p.shared+":"+p.shared, "--mount", programs+":"+programs+":ro")
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
	host, back := p.host(), 1+p.rng.IntN(6)
	if len(names) >= back {
		p.stop(host, names[len(names)-back])
	}
	p.about(300 * time.Millisecond)
}

// launchesMPI wants the right sums of all ranks where it is said to have gone well, and not that output is missing.
func launchesMPI(p *player) {
	host, nodes, per := p.host(), 1+p.rng.IntN(p.nodes), 1+p.rng.IntN(2)
	p.types(host, func(r result) {
		right := strings.Count(r.out, ": right")
		p.try("mpi", r.code == 0 && right == nodes*per)
		if strings.Contains(r.out, "WRONG") || r.code == 0 && right != nodes*per &&
			!strings.Contains(r.err, "lost") && !strings.Contains(r.err, "out of reach") {
			p.cannot("an MPI program of %d ranks: %s", nodes*per, r)
		}
	}, "sparkrun", "launch", "mpi", "--name", p.another(nil), "--timeout", "50s", "--output", "raw", "--nodes", strconv.Itoa(nodes),
		"--nproc-per-node", strconv.Itoa(per), "--", p.mpi, "all")
	p.about(2 * time.Second)
}

const stormModel = "org/mixed"

// pulls has a model come, or go.
func pulls(p *player) {
	host := p.host()
	on := other(p.nodes)[:1+p.rng.IntN(p.nodes)]
	if p.one(4) {
		p.types(host, nil, "sparkrun", "model", "rm", stormModel, "--on", strings.Join(on, ","))
	} else {
		p.types(host, func(r result) { p.try("pull", r.code == 0) }, "sparkrun", "model", "pull", stormModel, "--on", strings.Join(on, ","))
	}
	p.about(2 * time.Second)
}

// serves starts a service, or ends the one before.
func serves(p *player) {
	host, on, stop := p.host(), p.host(), p.one(2)
	if stop {
		p.stop(host, "llm")
	} else {
		script, err := filepath.Abs("testdata/standin_chat.py")
		if err != nil {
			p.t.Error(err)
			return
		}
		p.types(host, func(r result) { p.try("serve", r.code == 0) }, "sparkrun", "launch", "exec", "-d", "--name", "llm", "--on", on, "--serve", "8000", "--health", "/health", "--model", "qwen",
			"--", "python3", script, "8000")
	}
	p.about(2 * time.Second)
}

// requests sends a request to the gateway of a host: what is answered with 200 is whole.
func requests(p *player) {
	host := p.host()
	body := `{"model": "qwen", "messages": [{"role": "user", "content": "Hello"}]}`
	p.types(host, func(r result) {
		text, ok := strings.CutSuffix(strings.TrimSpace(r.out), "\n200")
		p.try("a request", ok)
		if ok && r.code == 0 && !strings.Contains(text, "qwen of spark") {
			p.cannot("the gateway of %s answers 200 and %s", host, r)
		}
	}, "curl", "-sN", "-m", "30", "-w", "\n%{http_code}\n", "-H", "Content-Type: application/json", "-d", body, loopback+"/chat/completions")
	p.about(300 * time.Millisecond)
}
