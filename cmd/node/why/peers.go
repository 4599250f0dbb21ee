package why

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// waitsForPeers: its main thread waits for something that others send, or a lock that such a thread would give.
func waitsForPeers(r wire.RankLook) bool {
	return r.CPU < 2*quiet && slices.Contains([]string{"lock", "network", "poll"}, r.Main.In)
}

// sleeps: its main thread waits for a time, a person or what reads its output, not for others.
func sleeps(r wire.RankLook) bool {
	return r.CPU < 2*quiet && slices.Contains([]string{"sleep", "terminal", "pipe", "input"}, r.Main.In)
}

// spins: one of its threads runs all the time, as NCCL's and MPI's do that wait for others; or it works.
func spins(r wire.RankLook) bool { return r.Top >= 0.8 }

// meetings are parts of the names of functions in which ranks wait for each other.
var meetings = []string{"barrier", "all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "broadcast",
	"all_to_all", "alltoall", "bcast", "init_process_group", "rendezvous", "new_group", "scatter", "gather", "reduce",
	"recv"}

// meeting is the innermost function of a stack in which its rank waits for others; empty: it is in none. Python's
// multiprocessing has functions of such names that wait for the rank's own processes.
func meeting(stack []string) string {
	for _, frame := range stack {
		if strings.Contains(frame, "(multiprocessing/") {
			return ""
		}
		name, _, _ := strings.Cut(frame, " (")
		name = strings.ToLower(name[strings.LastIndexByte(name, '.')+1:])
		if slices.ContainsFunc(meetings, func(m string) bool { return strings.Contains(name, m) }) {
			return frame
		}
	}
	return ""
}

// wait says that they do.
func wait(ranks []wire.RankLook) string {
	if len(ranks) == 1 {
		return list(ranks) + " waits"
	}
	return list(ranks) + " wait"
}

func list(ranks []wire.RankLook) string {
	word := "rank "
	if len(ranks) > 1 {
		word = "ranks "
	}
	var texts []string
	for _, r := range ranks {
		texts = append(texts, fmt.Sprint(r.Rank))
	}
	return word + strings.Join(texts, ", ")
}

// peers says which ranks wait for which. Those of several stages do different things; and those of a service wait for
// each other as long as there are no requests: once it has been ready, it is judged by its answers. Nobody is sure of
// what has not lasted.
func (e Evidence) peers() (out []wire.WhyFinding) {
	if e.Job == nil || len(e.Job.Spec.Steps()) > 1 ||
		e.Job.Service != nil && e.Job.Service.State != launcher.ServiceStarting {
		return nil
	}
	all := e.ranks()
	if out = e.loading(all); len(out) == 0 {
		out = e.missing(all)
	}
	switch {
	case len(out) > 0 || len(all) < 2:
	case slices.ContainsFunc(all, func(r wire.RankLook) bool { return len(r.Stacks) == 0 }):
		out = byKernel(e, all)
	default:
		out = byStacks(e, all)
	}
	if len(out) == 0 && len(all) > 1 {
		out = slices.Concat(e.slowest(all), e.computes(all), e.offGPU(all))
	}
	if i := slices.IndexFunc(all, func(r wire.RankLook) bool { return len(r.Dumps) > 0 }); i >= 0 && len(sure(out)) == 0 {
		r := all[i]
		out = append(out, wire.WhyFinding{Code: "gave-up-waiting", Sure: 65, Rank: new(r.Rank), Host: r.Host,
			Text:     fmt.Sprintf("rank %d on %s has waited for others in NCCL until its time was up", r.Rank, r.Host),
			Evidence: []string{recorder(r)}, Remedy: fmt.Sprintf("sparkrun logs %s --rank %d", e.Job.Spec.ID, r.Rank)})
	}
	return out
}

// ranks are all that were seen, in order.
func (e Evidence) ranks() (all []wire.RankLook) {
	for _, l := range e.Looks {
		for _, r := range l.Ranks {
			r.Host = l.Host
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b wire.RankLook) int { return a.Rank - b.Rank })
	return all
}

// sure leaves out what is none yet.
func sure(all []wire.WhyFinding) []wire.WhyFinding {
	return slices.DeleteFunc(slices.Clone(all), func(f wire.WhyFinding) bool { return f.Sure == 0 })
}

func waitFinding(e Evidence, late, waiting []wire.RankLook, sure int, in string) wire.WhyFinding {
	l := late[0]
	f := wire.WhyFinding{Code: "waits-for-rank", Sure: sure, Rank: new(l.Rank), Host: l.Host,
		Text:   fmt.Sprintf("%s on %s is behind: %s for it%s", list(late), l.Host, wait(waiting), in),
		Remedy: fmt.Sprintf("sparkrun logs %s --rank %d", e.Job.Spec.ID, l.Rank)}
	if l.Main.In == "input" {
		f.Remedy = fmt.Sprintf("sparkrun attach %s   # and type; or launch it with --stdin none", e.Job.Spec.ID)
	}
	if what := heldBy(l); what != "" {
		f.Text = fmt.Sprintf("%s on %s waits for %s, and %s for it%s", list(late), l.Host, what, wait(waiting), in)
	}
	if len(late) > 1 {
		f.Text = fmt.Sprintf("%s are behind: %s for them%s", list(late), wait(waiting), in)
	}
	for _, r := range append(slices.Clone(late[:min(len(late), 2)]), waiting[:min(len(waiting), 2)]...) {
		f.Evidence = append(f.Evidence, where(r))
	}
	for _, r := range waiting {
		if len(r.Dumps) > 0 {
			f.Evidence = append(f.Evidence, recorder(r))
			break
		}
	}
	return f
}

