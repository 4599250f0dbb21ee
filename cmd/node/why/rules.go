package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// quiet is below how many cores a rank does nothing: timers and threads that look around take less.
const quiet = 0.05

// rank is what one rank shows by itself, or beside the job's others.
func (e Evidence) rank(l wire.NodeLook, r wire.RankLook) (out []wire.WhyFinding) {
	who := fmt.Sprintf("rank %d on %s", r.Rank, l.Host)
	if e.Job == nil {
		who = fmt.Sprintf("rank %d of job %s", r.Rank, r.Job)
	}
	beside := func(command string) string {
		return fmt.Sprintf("sparkrun exec %s --rank %d -- %s", r.Job, r.Rank, command)
	}
	add := func(code string, sure int, text, remedy string, evidence ...string) {
		out = append(out, wire.WhyFinding{Code: code, Sure: sure, Rank: new(r.Rank), Host: l.Host, Text: who + " " + text,
			Evidence: nonempty(evidence...), Remedy: remedy})
	}
	program := fmt.Sprintf("%s (pid %d), %d threads", r.Name, r.PID, r.Count)
	share := func(part float64) string { return fmt.Sprintf("%.0f %% of the time", 100*part) }
	switch {
	case r.Tracer != 0 && r.Main.State == "t":
		add("rank-traced", 96, fmt.Sprintf("is stopped by %s (pid %d), which traces it as debuggers do", cmp.Or(r.TracerName,
			"a process"), r.Tracer), fmt.Sprintf("ps -fp %d   # on %s", r.Tracer, l.Host), program, e.others(r))
	case r.Main.State == "T":
		add("rank-stopped", 96, "is stopped by a signal (STOP), and runs nothing",
			beside(fmt.Sprintf("kill -CONT %d", r.PID)), program, e.others(r))
	case r.Main.In == "frozen":
		add("rank-frozen", 96, "is frozen by its cgroup, and runs nothing", "", program+" in "+r.Group.Path, e.others(r))
	case r.Main.State == "Z":
		add("rank-dead", 80, "has ended, and what it started has not", beside("ps -ef"), program)
	case r.Locked && !r.Signals: // else it may wait to be told to end
		add("rank-locked", 90, "is locked up: each of its threads waits, without an end, for another thread of the same process",
			beside(fmt.Sprintf("py-spy dump --pid %d", r.PID)), append([]string{program, e.others(r)}, r.Stacks...)...)
	case r.Disk >= 0.9 && r.Main.Ran == 0 && r.CPU < quiet:
		add("rank-hangs", 80, "hangs in the kernel, in "+cmp.Or(r.Main.At,
			"a wait that no signal ends")+": a disk, a file system or a device does not answer",
			beside("dmesg"), program, "its threads wait in "+strings.Join(r.Waits, ", "))
	}
	e.files(l.Host, r, add)
	r.Host = l.Host
	e.awaits(r, add)
	e.servesOne(r, add)
	if g := r.Group; g.Throttled >= 0.1 {
		add("throttled", 85, "is held back by its quota of processor time for "+share(g.Throttled), "", g.Quota, used(r),
			e.peersUse(r))
	}
	if f, found := e.starved(l, r, who); found {
		out = append(out, f)
	}
	e.pages(l, r, add)
	return out
}

func used(r wire.RankLook) string {
	return fmt.Sprintf("it uses %.2f cores, and waits for %.2f more; since it began it used %.2f", r.CPU, r.Queued,
		r.Mean)
}

// rest are the job's other ranks, where the job was asked for.
func (e Evidence) rest(r wire.RankLook) (out []wire.RankLook) {
	for _, l := range e.Looks {
		for _, o := range l.Ranks {
			if o.Job == r.Job && o.Rank != r.Rank {
				o.Host = l.Host
				out = append(out, o)
			}
		}
	}
	return out
}

func (e Evidence) peersUse(r wire.RankLook) string {
	var texts []string
	for _, o := range e.rest(r) {
		texts = append(texts, fmt.Sprintf("rank %d %.2f", o.Rank, o.CPU))
	}
	if len(texts) == 0 {
		return ""
	}
	return "others use: " + strings.Join(texts[:min(len(texts), 8)], ", ")
}

func (e Evidence) peersFaults(r wire.RankLook) string {
	var all []float64
	for _, o := range e.rest(r) {
		all = append(all, o.Faults)
	}
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("; by others %.0f", median(all))
}

// others says which ranks wait meanwhile.
func (e Evidence) others(r wire.RankLook) string {
	var waiting []string
	for _, o := range e.rest(r) {
		if waitsForPeers(o) {
			waiting = append(waiting, fmt.Sprint(o.Rank))
		}
	}
	if len(waiting) == 0 {
		return ""
	}
	return "meanwhile these ranks wait: " + strings.Join(waiting, ", ")
}

