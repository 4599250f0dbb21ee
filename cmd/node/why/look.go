package why

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// window is how long a node looks: a rank that takes part in steps of a second shows what it does in each.
	window = 2 * time.Second
	// glances are the times within it at which it is noted what threads wait for.
	glances = 8
	// threadsMost bounds the threads of a process that are looked at.
	threadsMost = 256
	// pastMinutes are told of what the machine used before.
	pastMinutes = 15
	// busyLeast is from how many cores on a program counts that belongs to no rank; so many are told of one by one.
	busyLeast = 0.05
	busyMost  = 3
)

// watched is one rank while it is looked at.
type watched struct {
	key  launcher.Key
	look wire.RankLook
	root int
	pids []int
	// As it was at the first look.
	threads map[int]proc.Thread // by TID
	held    proc.Held
	moved   moved
	faults  uint64
	dead    []int
	waits   map[uint64]waiter               // by the inode of a socket, at the last look
	asks    map[netip.AddrPort][]wire.Await // by UDP, a glance each
	disk    int                             // glances at which a thread waited for a disk
	seen    int
}

// node looks at this node and the ranks on it.
func (w *Why) node(ctx context.Context, r wire.LookRequest) (wire.NodeLook, error) {
	out := wire.NodeLook{ID: w.cfg.Self, Host: w.cfg.Host, Floor: w.cfg.Agent.MemoryFloor()}
	if len(r.Ends) > 0 {
		out.Ends = w.ends(r.Ends, connections())
		return out, nil
	}
	_, _ = w.cfg.Machine(ctx) // rates are between two readings
	all, _ := w.cfg.Proc.All()
	ranks := w.watch(all, r.Job)
	before, conns := map[int]proc.Work{}, connections()
	for _, p := range all {
		before[p.PID], _ = w.cfg.Proc.Work(p.PID)
	}
	ports := map[uint16]bool{torchPort: true}
	for _, k := range ranks {
		w.first(k, before)
		ports[uint16(k.look.Port)] = true //nolint:gosec // it is one
	}
	engine := w.engine(ctx, r)
	delete(ports, 0)
	refusals := watchRefusals(ports)
	defer refusals.end()
	began, queued := time.Now(), map[uint64]uint32{}
	for range glances {
		select {
		case <-time.After(window / glances):
		case <-ctx.Done():
			return out, ctx.Err()
		}
		udp := asks()
		for _, k := range ranks {
			w.glance(k)
			w.asking(k, udp)
		}
		for inode, c := range connections() {
			queued[inode] = max(queued[inode], c.InetDiagMsg.WQueue)
		}
	}
	out.Over = time.Since(began)
	after := connections()
	out.Refused = refusals.end()
	now, _ := w.cfg.Proc.All()
	out.Busy = w.busy(now, before, ranks, out.Over)
	for _, k := range ranks {
		w.second(k, before, out.Over)
		k.look.Conns, k.look.Listens = connsOf(w.cfg.Proc, k.pids, conns, after, queued)
		k.look.Awaits = w.awaits(k, after)
		w.environment(k)
	}
	narrow(ctx, ranks)
	if r.Stacks {
		w.stacks(ctx, ranks)
	}
	out.Engine = <-engine
	for _, d := range w.cfg.Agent.Doing(r.Job) {
		out.Starts = append(out.Starts, wire.StartLook{Job: d.Job, Text: d.Text, For: time.Since(d.Since), Still: time.Since(d.Moved),
			Brief: d.Brief})
	}
	for _, k := range ranks {
		out.Ranks = append(out.Ranks, k.look)
	}
	var err error
	out.Machine, err = w.cfg.Machine(ctx)
	out.Machine.Disks = slices.Clone(out.Machine.Disks) // others may get the same reading
	for _, d := range usage.Disks(r.Folders...) {
		if !slices.ContainsFunc(out.Machine.Disks, func(o usage.Disk) bool { return o.Mount == d.Mount }) {
			out.Machine.Disks = append(out.Machine.Disks, d)
		}
	}
	if past := w.cfg.Past(); len(past) > 0 {
		out.Past = past[max(0, len(past)-pastMinutes):]
	}
	out.Links = w.cfg.Survey.Links()
	out.Counts = w.cfg.Survey.Counted()
	return out, err
}