// heldBy is what a rank waits for that is no other rank; empty: that is not known.
func heldBy(l wire.RankLook) string {
	switch {
	case l.Main.In == "input":
		return "its standard input"
	case l.Main.In == "sleep" && l.Main.Ran > 2:
		return fmt.Sprintf("something that it looks for %.0f times a second", float64(l.Main.Ran)/window.Seconds())
	case l.Unread != nil:
		return fmt.Sprintf("%s (pid %d) to end, whose output it does not read: the pipe to it is full", l.Unread.Name, l.Unread.PID)
	case l.Under != "":
		return fmt.Sprintf("%s (pid %d), which %s has started", l.Name, l.PID, l.Under)
	}
	return ""
}

// recorder tells of what NCCL's flight recorder has left, and how it is read.
func recorder(r wire.RankLook) string {
	at := strings.LastIndexByte(r.Dumps[0], '/')
	return fmt.Sprintf("NCCL's flight recorder has written %s on %s: bring those of all ranks into one folder, then "+
		"`torchfrtrace --prefix %s FOLDER`", r.Dumps[0], r.Host, strings.TrimRight(r.Dumps[0][at+1:], "0123456789"))
}

// where says what a rank is in.
func where(r wire.RankLook) string {
	text := fmt.Sprintf("rank %d on %s (pid %d): %.2f cores (%.2f since it began)", r.Rank, r.Host, r.PID, r.CPU, r.Mean)
	if len(r.Awaits) > 0 && r.Awaits[0].Main {
		text += ", " + words(r.Awaits[0])
	}
	if len(r.Stacks) > 0 {
		return text + ", in " + strings.Join(r.Stacks[:min(len(r.Stacks), 3)], " < ")
	}
	ins := map[string]string{"lock": "a lock", "file lock": "a file's lock", "sleep": "a time to pass",
		"network": "the network", "poll": "descriptors", "pipe": "a pipe", "input": "its standard input", "terminal": "a terminal", "child": "a child",
		"disk": "a disk"}
	switch word := ins[r.Main.In]; {
	case len(r.Awaits) > 0 && r.Awaits[0].Main:
	case word != "":
		text += ", waits for " + word + " in " + r.Main.At
	case r.Main.State == "R":
		text += ", runs"
	case r.Main.At != "":
		text += ", waits in " + r.Main.At
	}
	return text
}

// byStacks goes by where programs are. A rank that works while others wait for it may do so rightly: it is no finding.
func byStacks(e Evidence, all []wire.RankLook) []wire.WhyFinding {
	var waiting, late, idle []wire.RankLook
	names := map[string]bool{}
	for _, r := range all {
		in := meeting(r.Stacks)
		switch {
		case in != "":
			name, _, _ := strings.Cut(in, " ")
			names[name], waiting = true, append(waiting, r)
			if r.CPU < quiet && r.Main.Ran <= 2 {
				idle = append(idle, r)
			}
		case r.CPU < 2*quiet:
			late = append(late, r)
		default:
			return nil
		}
	}
	switch {
	case len(waiting) > 0 && len(late) > 0:
		in := meeting(waiting[0].Stacks)
		return e.onceLasted(waitFinding(e, late, waiting, 85, " in "+in), late, waiting)
	case len(idle) == len(all) && len(names) > 1:
		f := wire.WhyFinding{Code: "wait-apart", Sure: 70,
			Text:   "its ranks wait for each other in different calls, which never meet",
			Remedy: "sparkrun logs " + string(e.Job.Spec.ID)}
		for _, r := range all[:min(len(all), 4)] {
			f.Evidence = append(f.Evidence, where(r))
		}
		return e.onceLasted(f, nil, all)
	case len(idle) == len(all):
		f := wire.WhyFinding{Code: "all-wait", Sure: 40, Text: "all its ranks wait in the same call, and nothing moves",
			Evidence: []string{where(all[0])}, Remedy: "sparkrun doctor"}
		for _, r := range all {
			if len(r.Dumps) > 0 {
				f.Evidence = append(f.Evidence, recorder(r))
				break
			}
		}
		return e.onceLasted(f, nil, all)
	}
	return nil
}