// starved is a rank that gets less of the processor than it asks for. Threads of a rank that has more of them than
// there are cores are in each other's way, which is no fault: so it is beside its peers, or because of a stranger.
func (e Evidence) starved(l wire.NodeLook, r wire.RankLook, who string) (wire.WhyFinding, bool) {
	lack := func(r wire.RankLook) float64 { return r.Queued / max(r.CPU+r.Queued, 0.01) }
	if r.Queued < 0.25 || lack(r) < 0.25 || r.Group.Throttled >= 0.1 {
		return wire.WhyFinding{}, false
	}
	var peers, gets []float64
	for _, o := range e.rest(r) {
		if o.CPU+o.Queued > 0.2 { // it wants something
			peers, gets = append(peers, lack(o)), append(gets, o.CPU)
		}
	}
	var strangers float64
	var texts []string
	for _, b := range l.Busy {
		text := fmt.Sprintf("%s (pid %d) uses %.1f cores", b.Name, b.PID, b.CPU)
		if b.PID == 0 {
			text = fmt.Sprintf("%s use %.1f cores", b.Name, b.CPU)
		}
		if b.Job != "" {
			text += ", of job " + string(b.Job)
		}
		strangers, texts = strangers+b.CPU, append(texts, text)
	}
	behind := len(peers) > 0 && (lack(r) >= median(peers)+0.3 || lack(r) >= 0.5 && r.CPU < median(gets)/2)
	if !behind && (strangers < 0.5*r.Queued || strangers < 0.3) {
		return wire.WhyFinding{}, false
	}
	f := wire.WhyFinding{Code: "starved", Sure: 60, Rank: new(r.Rank), Host: l.Host, Remedy: "sparkrun ps",
		Text:     fmt.Sprintf("%s gets %.0f %% of the processor time that it asks for", who, 100*(1-lack(r))),
		Evidence: []string{used(r)}}
	if behind {
		f.Sure = 75
		f.Evidence = append(f.Evidence, fmt.Sprintf("its peers get %.0f %%, and use %.2f cores", 100*(1-median(peers)),
			median(gets)))
	}
	f.Evidence = append(f.Evidence, texts...)
	return f, true
}

func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	return s[len(s)/2]
}

// machine is what a machine lacks, whoever runs there.
func (e Evidence) machine(l wire.NodeLook) (out []wire.WhyFinding) {
	add := func(code string, sure int, remedy, format string, args ...any) {
		out = append(out, wire.WhyFinding{Code: code, Sure: sure, Host: l.Host, Text: l.Host + " " + fmt.Sprintf(format,
			args...),
			Remedy: remedy})
	}
	if m := l.Machine.Memory; m != nil {
		figures := fmt.Sprintf("%s of %s available", launcher.Size(m.Available), launcher.Size(m.Total))
		switch {
		case m.Stalled != nil && *m.Stalled >= 0.1:
			add("memory-stalls", 70, "sparkrun top", "stands still for %.0f %% of the time, for want of memory: %s",
				100**m.Stalled, figures)
		case m.SwapIn != nil && *m.SwapIn >= 1<<20:
			add("swaps", 60, "sparkrun top", "reads %s/s back from swap: %s", launcher.Size(int64(*m.SwapIn)), figures)
		case m.Available > 0 && m.Available < m.Total/32:
			add("memory-short", 50, "sparkrun top", "is nearly out of memory: %s", figures)
		case e.Job == nil && m.Available > 0 && m.Available < l.Floor:
			add("memory-short", 40, "sparkrun top", "has less memory than its agent's --memory-floor of %s, and takes no jobs: "+
				"%s (the memory guard ends only what holds as much as the floor)", launcher.Size(l.Floor), figures)
		}
	}
	if why := l.Machine.GPUSilent; why != "" && (e.Job == nil || e.Job.Spec.GPUs != launcher.NoGPUs) {
		add("gpu-silent", 90, "sparkrun doctor --node "+l.Host, "has a GPU of which nvidia-smi tells nothing: %s", why)
	}
	for _, d := range l.Machine.Disks {
		switch {
		case d.Free < max(min(d.Total/100, 4<<30), min(d.Total/10, 64<<20)):
			add("disk-full", 40, "df -h "+d.Mount, "has %s left on %s", launcher.Size(d.Free), d.Mount)
		case d.Inodes != nil && d.InodesFree != nil && *d.InodesFree <= *d.Inodes/1000:
			add("inodes-full", 40, "df -i "+d.Mount, "has %d of %d inodes left on %s: it can have no more files, though %s are free",
				*d.InodesFree, *d.Inodes, d.Mount, launcher.Size(d.Free))
		}
	}
	return append(out, e.heldByOthers(l)...)
}

