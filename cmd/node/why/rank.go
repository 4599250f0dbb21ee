package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Evidence is all that a judgement goes by.
type Evidence struct {
	Now time.Time
	// Job is what was asked for; nil: Node was.
	Job  *rendezvous.JobStatus
	Node *wire.NodeStatus
	// Open are the jobs that have not ended, Nodes the members, Looks what was seen on those that were asked.
	Open  []rendezvous.JobStatus
	Nodes []wire.NodeStatus
	Looks []wire.NodeLook
	// Fabric is what inventories and counters have against the job's machines, or the machine.
	Fabric []envgen.Finding
	// Knocked is what became of a connection to the agents of machines that are away, by host.
	Knocked map[string]knocked
	Problem string // why there is no leader; empty: there is one
}

// Rank says what is wrong, the most probable cause first; nothing where there is no sign of it. The same evidence gives
// the same answer.
func Rank(e Evidence) []wire.WhyFinding {
	found := []wire.WhyFinding{}
	add := func(more ...wire.WhyFinding) { found = append(found, more...) }
	if e.Problem != "" {
		add(wire.WhyFinding{Code: "no-leader", Sure: 50, Text: "the cluster has no leader, which starts and ends jobs: " +
			e.Problem,
			Remedy: "sparkrun status"})
	}
	if e.Job != nil && e.Job.Outcome != nil {
		add(e.ended()...)
		for _, l := range e.Looks {
			add(e.machine(l)...)
		}
		return noSpace(found)
	}
	if e.Job != nil {
		add(e.notStarted()...)
		add(e.attempts()...)
		add(e.away()...)
		add(e.service()...)
		add(sure(e.wrongPort())...)
	} else {
		add(e.node()...)
	}
	add(e.fabric()...)
	add(e.links()...)
	for _, l := range e.Looks {
		add(e.machine(l)...)
		add(e.starting(l)...)
		for _, r := range l.Ranks {
			add(e.rank(l, r)...)
		}
	}
	add(e.clocks()...)
	add(e.connections()...)
	add(e.byNIC()...)
	add(sure(e.peers())...)
	if e.Node != nil {
		found = slices.DeleteFunc(found, func(f wire.WhyFinding) bool { return f.Host != "" && f.Host != e.Node.Host })
	}
	slices.SortStableFunc(found, func(a, b wire.WhyFinding) int { return cmp.Compare(b.Sure, a.Sure) })
	return noSpace(bySelf(e.byLink(found)))
}

// spaceless tells of a cause whether a file system was full.
func spaceless(cause string) bool {
	return strings.Contains(strings.ToLower(cause), "no space left on device")
}

// noSpace gives an end for want of room the file system that is full, as evidence, and how to look at that.
func noSpace(found []wire.WhyFinding) []wire.WhyFinding {
	i := slices.IndexFunc(found, func(f wire.WhyFinding) bool {
		return slices.Contains([]string{"ended", "again", "failed-before"}, f.Code) && spaceless(f.Text)
	})
	if i < 0 {
		return found
	}
	host := found[i].Host
	full := func(f wire.WhyFinding) bool {
		return f.Host == host && (f.Code == "disk-full" || f.Code == "inodes-full")
	}
	if k := slices.IndexFunc(found, full); k >= 0 {
		found[i].Remedy = found[k].Remedy + "   # on " + host
	}
	return under(found, i, full)
}

// byLink leaves out what follows from a link that is lost, and gives it to that as evidence: that nothing answers over
// it, that ranks wait for those behind it, and that its port has no link.
func (e Evidence) byLink(found []wire.WhyFinding) []wire.WhyFinding {
	i := slices.IndexFunc(found, func(f wire.WhyFinding) bool { return f.Code == "link-lost" })
	if i < 0 {
		return found
	}
	host := found[i].Host
	return under(found, i, func(f wire.WhyFinding) bool {
		switch f.Code {
		case "no-answer", "waits-for-rank", "not-come", "not-connected", "slowest-rank", "all-wait", "fell-silent", "gave-up-waiting":
			return true
		}
		return f.Code == topology.CodeNoLink && f.Host == host
	})
}

