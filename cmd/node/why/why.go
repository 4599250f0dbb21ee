// Package why says what is wrong with a job, a service or a machine: it gathers what the leader, the machines and the
// kernels there tell, and ranks what follows from it.
//
// It decides what is asked of whom, and for how long, and what is a sign of trouble (Rank). For a healthy job it finds
// nothing.
//
// It must not change anything, must not stop a program to look at it, must not wait for a machine that does not answer,
// and does not explain exits: launcher/diagnose has, when they came.
package why

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// within bounds the questions to one machine; the window and py-spy are most of it.
const within = window + stacksWithin + 3*time.Second

// Config of a node's part. All of it is needed.
type Config struct {
	Self   launcher.NodeID
	Host   string
	Agent  *agent.Agent
	Survey *survey.Survey
	Dial   *dial.Dialer
	Proc   proc.FS
	Groups proc.Groups
	// Machine is what this machine uses now, Past what it used in each of the last minutes; Jobs and Status are the
	// leader's answers, or what is known without one.
	Machine func(context.Context) (usage.Machine, error)
	Past    func() []usage.Machine
	Jobs    func(context.Context, wire.Caller) (wire.JobsResponse, error)
	Status  func(context.Context, wire.Caller, wire.StatusRequest) (wire.Status, error)
}

// Why answers users, and looks at this node for other members.
type Why struct{ cfg Config }

// New makes it.
func New(cfg Config) *Why { return &Why{cfg} }

// Calls are what it answers.
func (w *Why) Calls() []wire.Call {
	return []wire.Call{wire.Why.Serve(w.why), wire.Look.Serve(
		func(ctx context.Context, _ wire.Caller, r wire.LookRequest) (wire.NodeLook, error) {
			return w.node(ctx, r)
		})}
}

func (w *Why) why(ctx context.Context, c wire.Caller, r wire.WhyRequest) (res wire.WhyResponse, err error) {
	jobs, err := w.cfg.Jobs(ctx, c)
	if err != nil {
		return res, err
	}
	st, err := w.cfg.Status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return res, err
	}
	e := Evidence{Now: time.Now(), Nodes: st.Nodes, Problem: jobs.Problem}
	if e.Job, e.Node, err = find(jobs, st, r.Of); err != nil {
		return res, err
	}
	for _, j := range jobs.Jobs {
		if j.Outcome == nil {
			e.Open = append(e.Open, j)
		}
	}
	if e.Node != nil {
		res.Host = e.Node.Host
	}
	switch {
	case e.Job != nil && e.Job.Outcome != nil && e.fresh():
		_ = w.gather(ctx, &e, false)
	case e.Job == nil || e.Job.Outcome == nil:
		mine := e.Job != nil && (c.User.UID == 0 || c.User.Name == e.Job.Spec.User)
		res.Unasked = w.gather(ctx, &e, mine)
		if e.Job != nil && !mine {
			res.Unasked = append(res.Unasked, "where its programs are: only "+e.Job.Spec.User+" and root may see that")
		}
		if again, err := w.cfg.Jobs(ctx, c); err == nil && e.Job != nil {
			i := slices.IndexFunc(again.Jobs, func(j rendezvous.JobStatus) bool { return j.Spec.ID == e.Job.Spec.ID })
			if i >= 0 && again.Jobs[i].Outcome != nil { // meanwhile: what was looked at tells nothing
				e.Job, e.Looks, res.Unasked = &again.Jobs[i], nil, nil
			}
		}
	}
	res.Job, res.Findings = e.Job, Rank(e)
	if e.Node != nil {
		e.Looks = slices.DeleteFunc(e.Looks, func(l wire.NodeLook) bool { return l.ID != e.Node.ID })
	}
	res.Looked = e.looked()
	return res, nil
}

// find finds the job that a text means, else the machine. A machine's name goes before the beginning of an id, and
// before the name of a job that is over.
func find(jobs wire.JobsResponse, st wire.Status, of string) (*rendezvous.JobStatus, *wire.NodeStatus, error) {
	bare := make([]rendezvous.Job, len(jobs.Jobs))
	for i, j := range jobs.Jobs {
		bare[i] = j.Job
	}
	i, err := rendezvous.FindJob(bare, jobs.User, of)
	var hosts []string
	for _, n := range st.Nodes {
		if n.Host == of && (err != nil || bare[i].Outcome != nil || bare[i].Spec.Name != of) {
			return nil, &n, nil //nolint:nilerr // it is a machine
		}
		hosts = append(hosts, n.Host)
	}
	switch {
	case err == nil:
		return &jobs.Jobs[i], nil, nil
	case !errors.Is(err, rendezvous.ErrNoJob):
		return nil, nil, err
	}
	return nil, nil, fmt.Errorf("%w; nor is it a machine: those are %s", err, strings.Join(hosts, ", "))
}