// watch finds the ranks of a job that run here, and their processes: those below the rank's own, and in a container
// those that bear the attempt's mark.
func (w *Why) watch(all []proc.Stat, job launcher.JobID) (ranks []*watched) {
	for _, e := range w.cfg.Agent.Ledger() {
		if e.Phase != launcher.PhaseStarted || job != "" && e.Job != job {
			continue
		}
		first := len(ranks)
		for _, st := range e.Ranks {
			if st.State != launcher.RankRunning || st.PID == 0 {
				continue
			}
			k := &watched{key: e.Key, root: st.PID, look: wire.RankLook{Job: e.Job, Rank: st.Rank, Since: st.Time,
				Port: e.Port}}
			k.pids = append(k.pids, st.PID)
			for _, p := range proc.Below(all, []int{st.PID}, nil) {
				k.pids = append(k.pids, p.PID)
			}
			ranks = append(ranks, k)
		}
		if own := ranks[first:]; len(own) > 0 {
			w.adopt(all, e.Key, own)
		}
	}
	return ranks
}

// adopt gives ranks the processes that bear their attempt's mark and are not below them, those of containers.
func (w *Why) adopt(all []proc.Stat, key launcher.Key, ranks []*watched) {
	known := map[int]bool{}
	for _, k := range ranks {
		for _, pid := range k.pids {
			known[pid] = true
		}
	}
	for _, p := range all {
		if known[p.PID] {
			continue
		}
		mark, _ := w.cfg.Proc.Env(p.PID, "SPARKRUN_GANG")
		if !strings.HasPrefix(mark, key.String()+"/") {
			continue
		}
		of := ranks[0]
		number, _ := w.cfg.Proc.Env(p.PID, "RANK")
		for _, k := range ranks {
			if strconv.Itoa(k.look.Rank) == number {
				of = k
			}
		}
		of.pids = append(of.pids, p.PID)
	}
}

// program finds the process that does a rank's work: below shells and the like, which wait for their only child; of MPI a
// rank of that. One that a signal has stopped goes first: the others wait for it. Under is the program that has started it
// and waits for it; empty: none does, or one that always does.
func (w *Why) program(k *watched) (pid int, under string) {
	for _, pid := range k.pids {
		if s, ok := w.cfg.Proc.Stat(pid); ok && s.Stopped() {
			return pid, ""
		}
	}
	pid = k.root
	if len(k.pids) > 1 && w.cfg.Proc.OnlyChild(pid) == 0 && !w.below(pid, k.pids) {
		pid = k.pids[1] // of a container
	}
	for _, p := range k.pids {
		_, open := w.cfg.Proc.Env(p, "OMPI_COMM_WORLD_RANK")
		if _, mpich := w.cfg.Proc.Env(p, "PMI_RANK"); open || mpich {
			pid = p
			break
		}
	}
	for range 8 {
		child := w.cfg.Proc.OnlyChild(pid)
		if child == 0 || !strings.HasPrefix(w.cfg.Proc.WaitsIn(pid, pid), "do_wait") {
			break
		}
		pid, under = child, path.Base(w.cfg.Proc.Name(pid))
		if slices.Contains(wrappers, under) {
			under = ""
		}
	}
	return pid, under
}

// wrappers wait for a program as a matter of course.
var wrappers = []string{"sh", "bash", "dash", "zsh", "env", "timeout", "nice", "sudo", "su", "numactl", "taskset", "tini",
	"docker-init", "dumb-init", "catatonit"}

// below reports whether one of the processes is a child of pid.
func (w *Why) below(pid int, pids []int) bool {
	return slices.ContainsFunc(pids, func(p int) bool { s, ok := w.cfg.Proc.Stat(p); return ok && s.PPID == pid })
}

func (w *Why) first(k *watched, before map[int]proc.Work) {
	k.threads, k.waits, k.asks = map[int]proc.Thread{}, map[uint64]waiter{}, map[netip.AddrPort][]wire.Await{}
	for _, pid := range k.pids {
		for _, t := range w.cfg.Proc.Threads(pid, threadsMost) {
			k.threads[t.TID] = t
		}
		k.faults += before[pid].Faults
	}
	pid, _ := w.program(k)
	k.held, k.dead, k.moved = w.cfg.Proc.Held(w.cfg.Groups, pid), w.dead(k.pids), w.moved(k.pids)
}

