package shim

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// term sends TERM once to each living descendant, then CONT: a stopped process finds the
// TERM pending when it wakes. The ranks' process groups get it as a whole, which the kernel
// makes atomic against fork; processes that left them are found below the shim. The table
// is read twice because a process whose parent dies meanwhile escapes one reading.
func (a *attempt) term() {
	groups := map[int]bool{}
	for _, r := range a.ranks {
		groups[r.pid] = r.running()
	}
	before := map[proc.Stat]bool{}
	for pass := range 2 {
		var others []proc.Stat
		for _, p := range descendants(nil) {
			switch {
			case !groups[p.Group]:
				others = append(others, p)
			case pass == 0:
				before[p.Born()] = true
			case before[p.Born()]:
				// Only a process that was in its group before the signal and after it has
				// surely had it: a handler may fork another one into the group, and one
				// that was seen there may have left it by setsid in time to miss it.
				a.termed[p.Born()] = true
			}
		}
		for _, r := range a.ranks {
			if pass == 0 && r.running() {
				termGroup(r)
			}
		}
		a.termEach(others)
	}
}

// interrupt sends INT to the ranks' process groups, as a terminal does.
func (a *attempt) interrupt() {
	for _, r := range a.ranks {
		if r.running() {
			_ = unix.Kill(-r.pid, unix.SIGINT)
			_ = unix.Kill(-r.pid, unix.SIGCONT)
		}
	}
}

func termGroup(r *rank) {
	_ = unix.Kill(-r.pid, unix.SIGTERM)
	_ = unix.Kill(-r.pid, unix.SIGCONT)
}

// termOrphans sends TERM to processes that were forked while term ran and have lost their
// parent since. A child whose parent lives may be part of that one's cleaning up, and is
// left to it.
func (a *attempt) termOrphans() {
	procs, _ := proc.Here.All()
	living := map[int]bool{}
	for _, r := range a.ranks {
		if r.running() {
			living[r.pid] = true
		}
	}
	var roots []int
	var orphans []proc.Stat
	for _, p := range procs {
		if p.PPID == os.Getpid() && !p.Dead() && !living[p.PID] && !a.termed[p.Born()] {
			roots = append(roots, p.PID)
			orphans = append(orphans, p)
		}
	}
	a.termEach(append(orphans, below(procs, roots, nil)...))
}

// termEach skips processes that have had it: some programs take a second TERM as
// impatience.
func (a *attempt) termEach(procs []proc.Stat) {
	for _, p := range procs {
		if a.termed[p.Born()] {
			continue
		}
		a.termed[p.Born()] = true
		_ = unix.Kill(p.PID, unix.SIGTERM)
		_ = unix.Kill(p.PID, unix.SIGCONT)
	}
}

// kill sends KILL to everything, once. A process that was forked meanwhile is found by the
// next pass, which follows each death: a killed process cannot finish a fork, and what it
// left becomes the shim's child.
func (a *attempt) kill() {
	if a.cfg.Stays && a.phase < ending {
		a.cg.killEach()
	} else {
		a.cg.kill()
	}
	for _, r := range a.ranks {
		r.contained.kill()
	}
	for _, p := range descendants(nil) {
		_ = unix.Kill(p.PID, unix.SIGKILL)
	}
}

// killHolders ends what an exited rank left behind and what still holds its output.
// Descendants of running ranks are not touched.
func (a *attempt) killHolders(r *rank) {
	r.contained.kill()
	living := map[int]bool{}
	for _, o := range a.ranks {
		if o.running() {
			living[o.pid] = true
		}
	}
	var held []proc.Stat
	for _, p := range descendants(living) {
		for _, pipe := range r.holds {
			if proc.Here.Opens(p.PID, func(file string) bool { return file == pipe }) {
				held = append(held, p)
				break
			}
		}
	}
	a.tellLeft(r.Rank.Rank, held)
	for _, p := range held {
		_ = unix.Kill(p.PID, unix.SIGKILL)
	}
}

// tellLeft reports processes that a rank has left behind, before they are killed: each once.
func (a *attempt) tellLeft(rank int, procs []proc.Stat) {
	procs = slices.DeleteFunc(procs, func(p proc.Stat) bool { return a.left[p.Born()] })
	if len(procs) == 0 {
		return
	}
	var names []string
	for _, p := range procs {
		a.left[p.Born()] = true
		if name := plain.Line(proc.Here.Name(p.PID)); !slices.Contains(names, name) && len(names) < mostStuck {
			names = append(names, name)
		}
	}
	what := "1 process"
	if len(procs) > 1 {
		what = fmt.Sprintf("%d processes", len(procs))
	}
	why := fmt.Sprintf("left %s behind (%s): ended", what, strings.Join(names, ", "))
	a.log.Info("leftovers are killed", "rank", rank, "why", why)
	a.note(Event{Kind: Left, Rank: rank, Why: why})
}

const oomFile = "/proc/self/oom_score_adj"

// protect takes the shim out of the OOM killer's reach, or makes it for a moment as its
// ranks shall be, for they inherit it. If the agent protects itself the ranks must not
// inherit that: they get 0 then.
func (a *attempt) protect(on bool) {
	if a.oomAdj == "" {
		b, err := os.ReadFile(oomFile)
		if err != nil {
			return
		}
		a.oomAdj = strings.TrimSpace(string(b))
	}
	value := "-999"
	if !on {
		n, _ := strconv.Atoi(a.oomAdj)
		value = strconv.Itoa(max(n, 0))
	}
	if a.oomAdj != value || on {
		_ = os.WriteFile(oomFile, []byte(value), 0) // without privilege it stays as it is
	}
}

// descendants are all living ones of this process, without the subtrees of those in except.
func descendants(except map[int]bool) []proc.Stat {
	procs, _ := proc.Here.All()
	return below(procs, []int{os.Getpid()}, except)
}

// below gives the living descendants of the roots (proc.Below).
func below(procs []proc.Stat, roots []int, except map[int]bool) []proc.Stat {
	return slices.DeleteFunc(proc.Below(procs, roots, except), proc.Stat.Dead)
}
