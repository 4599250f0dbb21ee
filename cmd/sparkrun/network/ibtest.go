package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nettest"
	"github.com/sparkrun/sparkrun/workloads/nettest/ibtest"
)

// ibReport is what --json prints. Scripts read it: fields may be added, none may be
// removed.
type ibReport struct {
	ibtest.Report
	Plan    ibtest.Plan       `json:"plan"`
	Traffic []nettest.Traffic `json:"traffic,omitempty"`
	Last    *ibtest.Record    `json:"last,omitempty"`
}

// startIBTest plans the test, launches it as `launch --json` would, reads its output, and
// evaluates it.
func startIBTest(ctx context.Context, a *app.App, o ibOptions) error {
	if err := checkIB(o); err != nil {
		return err
	}
	view, before, plan, err := planIB(ctx, a, &o)
	if err != nil {
		return err
	}
	a.Say(ibForecast(plan))
	if o.DryRun {
		return launch.Run(ctx, a, o.Options)
	}
	if err := hasPerftest(ctx, a, o); err != nil {
		return err
	}
	w := ibWatcher{ranksOutput: newRanksOutput(a, o.Options, o.verbose), plan: plan}
	w.ranksOutput.line = w.line
	span, lerr := w.launch(ctx, a, o.Options)
	if lerr != nil || w.told.Len() == 0 {
		w.tellKept()
	}
	var exit *app.ExitError
	if lerr != nil && (!errors.As(lerr, &exit) || w.told.Len() == 0) {
		return lerr // it never ran, or printed nothing: launch has said why
	}
	var hosts []string
	for _, n := range plan.Nodes {
		hosts = append(hosts, n.Host)
	}
	rep := ibReport{Plan: plan, Traffic: trafficSince(ctx, a, before, span, hosts)}
	rep.Report = ibtest.Evaluate(plan, w.told, ibtest.Setting{
		Setting: nettest.Setting{
			Topology: view.scene.Topology, Inventories: view.scene.Inventories, Traffic: rep.Traffic,
		},
		ExpectGbps: o.expect, ExpectMicros: o.expectMicros,
	})
	if err := tellIB(a, rep, view.status.Cluster, o); lerr == nil {
		return err
	}
	return lerr // the rank's exit code; launch has said which
}

// planIB finds out what can be tested, and plans what to measure when.
func planIB(ctx context.Context, a *app.App, o *ibOptions) (*fabricView, []wire.NodeCounters, ibtest.Plan, error) {
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if err != nil {
		return nil, nil, ibtest.Plan{}, err
	}
	view, err := newFabricView(st, nil)
	if err != nil {
		return nil, nil, ibtest.Plan{}, err
	}
	nodes, err := ibNodes(view, *o)
	if err != nil {
		return nil, nil, ibtest.Plan{}, err
	}
	plan, err := ibtest.NewPlan(view.scene.Topology, nodes, o.test)
	if errors.Is(err, ibtest.ErrNoLink) {
		err = fmt.Errorf("%w: sparkrun fabric shows what is cabled, sparkrun doctor what is wrong with it", err)
	}
	if err != nil {
		return nil, nil, ibtest.Plan{}, err
	}
	text, err := plan.Text()
	if err != nil {
		return nil, nil, ibtest.Plan{}, err
	}
	job := &o.Request.Job
	job.On, job.Nodes, job.Exclude = nil, 0, nil
	for _, n := range plan.Nodes {
		job.On = append(job.On, n.Host)
	}
	job.Force = true // the test is meant to find what is broken
	ib := &o.Request.IBTest
	ib.Command, ib.Plan, ib.Size = ibtest.NodeCommand, text, len(plan.Nodes)
	ib.Program, ib.Ports = ibtest.Program(plan.Steps[0].Test), plan.MostServers()
	return view, countedNow(ctx, b), plan, nil
}

// ibNodes chooses the machines, by id, in the order of ranks.
func ibNodes(view *fabricView, o ibOptions) ([]string, error) {
	job := o.Request.Job
	ids := map[string]string{} // of the nodes that are ready, by host
	var all []string
	for _, n := range view.status.Nodes {
		if n.State == "ready" && !n.Witness && !slices.Contains(job.Exclude, n.Host) {
			ids[n.Host] = string(n.ID)
			all = append(all, string(n.ID))
		}
	}
	chosen := view.scene.Topology.RankOrder(all)
	if len(job.On) > 0 {
		chosen = nil
		for _, host := range job.On {
			if ids[host] == "" {
				return nil, fmt.Errorf("--on %s: no machine of that name is ready: sparkrun status shows all", host)
			}
			if slices.Contains(chosen, ids[host]) {
				return nil, app.Usagef("--on %s: named twice", host)
			}
			chosen = append(chosen, ids[host])
		}
	}
	if job.Nodes > len(chosen) {
		return nil, fmt.Errorf("--nodes %d: %s are ready", job.Nodes, app.Count(len(chosen), "machine"))
	}
	if job.Nodes > 0 {
		chosen = chosen[:job.Nodes]
	}
	if len(chosen) < 2 {
		return nil, fmt.Errorf("a link has two ends, and %s chosen: sparkrun status shows which are ready",
			[2]string{"no machine is", "one machine is"}[len(chosen)])
	}
	return chosen, nil
}

