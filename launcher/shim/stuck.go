package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// tellStuck says, once, who is left when KILL has had its time. The kernel lets
// nobody die who waits for a file server, a disk or a device that never
// answers; there is nothing more to do here but to go on looking.
func (g *gang) tellStuck() {
	if g.phase != killing || g.stuckAt.IsZero() || !g.due(g.stuckAt) {
		return
	}
	procs, _ := processes()
	roots := []int{os.Getpid()}
	for _, r := range g.ranks {
		if r.lives() {
			roots = append(roots, r.box.init.pid)
		}
	}
	found := below(procs, roots, nil)
	known := map[int]bool{}
	for _, p := range found {
		known[p.pid] = true
	}
	members := g.cg.procs()
	for _, p := range procs {
		// A dead leader whose other threads live counts, and is in no list of the living.
		if !known[p.pid] && (p.ppid == os.Getpid() || slices.Contains(members, p.pid)) {
			found = append(found, p)
		}
	}
	found = slices.DeleteFunc(found, func(p proc) bool { state, _ := stateOf(p.pid); return state == "" })
	if len(found) == 0 {
		g.stuckAt = g.now.Add(killAgain) // it died just now, or its output is still on its way
		g.due(g.stuckAt)
		return
	}
	g.stuckAt = time.Time{}
	ranks := map[int]int{}
	for _, r := range g.ranks {
		ranks[r.pid] = r.Rank.Rank
	}
	text := stuckText(found, ranks)
	g.log.Warn("killed in vain", "processes", text)
	g.note(Event{Kind: Stuck, Rank: Gang, Why: text})
}

// mostStuck bounds how many processes are named.
const mostStuck = 4

// stuckText names who does not die, and what of: ranks is by PID, and a process
// is counted to the rank whose session it is in.
func stuckText(procs []proc, ranks map[int]int) string {
	var texts []string
	for _, p := range procs[:min(len(procs), mostStuck)] {
		text := ""
		rank, ours := ranks[p.pid]
		if !ours {
			rank, ours = ranks[p.session]
		}
		if ours {
			text = fmt.Sprintf("rank %d: ", rank)
		}
		state, at := stateOf(p.pid)
		comm, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "comm"))
		text += fmt.Sprintf("process %d (%s) cannot be killed: ", p.pid, strings.Map(shown, strings.TrimSpace(string(comm))))
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

// stateOf gives the state (proc(5)) of a process's thread that holds it back,
// and the kernel's function in which it waits, where that may be read. Both are
// empty for a process that is dead.
func stateOf(pid int) (state, at string) {
	tasks, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*"))
	for _, task := range tasks {
		b, err := os.ReadFile(filepath.Join(task, "stat"))
		if err != nil {
			continue
		}
		s := stateIn(string(b))
		if s == "" || s == "Z" || s == "X" || state == "D" {
			continue
		}
		state, at = s, ""
		if b, err := os.ReadFile(filepath.Join(task, "wchan")); err == nil && string(b) != "0" {
			at = string(b)
		}
	}
	return state, at
}

// stateIn is the third field of a stat file; the command before it may hold
// anything.
func stateIn(stat string) string {
	if i := strings.LastIndexByte(stat, ')'); i >= 0 && len(stat) > i+2 {
		return stat[i+2 : i+3]
	}
	return ""
}

// shown is for a process's name, which it chooses itself and a terminal may show.
func shown(r rune) rune {
	if unicode.IsControl(r) {
		return '?'
	}
	return r
}