// byKernel goes by what the kernel says: some ranks sleep, all others wait for what comes over connections between
// them, and nobody has run; or all others spin, which may be work.
func byKernel(e Evidence, all []wire.RankLook) []wire.WhyFinding {
	var waiting, late []wire.RankLook
	sure := 60
	for _, r := range all {
		switch {
		case waitsForPeers(r) && r.Main.Ran <= 2:
			waiting = append(waiting, r)
		case sleeps(r):
			late = append(late, r)
		case spins(r):
			waiting, sure = append(waiting, r), 45
		default:
			return nil
		}
	}
	if sure < 60 && slices.ContainsFunc(late, func(r wire.RankLook) bool { return r.Main.Ran > 0 }) {
		return nil // it looks around from time to time, as one does that has an eye on those that work
	}
	if len(waiting) == len(all) && sure == 60 {
		return e.fellSilent(all)
	}
	if len(late) == 0 || len(waiting) == 0 || !joined(all) {
		return nil
	}
	f := waitFinding(e, late, waiting, sure, "")
	if sure < 60 {
		does := "sleeps"
		if what := heldBy(late[0]); what != "" {
			does = "waits for " + what
		}
		f.Text = fmt.Sprintf("%s on %s %s, while others use all of a core: they may wait for it", list(late), late[0].Host, does)
	}
	if why := late[0].Unseen; why != "" {
		f.Evidence = append(f.Evidence, "where in the program is not known: "+why)
	}
	return e.onceLasted(f, late, waiting)
}

// slowest is a rank that has long done several times the work of each other one, while they take part in each step and
// wait for it in the rest of the time. Rank 0 may have more to do, and one that serves all others has as many times.
func (e Evidence) slowest(all []wire.RankLook) []wire.WhyFinding {
	late := slices.MaxFunc(all, func(a, b wire.RankLook) int { return cmp.Compare(a.CPU, b.CPU) })
	if late.Rank == 0 || late.CPU < 4*quiet || e.Now.Sub(late.Since) < 30*time.Second || !joined(all) {
		return nil
	}
	var rest []wire.RankLook
	for _, r := range all {
		switch {
		case r.Rank == late.Rank:
		case !waitsForPeers(r) && (r.CPU >= 2*quiet || r.Main.State != "R") || r.Main.Ran <= 2 ||
			r.CPU*float64(max(5, 2*len(all))) > late.CPU || r.Mean*2 > late.Mean:
			return nil
		default:
			rest = append(rest, r)
		}
	}
	f := waitFinding(e, []wire.RankLook{late}, rest, 50, "")
	f.Code, f.Text = "slowest-rank", fmt.Sprintf("rank %d on %s works several times as much as each other one: %s for it "+
		"in each step", late.Rank, late.Host, wait(rest))
	return []wire.WhyFinding{f}
}

// fellSilent is a job of which all ranks wait, though all worked in the minutes before, or have exchanged something, and
// nothing for minutes; a service may have no requests, what meets nowhere may have nothing to do, and ranks may wait for
// their GPUs.
func (e Evidence) fellSilent(all []wire.RankLook) []wire.WhyFinding {
	st := e.Job.Spec.MainStage()
	if e.Job.Spec.Service != nil || st == nil || !st.UsesPort || !joined(all) {
		return nil
	}
	for _, l := range e.Looks {
		if slices.ContainsFunc(l.Machine.GPUs, works) {
			return nil
		}
	}
	f := wire.WhyFinding{Code: "fell-silent", Sure: 40, Text: "all its ranks wait, and worked until a short while ago",
		Remedy: "sparkrun logs " + string(e.Job.Spec.ID)}
	for _, r := range all {
		before := e.before(r)
		if before < 4*quiet {
			if silent(all) < 2*lasts || !exchanged(all, r) || serving(r) {
				return nil
			}
			f.Text = "all its ranks wait, and nothing has gone between them for " + silent(all).Round(time.Second).String()
		}
		f.Evidence = append(f.Evidence, fmt.Sprintf("%s; in the minutes before %.2f", where(r), before))
	}
	f.Evidence = f.Evidence[:min(len(f.Evidence), 4)]
	return e.onceLasted(f, nil, all)
}

// exchanged reports whether a rank has sent others more than who they are.
func exchanged(all []wire.RankLook, by wire.RankLook) bool {
	for c, r := range between(all) {
		if r.Rank == by.Rank && c.Total >= 20 {
			return true
		}
	}
	return false
}

// serving reports whether a rank listens where programs wait for requests.
func serving(r wire.RankLook) bool {
	return slices.ContainsFunc(r.Listens, func(a netip.AddrPort) bool {
		return !a.Addr().IsLoopback() && a.Port() < chosen && int(a.Port()) != r.Port
	})
}

// before is how many cores a rank used in the median of the last minutes; 0: not known.
func (e Evidence) before(r wire.RankLook) float64 {
	var all []float64
	for _, l := range e.Looks {
		for _, m := range l.Past {
			if u, ran := useOf(m, r); ran && u.CPU != nil {
				all = append(all, *u.CPU)
			}
		}
	}
	if len(all) < 2 {
		return 0
	}
	return median(all)
}

// joined reports whether ranks have connections to each other.
func joined(all []wire.RankLook) bool {
	for range between(all) {
		return true
	}
	return false
}