// under leaves out what follows from one finding, and gives it to that as evidence, each thing once.
func under(found []wire.WhyFinding, i int, follows func(wire.WhyFinding) bool) []wire.WhyFinding {
	cause := &found[i]
	for _, f := range found {
		if !follows(f) {
			continue
		}
		for _, text := range append([]string{f.Text}, f.Evidence[:min(len(f.Evidence), 1)]...) {
			if !slices.ContainsFunc(cause.Evidence, func(s string) bool { return strings.Contains(s, text) }) {
				cause.Evidence = append(cause.Evidence, text)
			}
		}
	}
	return slices.DeleteFunc(found, follows)
}

func (e Evidence) ago(t time.Time) string {
	return e.Now.Sub(t).Round(time.Second).String()
}

// ended has the root cause, which was found when the job ended.
func (e Evidence) ended() []wire.WhyFinding {
	o := e.Job.Outcome
	if o.End == rendezvous.Completed {
		return nil
	}
	f := wire.WhyFinding{Code: "ended", Sure: 100, Text: cmp.Or(o.Cause, "no cause was recorded"),
		Remedy: "sparkrun logs " + string(e.Job.Spec.ID)}
	if o.Root != nil {
		f.Rank, f.Host = &o.Root.Rank, o.Root.Host
		i := slices.IndexFunc(o.Exits, func(x launcher.RankExit) bool {
			return !x.Exit.Failed() && !e.Job.Spec.Daemon(x.Rank)
		})
		switch of := e.fabric(); {
		case !o.Root.Exit.LostPeer:
		case i < 0 && len(of) > 0: // nothing else says why
			f.Text += "; of their fabric: " + of[0].Text
			f.Remedy, f.Evidence = of[0].Remedy, of[0].Evidence
		case i >= 0:
			left := o.Exits[i]
			f.Rank, f.Host = &left.Rank, left.Host
			f.Text = fmt.Sprintf("rank %d on %s had ended with 0, and others still wanted it: %s", left.Rank, left.Host, f.Text)
		}
	}
	if more := e.Job.WhyNoMore(*o); more != "" {
		f.Evidence = append(f.Evidence, "it is not tried again: "+more)
	}
	return []wire.WhyFinding{f}
}

// notStarted is about a job that has no ranks, though it should.
func (e Evidence) notStarted() []wire.WhyFinding {
	j := e.Job
	switch {
	case j.State == rendezvous.StateAgain:
		f := wire.WhyFinding{Code: "again", Sure: 90, Text: e.attempt(j.Plan.Generation) + " ended, and it is to start again" +
			e.formerCause(), Remedy: "sparkrun logs " + string(j.Spec.ID), Evidence: nonempty(j.Waits)}
		if j.Last != nil {
			f.Evidence = append(f.Evidence, nonempty(e.alike(j.Last.Cause, 1))...)
		}
		if j.AgainAt != nil && j.AgainAt.After(e.Now) {
			f.Evidence = append(f.Evidence, "it starts in "+j.AgainAt.Sub(e.Now).Round(time.Second).String())
		}
		if j.Last != nil && j.Last.Root != nil {
			f.Rank, f.Host = &j.Last.Root.Rank, j.Last.Root.Host
		}
		return []wire.WhyFinding{f}
	case j.State == rendezvous.StateWaits:
		f := wire.WhyFinding{Code: "waits", Sure: 90, Text: "it has not started: " + cmp.Or(j.Waits,
			"it waits for machines") + e.formerCause(), Remedy: "sparkrun status"}
		if j.Line > 1 {
			f.Evidence = append(f.Evidence, fmt.Sprintf("it is number %d of those that wait", j.Line))
		}
		f.Evidence = append(f.Evidence, fmt.Sprintf("it wants %d of %d machines", max(1, j.Spec.Nodes), len(e.Nodes)))
		for _, n := range e.Nodes {
			if len(j.Spec.On) == 0 || slices.Contains(j.Spec.On, n.Host) {
				f.Evidence = append(f.Evidence, n.Host+": "+e.occupied(n, &f))
			}
		}
		return []wire.WhyFinding{f}
	case j.State == rendezvous.StateStarts && j.Spec.StartTimeout > 0 && e.Now.Sub(j.Planned) > j.Spec.StartTimeout*4/5:
		return []wire.WhyFinding{{Code: "start-slow", Sure: 45,
			Text: fmt.Sprintf("it has been starting for %s of the %s that "+
				"--start-timeout gives it", e.ago(j.Planned), j.Spec.StartTimeout), Evidence: append(nonempty(j.Waits),
				e.startTexts()...),
			Remedy: "sparkrun logs " + string(j.Spec.ID)}}
	}
	return nil
}