// gather asks the machines; unasked says which did not answer.
func (w *Why) gather(ctx context.Context, e *Evidence, stacks bool) (unasked []string) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r := wire.LookRequest{}
	if e.Job != nil {
		r = wire.LookRequest{Job: e.Job.Spec.ID, Stacks: stacks}
		if st := e.Job.Spec.MainStage(); st != nil && st.Container == nil {
			r.Folders = append([]string{st.Workdir, "/tmp", "/dev/shm"}, e.filled()...)
		}
	}
	looks, said := make([]wire.NodeLook, len(e.Nodes)), make([]knocked, len(e.Nodes))
	var asked sync.WaitGroup
	for i, n := range e.Nodes {
		if n.State == "away" && e.concerns(n) {
			asked.Go(func() { said[i] = w.knock(ctx, n.ID) })
		}
		if n.State == "away" || n.State == "joined" || !e.concerns(n) {
			continue
		}
		r := r
		r.Engine = e.contains(n)
		asked.Go(func() {
			var err error
			if n.ID == w.cfg.Self {
				looks[i], err = w.self(ctx, r)
			} else {
				looks[i], err = wire.Look.Call(ctx, w.cfg.Dial.Client(n.ID), r)
			}
			if looks[i].ID, looks[i].Host = n.ID, n.Host; err != nil {
				looks[i].Error = err.Error()
			}
		})
	}
	asked.Wait()
	e.Knocked = map[string]knocked{}
	for i, n := range e.Nodes {
		e.Knocked[n.Host] = said[i]
	}
	e.Now = time.Now() // as the machines were read at the end
	for _, l := range looks {
		switch {
		case l.Error != "":
			unasked = append(unasked, l.Host+": "+l.Error)
		case l.ID != "":
			if at := l.Machine.At; !at.IsZero() { // by this machine's clock
				for i := range l.Links {
					l.Links[i].At = l.Links[i].At.Add(e.Now.Sub(at))
				}
			}
			e.Looks = append(e.Looks, l)
		}
	}
	w.name(ctx, e)
	e.Fabric = fabricFindings(*e)
	return unasked
}

// self looks at this node. Who reads of a process that hangs in the kernel may hang with it, and then is left behind.
func (w *Why) self(ctx context.Context, r wire.LookRequest) (wire.NodeLook, error) {
	type answer struct {
		look wire.NodeLook
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		look, err := w.node(ctx, r)
		answers <- answer{look, err}
	}()
	select {
	case a := <-answers:
		return a.look, a.err
	case <-ctx.Done():
		return wire.NodeLook{}, fmt.Errorf("it could not be looked at within %s: %w", within, ctx.Err())
	}
}

// concerns tells whether a machine has a part in what was asked for.
func (e Evidence) concerns(n wire.NodeStatus) bool {
	if e.Node != nil { // those that run a job with it see how it answers
		return n.ID == e.Node.ID || slices.ContainsFunc(e.Open, func(j rendezvous.JobStatus) bool {
			return j.State == rendezvous.StateRuns && on(j, n.ID) && on(j, e.Node.ID)
		})
	}
	o := e.Job.Outcome
	if !e.placed() { // it shows why the last attempt failed
		o = cmp.Or(o, e.Job.Last)
	}
	if o != nil {
		return o.Root != nil && n.Host == o.Root.Host
	}
	return e.placed() && on(*e.Job, n.ID)
}

// on tells whether a job has a part on a machine.
func on(j rendezvous.JobStatus, id launcher.NodeID) bool {
	return slices.ContainsFunc(j.Plan.Nodes, func(p rendezvous.Place) bool { return p.Node == id })
}

// fresh tells whether the job failed a short while ago on a machine that is known: it may show why.
func (e Evidence) fresh() bool {
	o := e.Job.Outcome
	return o.End == rendezvous.Failed && o.Root != nil && e.Now.Sub(o.At) < recent
}

// filled are the folders of which a cause says that there was no room for a file.
func (e Evidence) filled() (folders []string) {
	causes := []string{}
	for _, o := range []*rendezvous.Outcome{e.Job.Outcome, e.Job.Last} {
		if o != nil {
			causes = append(causes, o.Cause)
		}
	}
	if n := len(e.Job.Attempts); n > 0 {
		causes = append(causes, e.Job.Attempts[n-1].Cause)
	}
	for _, cause := range causes {
		for word := range strings.FieldsFuncSeq(cause, func(r rune) bool { return strings.ContainsRune(" '\":,", r) }) {
			if spaceless(cause) && path.IsAbs(word) && !slices.Contains(folders, path.Dir(word)) {
				folders = append(folders, path.Dir(word))
			}
		}
	}
	return folders
}

