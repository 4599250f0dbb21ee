package why

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// movesLeast is from how many bytes a second a rank loads or saves: logs and events are less.
	movesLeast = 64 << 10
	// slowDisk is below what a disk gives a rank that waits for it all the time if something ails it.
	slowDisk = 1 << 20
)

// moved is what the processes of a rank had moved, and where they were in their files.
type moved struct {
	io proc.IO
	at map[string]int64
}

func (w *Why) moved(pids []int) moved {
	m := moved{at: map[string]int64{}}
	for _, pid := range pids {
		io := w.cfg.Proc.IO(pid)
		m.io.Read, m.io.Written = m.io.Read+io.Read, m.io.Written+io.Written
		m.io.CharsIn, m.io.CharsOut = m.io.CharsIn+io.CharsIn, m.io.CharsOut+io.CharsOut
		for file, at := range w.cfg.Proc.Positions(pid) {
			m.at[file] += at
		}
	}
	return m
}

// since is what was moved from then on. What goes to a file that is in memory is on no disk's account; without a file
// it may be a network's.
func (m moved) since(was moved, over time.Duration) (out wire.Moves) {
	var most int64
	for file, at := range m.at {
		if far := max(at-was.at[file], was.at[file]-at); far > most || far == most && far > 0 && file < out.File {
			most, out.File = far, file
		}
	}
	rate := func(now, then int64) float64 { return max(0, float64(now-then)/over.Seconds()) }
	out.Read, out.Written = rate(m.io.Read, was.io.Read), rate(m.io.Written, was.io.Written)
	if out.Read+out.Written < movesLeast && most > 0 {
		out.Read, out.Written = rate(m.io.CharsIn, was.io.CharsIn), rate(m.io.CharsOut, was.io.CharsOut)
	}
	return out
}

func loads(r wire.RankLook) bool { return r.Moves.Read+r.Moves.Written >= movesLeast }

// loading is a rank that loads or saves, whatever it waits for meanwhile, while all others wait for it.
func (e Evidence) loading(all []wire.RankLook) []wire.WhyFinding {
	var late, waiting []wire.RankLook
	for _, r := range all {
		switch {
		case loads(r):
			late = append(late, r)
		case waitsForPeers(r) || meeting(r.Stacks) != "":
			waiting = append(waiting, r)
		default:
			return nil
		}
	}
	if len(late) == 0 || len(waiting) == 0 || !joined(all) {
		return nil
	}
	return e.loader(late, waiting)
}

// loader is the first of those that are late which loads or saves: that is no fault, unless it has done nothing for a
// minute but wait for a disk that gives it next to nothing.
func (e Evidence) loader(late, waiting []wire.RankLook) []wire.WhyFinding {
	i := slices.IndexFunc(late, loads)
	if i < 0 {
		return nil
	}
	r := late[i]
	f := wire.WhyFinding{Text: fmt.Sprintf("rank %d on %s %s: %s for it", r.Rank, r.Host, movesText(r), wait(waiting))}
	if r.Disk >= 0.9 && r.CPU < 2*quiet && r.Moves.Read+r.Moves.Written < slowDisk && len(late) == 1 &&
		e.lasted(slices.Concat(late, waiting)) {
		f.Code, f.Sure, f.Rank, f.Host, f.Evidence = "disk-slow", 55, new(r.Rank), r.Host, []string{where(r)}
		f.Remedy = "sparkrun top"
	}
	return []wire.WhyFinding{f}
}

// movesText says what a rank loads or saves.
func movesText(r wire.RankLook) string {
	var does []string
	size := func(rate float64) string { return launcher.Size(int64(rate)) + "/s" }
	if r.Moves.Written >= movesLeast/2 {
		does = append(does, "writes "+size(r.Moves.Written))
	}
	if r.Moves.Read >= movesLeast/2 {
		does = append(does, "reads "+size(r.Moves.Read))
	}
	text := strings.Join(does, " and ")
	if r.Moves.File != "" {
		text += ", " + r.Moves.File
	}
	if r.Disk > 0 {
		text += fmt.Sprintf(" (it waits for the disk for %.0f %% of the time)", 100*r.Disk)
	}
	return text
}

// fullGroup is from which part of its limit on a group has to give a page back for each one that it gets; pagesLeast are
// pages a second.
const (
	fullGroup  = 0.9
	pagesLeast = 50
)

// pages is a rank that reads from the disk what it had in memory. One that starts reads its program and its model for
// the first time; and a group that is full of what was read once is well. So pages have to come back again.
func (e Evidence) pages(l wire.NodeLook, r wire.RankLook,
	add func(code string, sure int, text, remedy string, evidence ...string)) {
	g, stalled := r.Group, r.Group.Stalled
	if m := l.Machine.Memory; stalled == nil && m != nil {
		stalled = m.Stalled
	}
	waits := stalled != nil && *stalled >= 0.1
	limited := g.Limit > 0 && float64(g.Held) >= fullGroup*float64(g.Limit) && g.Refaults >= pagesLeast
	if r.Faults < pagesLeast || !waits && !limited && r.Swapped <= 16<<20 {
		return
	}
	f := []string{fmt.Sprintf("%.0f pages a second are read back%s", r.Faults, e.peersFaults(r))}
	if r.Swapped > 0 {
		f = append(f, "swapped out: "+launcher.Size(r.Swapped))
	}
	if waits {
		f = append(f, fmt.Sprintf("all of it waits for memory for %.0f %% of the time", 100**stalled))
	}
	text, sure, remedy := "has too little memory, and reads it back from the disk again and again", 75, ""
	if g.Limit > 0 {
		f = append(f, fmt.Sprintf("its cgroup has %s of %s", launcher.Size(g.Held), launcher.Size(g.Limit)))
	}
	if limited {
		sure, remedy = 84, raises(l.Host, g.LimitFile)
		text = fmt.Sprintf("is at its cgroup's limit of %s, and reads back what the kernel takes from it, again and again",
			launcher.Size(g.Limit))
		f = append(f, "set by "+g.LimitFile+": not by sparkrun, whose --memory counts and limits nothing")
	}
	add("paging", sure, text, remedy, append(f, e.others(r))...)
}

// raises is what takes a limit of memory away: systemd would set it again.
func raises(host, file string) string {
	property, none := "MemoryMax", "max"
	switch path.Base(file) {
	case "memory.high":
		property = "MemoryHigh"
	case "memory.limit_in_bytes":
		property, none = "MemoryLimit", "-1"
	}
	switch dir := path.Base(path.Dir(file)); {
	case strings.HasSuffix(dir, ".service"), strings.HasSuffix(dir, ".scope"), strings.HasSuffix(dir, ".slice"):
		return fmt.Sprintf("systemctl set-property --runtime %s %s=infinity   # on %s", dir, property, host)
	}
	return fmt.Sprintf("echo %s > %s   # on %s", none, file, host)
}