// attempt names a generation: the last one of the main stage, or the one before, by its number.
func (e Evidence) attempt(generation launcher.Generation) string {
	j, before := e.Job, int(e.Job.Plan.Generation)-int(generation)
	if n := j.Plan.Restarts + 1 - before; before <= 1 && n > 0 && j.Plan.Stage == "" && j.Spec.MaxRestarts > 0 {
		return fmt.Sprintf("attempt %d of %d", n, j.Spec.MaxRestarts+1)
	}
	return fmt.Sprintf("generation %d of it", generation)
}

// end is a cause without what may be another one each time: the rank that failed first, and numbers in what it said.
func end(cause string) string {
	if who, what, found := strings.Cut(cause, ": "); found && strings.HasPrefix(who, "rank ") {
		cause = what
	}
	code, said, _ := strings.Cut(cause, ": ")
	return code + strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, said)
}

// hostIn is the machine of the rank that a cause names: "rank 1 on spark2: exit 1".
func hostIn(cause string) string {
	who, _, _ := strings.Cut(cause, ": ")
	_, host, _ := strings.Cut(who, " on ")
	return host
}

// alike says how often in a row it has ended so.
func (e Evidence) alike(cause string, last int) string {
	for _, a := range slices.Backward(e.Job.Attempts) {
		if end(a.Cause) != end(cause) {
			break
		}
		last++
	}
	if last < 2 || cause == "" {
		return ""
	}
	return fmt.Sprintf("it has ended so %d times in a row", last)
}

// formerCause is why the generation before ended, where the next one is waited for.
func (e Evidence) formerCause() string {
	if last := e.Job.Last; last != nil && last.Cause != "" {
		return "; its last end: " + last.Cause
	}
	return ""
}

// occupied says why a machine cannot take a job now, or that it could.
func (e Evidence) occupied(n wire.NodeStatus, f *wire.WhyFinding) string {
	switch {
	case n.State == "away":
		return "away for " + e.ago(n.Since)
	case n.State == "drained":
		f.Remedy = "sparkrun node resume " + n.Host
		return "drained: " + n.Why
	case n.Witness:
		return "a witness, which gets no ranks"
	case n.State != "ready":
		return n.State + " " + n.Why
	}
	var holders []string
	for _, o := range e.Open {
		held := slices.ContainsFunc(o.Plan.Nodes, func(p rendezvous.Place) bool { return p.Node == n.ID }) ||
			slices.ContainsFunc(o.Plan.Held, func(h rendezvous.Holding) bool { return h.Node == n.ID })
		if !held || o.Spec.ID == e.Job.Spec.ID || o.State == rendezvous.StateAsleep || o.State == rendezvous.StateWaits {
			continue
		}
		text := name(o.Spec) + " of " + o.Spec.User + ", for " + e.ago(o.Planned)
		switch {
		case o.Spec.Share || o.Spec.GPUs == launcher.NoGPUs:
			text += " (it shares)"
		case o.Spec.Memory != nil:
			text += ", with " + o.Spec.Memory.String()
		default:
			f.Remedy = "sparkrun ps " + string(o.Spec.ID)
		}
		holders = append(holders, text)
	}
	if len(holders) > 0 {
		return "has " + strings.Join(holders, "; ")
	}
	return "free"
}