// placed tells whether the job has machines on which ranks are, or are about to be.
func (e Evidence) placed() bool {
	switch e.Job.State {
	case rendezvous.StateWaits, rendezvous.StateAgain, rendezvous.StateAsleep:
		return false
	}
	return e.Job.Plan.Generation > 0
}

// fabricFindings are those that a launch on the job's machines would meet, or all of a machine.
func fabricFindings(e Evidence) []envgen.Finding {
	seen := checkup.Seen(wire.Status{Nodes: e.Nodes})
	for i, n := range seen.Nodes {
		for _, l := range e.Looks {
			if l.ID == launcher.NodeID(n.ID) {
				seen.Nodes[i].Counters = l.Counts
			}
		}
	}
	if err := seen.Derive(); err != nil {
		return nil
	}
	for _, n := range e.Nodes {
		if n.State == "away" { // what it had nobody has there now
			seen.Topology.Findings = slices.DeleteFunc(seen.Topology.Findings, func(f envgen.Finding) bool {
				return topology.SameAddress(f, n.Host)
			})
		}
	}
	if e.Node != nil {
		var known []envgen.Finding
		for _, f := range slices.Concat(seen.FabricOnly(), seen.Topology.Findings) {
			if f.Host == e.Node.Host || topology.SameAddress(f, e.Node.Host) {
				f.Host = e.Node.Host
				known = append(known, f)
			}
		}
		return known
	}
	if !e.placed() {
		return nil
	}
	var views []envgen.NodeView
	var entries []envgen.Entry
	for _, p := range e.Job.Plan.Nodes {
		i := slices.IndexFunc(seen.Nodes, func(n doctor.Node) bool { return n.ID == string(p.Node) })
		if i < 0 || len(seen.Nodes[i].Inventory.NICs) == 0 {
			return nil // it has left, or has not been heard yet: that is told of
		}
		n := seen.Nodes[i]
		views = append(views, envgen.NodeView{ID: n.ID, Host: n.Host, Mgmt: n.Addr, Inventory: n.Inventory})
		entries = append(entries, p.Entry)
	}
	found := survey.Rules{}.Preflight(seen.Topology, views, entries)
	for _, f := range seen.Topology.Findings { // a launch does not mind these
		if (f.Code == topology.CodeLinkErrors || f.Code == topology.CodeRetransmits) && len(views) > 1 &&
			slices.ContainsFunc(views, func(v envgen.NodeView) bool { return v.Host == f.Host }) {
			found = append(found, f)
		}
	}
	return found
}

// looked says what was looked at, with the figures that are of interest where nothing is wrong.
func (e Evidence) looked() (out []string) {
	if j := e.Job; j != nil {
		text := "it is " + j.State.Text()
		if j.Spec.Service != nil {
			state, _ := j.ServiceState()
			text = "it is " + rendezvous.State(state).Text()
		}
		if j.Waits != "" {
			text += ": " + j.Waits
		}
		if j.State == rendezvous.StateAsleep {
			text += ": the next request starts it"
		}
		out = append(out, text)
	}
	out = append(out, e.startTexts()...)
	flows := e.flows()
	for _, l := range e.Looks {
		text := fmt.Sprintf("%s, for %s", l.Host, l.Over.Round(100*time.Millisecond))
		if m := l.Machine.Memory; m != nil {
			text += fmt.Sprintf(": %s of %s available", launcher.Size(m.Available), launcher.Size(m.Total))
		}
		for _, g := range l.Machine.GPUs {
			if g.Busy != nil && g.MHz != nil {
				text += fmt.Sprintf(", GPU %d %.0f %% at %.0f MHz", g.Index, 100**g.Busy, *g.MHz)
			}
		}
		out = append(out, text)
		out = append(out, e.moves(l, flows)...)
		for _, r := range l.Ranks {
			r.Host = l.Host
			of := ""
			if e.Job == nil {
				of = "job " + string(r.Job) + ", "
			}
			out = append(out, of+where(r))
		}
	}
	for _, f := range append(e.peers(), e.wrongPort()...) {
		if f.Sure == 0 {
			out = append(out, f.Text)
		}
	}
	if ways := e.ways(); len(ways) > 0 {
		worst := slices.MaxFunc(ways, func(a, b way) int { return cmp.Compare(a.rtt, b.rtt) })
		out = append(out, fmt.Sprintf("connections of ranks between machines: %d ways, round trip up to %s (%s to %s)",
			len(ways), worst.rtt, worst.from, worst.to))
	}
	return out
}
