package shim

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// tellStuck reports, once, what is left when KILL has had its time. The kernel does not let
// a process die that waits for a file server, a disk or a device that never answers; the
// shim can only keep looking.
func (a *attempt) tellStuck() {
	if a.phase != killing || a.stuckAt.IsZero() || !a.due(a.stuckAt) {
		return
	}
	procs, _ := proc.Here.All()
	roots := []int{os.Getpid()}
	for _, r := range a.ranks {
		if r.lives() {
			roots = append(roots, r.contained.init.PID)
		}
	}
	found := below(procs, roots, nil)
	known := map[int]bool{}
	for _, p := range found {
		known[p.PID] = true
	}
	members := a.cg.procs()
	for _, p := range procs {
		// A dead leader whose other threads live counts, and is in no list of living
		// processes.
		if !known[p.PID] && (p.PPID == os.Getpid() || slices.Contains(members, p.PID)) {
			found = append(found, p)
		}
	}
	found = slices.DeleteFunc(found, func(p proc.Stat) bool { state, _ := proc.Here.Stuck(p.PID); return state == "" })
	if len(found) == 0 {
		a.stuckAt = a.now.Add(killAgain) // it died just now, or its output is still being read
		a.due(a.stuckAt)
		return
	}
	a.stuckAt = time.Time{}
	ranks := map[int]int{}
	for _, r := range a.ranks {
		ranks[r.pid] = r.Rank.Rank
	}
	text := stuckText(found, ranks)
	a.log.Warn("processes cannot be killed", "processes", text)
	a.note(Event{Kind: Stuck, Rank: AllRanks, Why: text})
}

// mostStuck bounds how many processes are named, here and by tellLeft.
const mostStuck = 4

// stuckText names the processes that do not die, and why: ranks is by PID, and a process
// belongs to the rank whose session it is in.
func stuckText(procs []proc.Stat, ranks map[int]int) string {
	var texts []string
	for _, p := range procs[:min(len(procs), mostStuck)] {
		text := ""
		rank, ours := ranks[p.PID]
		if !ours {
			rank, ours = ranks[p.Session]
		}
		if ours {
			text = fmt.Sprintf("rank %d: ", rank)
		}
		state, at := proc.Here.Stuck(p.PID)
		text += fmt.Sprintf("process %d (%s) cannot be killed: ", p.PID, plain.Line(proc.Here.Name(p.PID)))
		if state == "D" {
			text += "it waits in the kernel for a disk, a file server or a device that does not answer (state D"
		} else {
			text += "KILL has not ended it (state " + state
		}
		if at != "" {
			text += " in " + at
		}
		texts = append(texts, text+")")
	}
	if more := len(procs) - mostStuck; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}