func name(s launcher.Spec) string {
	if s.Name == "" {
		return "job " + string(s.ID)
	}
	return "job " + string(s.ID) + " (" + s.Name + ")"
}

func nonempty(texts ...string) []string {
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}

// recent is how long an attempt that failed is told of, once the next one runs.
const recent = time.Hour

// attempts has the failure before, but for what a person did.
func (e Evidence) attempts() []wire.WhyFinding {
	all := e.Job.Attempts
	if len(all) == 0 {
		return nil
	}
	last := all[len(all)-1]
	said := e.Job.Last != nil && end(e.Job.Last.Cause) == end(last.Cause) // by notStarted
	if said || last.Cause == "" || strings.HasPrefix(last.Cause, rendezvous.ByHand) || e.Now.Sub(last.Ended) > recent {
		return nil
	}
	return []wire.WhyFinding{{Code: "failed-before", Sure: 30, Host: hostIn(last.Cause), Text: fmt.Sprintf("%s ended %s ago: %s",
		e.attempt(last.Generation), e.ago(last.Ended), last.Cause), Evidence: nonempty(e.alike(last.Cause, 0)),
		Remedy: "sparkrun ps " + string(e.Job.Spec.ID)}}
}

// settles is how long a machine that has come back may be reached by any way that works first.
const settles = 10 * time.Second

// away is about machines of the job that do not answer, and ranks that a person has stopped.
func (e Evidence) away() (out []wire.WhyFinding) {
	for _, host := range e.Job.Away {
		f := wire.WhyFinding{Code: "machine-away", Sure: 95, Host: host, Text: host +
			", which has ranks of it, does not answer",
			Remedy: "sparkrun doctor --node " + host}
		if since, known := e.Job.AwaySince[host]; known {
			f.Evidence = append(f.Evidence, "for "+e.ago(since))
		}
		out = append(out, e.Knocked[host].of(f))
	}
	for _, host := range e.Job.FabricOnly {
		if slices.ContainsFunc(e.Nodes, func(n wire.NodeStatus) bool { return n.Host == host && e.Now.Sub(n.Since) < settles }) {
			continue
		}
		out = append(out, wire.WhyFinding{Code: "fabric-only", Sure: 50, Host: host, Remedy: "sparkrun doctor --node " +
			host,
			Text: "the management network does not reach " + host + ", the fabric does"})
	}
	for _, host := range e.Job.Suspended {
		out = append(out, wire.WhyFinding{Code: "suspended", Sure: 97, Host: host,
			Remedy: "fg, or kill -CONT, where its launch was stopped",
			Text:   "its ranks on " + host + " were stopped by a signal that was passed on to them, as by Ctrl-Z"})
	}
	return out
}

// service is what its node has seen of a service.
func (e Evidence) service() []wire.WhyFinding {
	if e.Job.Spec.Service == nil || e.Job.Service == nil {
		return nil
	}
	state, text := e.Job.ServiceState()
	if state != string(launcher.ServiceUnhealthy) && state != string(launcher.ServiceWedged) {
		return nil
	}
	seen := e.Job.Service
	f := wire.WhyFinding{Code: "service-" + state, Sure: 80, Text: fmt.Sprintf("it has been %s for %s: %s", state,
		e.ago(seen.Since), text),
		Remedy: "sparkrun service restart " + string(e.Job.Spec.ID)}
	if len(e.Job.Plan.Nodes) > 0 {
		f.Host = e.Job.Plan.Nodes[0].Host
	}
	if seen.Running != nil && seen.Rate != nil {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%d requests under way, %.1f tokens/s", *seen.Running, *seen.Rate))
	}
	return []wire.WhyFinding{f}
}