// glance notes whether a rank waits for a disk at this moment, or for memory, which looks the same.
func (w *Why) glance(k *watched) {
	k.seen++
	for _, pid := range k.pids {
		if s, ok := w.cfg.Proc.Stat(pid); ok && s.State == 'D' {
			k.disk++
			return
		}
	}
}

// second compares with the first look.
func (w *Why) second(k *watched, before map[int]proc.Work, over time.Duration) {
	l, fs := &k.look, w.cfg.Proc
	l.PID, l.Under = w.program(k)
	l.Dead = w.failed(k)
	if l.Name, l.Tracer = fs.Name(l.PID), fs.Tracer(l.PID); l.Tracer != 0 {
		l.TracerName = path.Base(fs.Name(l.Tracer))
	}
	l.Signals = fs.Handles(l.PID, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGTERM, unix.SIGALRM)
	cores := func(d time.Duration) float64 { return max(0, d.Seconds()/over.Seconds()) }
	var faults uint64
	var total, ended time.Duration // of it all; and of children that have ended meanwhile
	locked, own, waits := true, false, map[string]bool{}
	for _, pid := range k.pids {
		work, lives := fs.Work(pid)
		if total += work.CPU + work.Reaped; lives {
			ended += work.Reaped - before[pid].Reaped
		} else {
			ended -= before[pid].CPU + before[pid].Reaped // its parent's by now
		}
		faults += work.Faults
		l.Swapped += fs.Swapped(pid)
		asleep, locks, all := w.threads(k, pid, before, waits, cores)
		locked, own = locked && asleep == all, own || locks > 0
		// Workers of torch have a handler for SIGTERM; Go's programs, which may wait for no more than a signal, have all.
		if locks > 0 && locks == all && pid != l.PID && !fs.Handles(pid, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM) {
			l.Stuck = &wire.BusyProgram{PID: pid, Name: path.Base(fs.Name(pid))}
		}
		if open, sockets, limit := fs.OpenFiles(pid); limit > 0 && open*50 >= limit*49 {
			l.Full = &wire.FullFiles{PID: pid, Name: path.Base(fs.Name(pid)), Open: open, Sockets: sockets, Limit: limit}
		}
	}
	l.CPU += cores(ended)
	l.Locked = locked && own
	l.Faults = max(0, float64(faults)-float64(k.faults)) / over.Seconds()
	l.Disk = float64(k.disk) / float64(max(1, k.seen))
	if age := time.Since(l.Since); age > over {
		l.Mean = total.Seconds() / age.Seconds()
	}
	delete(waits, "")
	for at := range waits {
		l.Waits = append(l.Waits, at)
	}
	slices.Sort(l.Waits)
	l.Moves = w.moved(k.pids).since(k.moved, over)
	l.Group = group(k.held, fs.Held(w.cfg.Groups, l.PID), over)
}

// threads compares those of a process with the first look: all is how many there are, at least; asleep are those that can
// be woken by another thread of the same process alone, or by a child; of them locks wait for a thread.
func (w *Why) threads(k *watched, pid int, before map[int]proc.Work, waits map[string]bool,
	cores func(time.Duration) float64) (asleep, locks, all int) {
	l, fs := &k.look, w.cfg.Proc
	now := fs.Threads(pid, threadsMost)
	if all = len(now); all == threadsMost {
		all++ // there may be more
	}
	for _, t := range now {
		was, known := k.threads[t.TID]
		if !known {
			was = proc.Thread{CPU: t.CPU, Queued: t.Queued, Ran: t.Ran}
		}
		l.Count++
		used, queued := cores(t.CPU-was.CPU), cores(t.Queued-was.Queued)
		l.CPU, l.Queued = l.CPU+used, l.Queued+queued
		l.Top = max(l.Top, used+queued)
		at := fs.WaitsIn(pid, t.TID)
		waits[at] = true
		w.waiting(k, pid, t.TID, at)
		idle := known && t.Ran == was.Ran && t.State == 'S'
		switch {
		case idle && fs.WaitsForOwn(pid, t.TID):
			asleep, locks = asleep+1, locks+1
		case idle && strings.HasPrefix(at, "do_wait"):
			asleep++
		}
		if known && t.Ran == was.Ran {
			l.FileLock = cmp.Or(l.FileLock, w.fileLock(pid, t.TID, before))
			l.Hang = cmp.Or(l.Hang, w.hang(pid, t.TID, at))
			if w.unread(pid, t.TID, at) {
				l.Unread = &wire.BusyProgram{PID: pid, Name: path.Base(fs.Name(pid))}
			}
		}
		if pid == l.PID && t.TID == pid {
			l.Main = wire.ThreadLook{State: string(t.State), At: at, Ran: t.Ran - was.Ran, In: w.waitsFor(pid, t, at)}
		}
	}
	return asleep, locks, all
}