// ibForecast says what will be measured, and how long it takes.
func ibForecast(p ibtest.Plan) string {
	lanes, pairs := 0, map[[2]int]bool{}
	for _, c := range p.Cables {
		lanes += len(c.Lanes)
		pairs[[2]int{c.A, c.B}] = true
	}
	text := fmt.Sprintf("%s, %s joined by %s of %s in all; %s, about %s",
		app.Count(len(p.Nodes), "machine"), app.Count(len(pairs), "pair"), app.Count(len(p.Cables), "cable"),
		app.Count(lanes, "lane"), app.Count(len(p.Steps), "step"), p.Estimate().Round(time.Second))
	if all := len(p.Nodes) * (len(p.Nodes) - 1) / 2; all > len(pairs) {
		text += fmt.Sprintf("; no cable joins the other %s", app.Count(all-len(pairs), "pair"))
	}
	return text
}

// hasPerftest asks all machines, so that all that lack it are named together.
func hasPerftest(ctx context.Context, a *app.App, o ibOptions) error {
	return app.Interruptible(ctx, func(ctx context.Context) error {
		res, err := launch.Ask(ctx, a, o.Options)
		if err != nil {
			return err
		}
		var lack []string
		for _, n := range res.Nodes {
			if strings.Contains(n.Error, fmt.Sprintf("program %q", o.Request.IBTest.Program)) {
				lack = append(lack, n.Host)
			}
		}
		if len(lack) > 0 {
			return fmt.Errorf("%s is not on %s: sudo apt install %s there", o.Request.IBTest.Program,
				strings.Join(lack, ", "), ibtest.Package)
		}
		return nil // the launch reports any other problem itself
	})
}

// tellIB prints the report, records it, and makes the exit code.
func tellIB(a *app.App, rep ibReport, cluster string, o ibOptions) error {
	now := ibtest.NewRecord(rep.Plan, o.test.Verb, rep.Report)
	now.At, now.Cluster = time.Now().UTC(), cluster
	rep.Last = ibtest.Last(keepHistory(a, "ib-test.jsonl", now), now)
	var err error
	if o.JSON {
		err = a.Object(rep)
	} else {
		_, err = io.WriteString(a.Out, ibText(rep, now, a.Columns()))
	}
	if err != nil {
		return err
	}
	return passes(rep.Verdict.Grade, rep.Reached(), o.gate)
}

// ibText is the report for people; its last line is the verdict.
func ibText(rep ibReport, now ibtest.Record, columns int) string {
	var b strings.Builder
	var tests []string
	for _, c := range rep.Cells {
		if !slices.Contains(tests, c.Test) {
			tests = append(tests, c.Test)
		}
	}
	for _, t := range tests {
		b.WriteString(plain.Text(ibtest.Matrix(rep.Plan, rep.Cells, t, columns)))
	}
	few := len(rep.Plan.Nodes) == 2
	for _, c := range rep.Cells {
		if few || c.Grade == nettest.Low || c.Grade == nettest.Failed {
			fmt.Fprintf(&b, "%s -> %s: %s\n", plain.Text(c.From), plain.Text(c.To), plain.Text(c.LaneText()))
		}
	}
	if l := rep.Last; l != nil {
		fmt.Fprintf(&b, "last time: %s, %s ago\n", worstOf(*l), launcher.Age(now.At.Sub(l.At)))
	}
	told := map[string]bool{}
	if rep.Verdict.Cause != nil {
		told[rep.Verdict.Cause.Evidence] = true
	}
	var also []nettest.Cause
	for _, c := range rep.Cells {
		for _, more := range c.Also {
			if !told[more.Evidence] {
				told[more.Evidence] = true
				also = append(also, more)
			}
		}
	}
	writeCauses(&b, also, rep.Verdict.Cause, rep.Verdict.Grade, rep.Verdict.Text)
	return b.String()
}

// worstOf is a record's worst result, in words.
func worstOf(r ibtest.Record) string {
	var words []string
	if r.Gbps != nil {
		words = append(words, fmt.Sprintf("%.1f Gb/s at least", *r.Gbps))
	}
	if r.Micros != nil {
		words = append(words, fmt.Sprintf("%.2f us at most", *r.Micros))
	}
	return strings.Join(append(words, string(r.Grade)), ", ")
}

// ibWatcher reads what the ranks print of each run, and keeps their other lines.
type ibWatcher struct {
	ranksOutput
	plan ibtest.Plan
	told ibtest.Lines
}

func (w *ibWatcher) line(l follow.OutputLine) {
	line, ok := ibtest.ParseLine(*l.Line)
	if !ok || l.Stream != wire.Stdout || line.Step >= len(w.plan.Steps) || line.Step < 0 || line.Run < 0 ||
		line.Run >= len(w.plan.Steps[line.Step].Runs) {
		w.keep(l)
		return
	}
	w.told.Add(line)
	if w.verbose {
		fmt.Fprintf(w.err, "[%d] $ %s\n%s%s%s", l.Rank, strings.Join(line.Argv, " "), plain.Text(line.Out),
			plain.Text(line.Err), plain.Text(line.File))
		if line.Error != "" {
			fmt.Fprintf(w.err, "[%d] %s\n", l.Rank, plain.Text(line.Error))
		}
	}
	if w.live && !line.Server {
		from, to := w.plan.Ends(w.plan.Steps[line.Step].Runs[line.Run])
		fmt.Fprintf(w.err, "sparkrun: step %d of %d: %s -> %s: %s\n", line.Step+1, len(w.plan.Steps),
			w.plan.Nodes[from.Node].Host, w.plan.Nodes[to.Node].Host, ibFigure(line))
	}
}

// ibFigure is a run's result as one word.
func ibFigure(l ibtest.Line) string {
	m, err := ibtest.Read(l.Out, l.File)
	switch {
	case err != nil:
		return "no result"
	case m.Gbps != nil:
		return fmt.Sprintf("%.1f Gb/s", *m.Gbps)
	case m.Typical != nil:
		return fmt.Sprintf("%.2f us", *m.Typical)
	}
	return "done"
}