// node is about a machine as the leader sees it.
func (e Evidence) node() []wire.WhyFinding {
	n := e.Node
	f := wire.WhyFinding{Host: n.Host, Remedy: "sparkrun doctor --node " + n.Host, Evidence: nonempty(n.Why)}
	switch {
	case n.State == "away":
		f.Code, f.Sure, f.Text = "machine-away", 95, n.Host+" has not answered for "+e.ago(n.Since)
		for _, j := range e.Open {
			if slices.Contains(j.Away, n.Host) {
				f.Evidence = append(f.Evidence, name(j.Spec)+" of "+j.Spec.User+" has ranks there")
			}
		}
		f = e.Knocked[n.Host].of(f)
	case n.State == "joined":
		f.Code, f.Sure, f.Text = "no-agent", 90, n.Host+" has joined, and its agent has not started"
	case n.State == "drained":
		f.Code, f.Sure, f.Text, f.Remedy = "drained", 80, n.Host+" is drained: it gets no ranks",
			"sparkrun node resume "+n.Host
	case n.NoVote != "":
		f.Code, f.Sure, f.Text = "no-vote", 60, n.Host+" takes no part in the vote: "+n.NoVote
	default:
		return nil
	}
	return []wire.WhyFinding{f}
}

// fabric passes on what the rules of cables and addresses have found.
func (e Evidence) fabric() (out []wire.WhyFinding) {
	sure := map[envgen.Severity]int{envgen.SeverityError: 70, envgen.SeverityWarning: 35}
	for _, f := range e.Fabric {
		n := sure[f.Severity]
		if f.Code == topology.CodeLinkErrors || f.Code == topology.CodeRetransmits {
			n = 62 // they slow it down now
		}
		if n > 0 {
			out = append(out, wire.WhyFinding{Code: f.Code, Sure: n, Text: f.Text, Host: f.Host, Port: f.Port,
				Evidence: nonempty(f.Evidence), Remedy: f.Remedy})
		}
	}
	return out
}

// links are ports that have lost their link, or the half of it, since the job began, of those by which it meets; of a
// machine, within the hour. One that is back is told of for an hour.
func (e Evidence) links() (out []wire.WhyFinding) {
	for _, l := range e.Looks {
		since := e.Now.Add(-recent)
		meets := func(string) bool { return true }
		if e.Job != nil {
			since = e.Job.Planned
			meets = func(slot string) bool {
				return len(e.Job.Plan.Nodes) > 1 && slices.ContainsFunc(e.Job.Plan.Nodes, func(p rendezvous.Place) bool {
					return p.Node == l.ID && slices.ContainsFunc(p.Entry.Paths, func(at envgen.Path) bool { return at.Slot == slot })
				})
			}
		}
		last, lost := map[string]envgen.LinkChange{}, map[string]int{}
		for _, c := range l.Links {
			if c.At.Before(since) || c.Up == nil || !meets(c.Slot) {
				continue
			}
			if last[c.Slot] = c; !*c.Up {
				lost[c.Slot]++
			}
		}
		for slot, c := range last {
			f := wire.WhyFinding{Code: "link-lost", Sure: 86, Host: l.Host, Port: c.Port, Remedy: "sparkrun fabric",
				Text: fmt.Sprintf("%s of %s %s %s ago", c.Port, l.Host, c.Text, e.ago(c.At))}
			if *c.Up {
				f.Code, f.Sure = "link-flaps", min(70, 20+10*lost[slot])
				times := "once"
				if lost[slot] > 1 {
					times = fmt.Sprintf("%d times", lost[slot])
				}
				f.Text = fmt.Sprintf("%s of %s has lost its link %s; it has one again since %s", c.Port, l.Host, times,
					e.ago(c.At))
			}
			if lost[slot] > 0 && (!*c.Up || e.Now.Sub(c.At) < recent) {
				out = append(out, f)
			}
		}
	}
	slices.SortFunc(out, func(a, b wire.WhyFinding) int { return cmp.Compare(a.Text, b.Text) })
	return out
}