// group compares what holds a rank back with what did before.
func group(was, now proc.Held, over time.Duration) wire.Cgroup {
	part := func(d time.Duration) float64 { return min(1, max(0, d.Seconds()/over.Seconds())) }
	g := wire.Cgroup{Path: now.Path, Quota: now.Quota, Limit: now.Limit, Held: now.Used, LimitFile: now.LimitFile,
		Killed: now.Killed, Throttled: part(now.Throttled - was.Throttled)}
	if now.LimitFile == was.LimitFile {
		g.Refaults = max(0, float64(now.Refaults-was.Refaults)) / over.Seconds()
	}
	if now.Stalled != nil && was.Stalled != nil {
		g.Stalled = new(part(now.Stalled.Full - was.Stalled.Full))
	}
	return g
}

// waitsFor puts a function of the kernel in a word. Its names have changed little since Linux 5.4.
func (w *Why) waitsFor(pid int, t proc.Thread, at string) string {
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(at, word) })
	}
	_, args, ok := w.cfg.Proc.Call(pid, t.TID)
	file := ""
	if ok && args[0] < 1<<20 {
		file = w.cfg.Proc.File(pid, int(args[0])) //nolint:gosec // it is bounded
	}
	fds, _ := w.cfg.Proc.WaitsOn(pid, t.TID)
	typed := w.cfg.Proc.File(pid, 0)
	switch {
	case t.State == 'T' || t.State == 't' || t.State == 'R':
		return ""
	case has("freez", "refrigerator"):
		return "frozen"
	case t.State == 'D':
		return "disk"
	case len(fds) == 1 && fds[0] == 0 && (strings.HasPrefix(typed, "pipe:") || strings.HasPrefix(typed, "/dev/")):
		return "input"
	case has("futex"):
		return "lock"
	case has(forFile...):
		return "file lock"
	case has("nanosleep"):
		return "sleep"
	case has("ep_poll", "epoll", "poll_schedule", "do_poll", "do_select"):
		return "poll"
	case has("do_wait"):
		return "child"
	case has("tty"), strings.HasPrefix(file, "/dev/pts/"):
		return "terminal"
	case has("pipe"):
		return "pipe"
	case has("sk_wait", "tcp_", "inet_", "skb_wait", "unix_stream"), has("wait_woken") && strings.HasPrefix(file,
		"socket:"):
		return "network"
	}
	return ""
}

// busy are the programs that use most of the processor and belong to none of the ranks; the last are the others
// together.
func (w *Why) busy(now []proc.Stat, before map[int]proc.Work, ranks []*watched,
	over time.Duration) (out []wire.BusyProgram) {
	own := map[int]bool{}
	for _, k := range ranks {
		for _, pid := range k.pids {
			own[pid] = true
		}
	}
	for _, p := range now {
		was, known := before[p.PID]
		is, ok := w.cfg.Proc.Work(p.PID)
		if cpu := (is.CPU - was.CPU).Seconds() / over.Seconds(); known && ok && !own[p.PID] && cpu >= busyLeast {
			b := wire.BusyProgram{PID: p.PID, Name: path.Base(w.cfg.Proc.Name(p.PID)), CPU: cpu}
			b.Job = w.jobOf(p.PID)
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b wire.BusyProgram) int { return cmp.Compare(b.CPU, a.CPU) })
	if more := len(out) - busyMost; more > 1 {
		rest := wire.BusyProgram{Name: fmt.Sprintf("%d other programs", more)}
		for _, b := range out[busyMost:] {
			rest.CPU += b.CPU
		}
		out = append(out[:busyMost], rest)
	}
	return out
}