// heldByOthers is memory of a GPU that something holds which is no job's: as much of it as is little of a machine's.
func (e Evidence) heldByOthers(l wire.NodeLook) (out []wire.WhyFinding) {
	if e.Job != nil && e.Job.Spec.GPUs == launcher.NoGPUs {
		return nil
	}
	var total int64
	if m := l.Machine.Memory; m != nil {
		total = m.Total
	}
	gpu := "a GPU"
	if g := l.Machine.GPUs; len(g) == 1 {
		gpu = fmt.Sprintf("GPU %d", g[0].Index)
		if g[0].Total != nil {
			total = *g[0].Total
		}
	}
	for _, o := range l.Machine.Others {
		whose := "of no job"
		if o.Job != "" {
			whose = "of job " + string(o.Job) + ", which is over"
		}
		if o.GPUMemory < total/32 || slices.ContainsFunc(e.Open, func(j rendezvous.JobStatus) bool {
			return o.Job != "" && j.Spec.ID == o.Job
		}) {
			continue
		}
		out = append(out, wire.WhyFinding{Code: "gpu-held", Sure: 45, Host: l.Host, Text: fmt.Sprintf(
			"%s (pid %d, user %s), %s, holds %s of %s on %s", o.Name, o.PID, o.User, whose, launcher.Size(o.GPUMemory), gpu, l.Host),
			Remedy: fmt.Sprintf("ps -fp %d   # on %s", o.PID, l.Host)})
	}
	return out
}

// holdGPU tells whether the job's ranks, and those of others, have memory of a machine's GPUs.
func (e Evidence) holdGPU(l wire.NodeLook) (own, others bool) {
	for _, r := range l.Machine.Ranks {
		has := r.GPUMemory != nil && *r.GPUMemory > 0
		mine := e.Job != nil && r.Job == e.Job.Spec.ID
		own, others = own || has && mine, others || has && !mine && e.Job != nil
	}
	return own, others
}

// works: a GPU is busy, and tells its clock.
func works(g usage.GPU) bool { return g.Busy != nil && *g.Busy >= 0.3 && g.MHz != nil }

// clocks are of GPUs that work, beside those of the other machines and their own highest.
func (e Evidence) clocks() (out []wire.WhyFinding) {
	type one struct {
		host string
		usage.GPU
	}
	var all []one
	for _, l := range e.Looks {
		if own, others := e.holdGPU(l); others && !own {
			continue // they are no business of this job
		}
		for _, g := range l.Machine.GPUs {
			all = append(all, one{l.Host, g})
		}
	}
	for i, g := range all {
		var peers []float64
		for k, p := range all {
			if k != i && works(p.GPU) && p.Name == g.Name {
				peers = append(peers, *p.MHz)
			}
		}
		var evidence, harm []string
		for _, t := range g.Throttle {
			if strings.Contains(t, "thermal") || strings.Contains(t, "brake") || strings.Contains(t, "hw_slowdown") {
				harm = append(harm, t)
			}
		}
		was := e.clockBefore(g.host, g.Index)
		slow := works(g.GPU) && (was > 0 && *g.MHz < 0.75*was || len(peers) > 0 && *g.MHz < 0.75*median(peers) ||
			g.MaxMHz != nil && *g.MHz < 0.5**g.MaxMHz)
		if !slow && len(harm) == 0 {
			continue
		}
		if g.MHz != nil {
			evidence = append(evidence, fmt.Sprintf("clock %.0f MHz", *g.MHz))
		}
		if g.MaxMHz != nil {
			evidence = append(evidence, fmt.Sprintf("highest %.0f MHz", *g.MaxMHz))
		}
		if len(peers) > 0 {
			evidence = append(evidence, fmt.Sprintf("its peers %.0f MHz", median(peers)))
		}
		if was > 0 {
			evidence = append(evidence, fmt.Sprintf("before %.0f MHz", was))
		}
		if g.Celsius != nil {
			evidence = append(evidence, fmt.Sprintf("%.0f °C", *g.Celsius))
		}
		f := wire.WhyFinding{Code: "gpu-slow", Sure: 80, Host: g.host,
			Text:     fmt.Sprintf("GPU %d of %s runs below its clock", g.Index, g.host),
			Evidence: []string{strings.Join(append(evidence, harm...), ", ")}, Remedy: "sparkrun doctor --node " + g.host}
		if !slow {
			f.Sure, f.Text = 65, fmt.Sprintf("GPU %d of %s slows itself down", g.Index, g.host)
		}
		out = append(out, f)
	}
	return out
}

// clockBefore is the clock of a GPU in the last minutes in which it worked; 0: not known.
func (e Evidence) clockBefore(host string, index int) float64 {
	var all []float64
	for _, l := range e.Looks {
		for _, m := range l.Past {
			for _, g := range m.GPUs {
				if l.Host == host && g.Index == index && works(g) {
					all = append(all, *g.MHz)
				}
			}
		}
	}
	if len(all) < 2 {
		return 0
	}
	return median(all)
}
