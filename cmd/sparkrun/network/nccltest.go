package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nettest"
	"github.com/sparkrun/sparkrun/workloads/nettest/nccltest"
)

// testReport is what --json prints. Scripts read it: fields may be added, none may be
// removed.
type testReport struct {
	Verdict nccltest.Verdict  `json:"verdict"`
	Program string            `json:"program,omitempty"` // the path of nccl-tests that sparkrun found
	Result  nccltest.Table    `json:"result"`
	Log     nccltest.Log      `json:"nccl_log"`
	Traffic []nettest.Traffic `json:"traffic,omitempty"`
	Last    *nccltest.Record  `json:"last,omitempty"`

	early  *nccltest.Verdict  // set where there was nothing to evaluate
	places []rendezvous.Place // of the launch; nil: a text was read, or the launch did not say
	ended  rendezvous.End     // how the launch ended; empty: a text was read
}

// hosts are the hosts that ran the test, by their names in the cluster: nccl-tests prints
// each machine's own name, which may differ.
func (r testReport) hosts() []string {
	if len(r.places) == 0 {
		return r.Result.Hosts()
	}
	var hosts []string
	for _, p := range r.places {
		hosts = append(hosts, p.Host)
	}
	return hosts
}

// ofLinks tells whether a result says anything about the links: not if the test was
// stopped or left, or failed before NCCL did anything.
func (r testReport) ofLinks() bool {
	over := r.ended == rendezvous.Completed || r.ended == rendezvous.Failed
	alone := r.Verdict.Cause != nil && r.Verdict.Cause.Code == nccltest.CauseAlone
	return over && !alone && r.early == nil && (len(r.Result.Rows) > 0 || r.Log.Links())
}

// startNCCLTest runs a test in a launch that it watches itself, or evaluates the result
// of another.
func startNCCLTest(ctx context.Context, a *app.App, o testOptions) error {
	if err := checkTest(o); err != nil {
		return err
	}
	if o.read != "" {
		return readTest(ctx, a, o)
	}
	var before beforehand
	if err := app.Interruptible(ctx, func(ctx context.Context) (err error) {
		before, err = beforeTest(ctx, a, &o)
		return err
	}); err != nil {
		return err
	}
	if o.DryRun {
		return launch.Run(ctx, a, o.Options)
	}
	return ncclTest(ctx, a, o, before)
}

// ncclTest launches the test as `launch --json` would, reads its output, and evaluates
// it.
func ncclTest(ctx context.Context, a *app.App, o testOptions, before beforehand) error {
	w := watcher{ranksOutput: newRanksOutput(a, o.Options, o.verbose)}
	w.ranksOutput.line, w.ranksOutput.event = w.line, w.event
	view := before.view
	span, lerr := w.launch(ctx, a, o.Options)
	table, log := w.table.Table(), w.log
	if w.early != nil {
		table.Tool = viaTorch
	}
	if table.Op == "" {
		table.Op = o.Request.NCCLTest.WithDefaults().Op
	}
	if table.OutOfBounds == nil && w.early == nil {
		w.tellKept()
	}
	var exit *app.ExitError
	if lerr != nil && (!errors.As(lerr, &exit) || len(table.Rows) == 0 && w.early == nil && w.ended != rendezvous.Failed) {
		return lerr // it never ran, or was stopped before it printed anything: launch has said why
	}
	rep := testReport{early: w.early, Program: o.Request.NCCLTest.Program, Result: table, Log: log, places: w.places,
		ended: w.ended}
	if view != nil {
		rep.Traffic = trafficSince(ctx, a, before.counted, span, rep.hosts())
	}
	if err := tell(a, rep, view, o); lerr == nil {
		return err
	}
	return lerr // the rank's exit code; launch has said which
}

// beforehand is what is known before a test; empty in standalone mode.
type beforehand struct {
	view    *fabricView
	counted []wire.NodeCounters
}

// beforeTest finds out which machines can be tested, takes all of them unless told
// otherwise, and finds the program to test with.
func beforeTest(ctx context.Context, a *app.App, o *testOptions) (beforehand, error) {
	var known beforehand
	if !o.Standalone {
		b := a.Dial()
		defer b.Close()
		st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
		if err != nil {
			return known, err
		}
		job := &o.Request.Job
		if job.Nodes == 0 && len(job.On) == 0 {
			for _, n := range st.Nodes {
				if n.State == "ready" && !n.Witness && !slices.Contains(job.Exclude, n.Host) {
					job.Nodes++
				}
			}
			job.Nodes = max(1, job.Nodes)
		}
		if known.view, err = newFabricView(st, nil); err != nil {
			return known, err
		}
		known.counted = countedNow(ctx, b)
	}
	hosts, err := findTests(ctx, a, o)
	if err != nil {
		return known, err
	}
	return known, boundTest(a, o, known.counted, hosts)
}

// readTest evaluates the result of a test that ran elsewhere.
func readTest(ctx context.Context, a *app.App, o testOptions) error {
	text, err := readAll(a, o.read)
	if err != nil {
		return fmt.Errorf("--read %s: %w", o.read, err)
	}
	table, err := nccltest.Parse(string(text))
	if err != nil {
		return fmt.Errorf("--read %s: %w", o.read, err)
	}
	table.Op = cmp.Or(table.Op, o.Request.NCCLTest.Op) // old versions do not print it
	rep := testReport{Result: table}
	for line := range strings.Lines(string(text)) {
		rep.Log.Line(strings.TrimSuffix(line, "\n"))
	}
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	var view *fabricView
	if err == nil {
		view, err = newFabricView(st, nil)
	}
	if err != nil { // its numbers can still be shown
		a.Say(fmt.Sprintf("nothing is known of the links: %v", err))
	}
	return tell(a, rep, view, o)
}

// maxResult bounds a file to read, in bytes: it may contain NCCL's log of a long run.
const maxResult = 256 << 20

func readAll(a *app.App, name string) ([]byte, error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxResult+1))
	if err == nil && len(text) > maxResult {
		err = fmt.Errorf("it has more than %d MiB", maxResult>>20)
	}
	return text, err
}

// readAsOfNow precedes the report on a text that was read: nobody knows the links at the
// time of that test.
const readAsOfNow = "judged by the cluster's links as they are now, and not as they were when it was measured\n"

// tell evaluates the result, prints it, records it, and makes the exit code.
func tell(a *app.App, rep testReport, view *fabricView, o testOptions) error {
	t := rep.Result
	s := nccltest.Setting{Setting: nettest.Setting{Traffic: rep.Traffic}}
	cluster := "standalone"
	if view != nil {
		cluster = view.status.Cluster
		s.Topology, s.Inventories = view.scene.Topology, view.scene.Inventories
		for _, n := range view.status.Nodes {
			if slices.Contains(rep.hosts(), n.Host) {
				s.Nodes = append(s.Nodes, string(n.ID))
			}
		}
	}
	if rep.early != nil {
		rep.Verdict = *rep.early
	} else {
		rep.Verdict = nccltest.Evaluate(t, rep.Log, s)
	}
	if rep.ended == rendezvous.Stopped { // by Ctrl-C, or by a stop elsewhere: what was measured stands
		rep.Verdict = nccltest.Verdict{Grade: nettest.Stopped, Text: "by you; the rows are what it measured until then"}
	}
	v := rep.Verdict
	tool, version, _ := strings.Cut(t.Tool, " ")
	now := nccltest.Record{
		At: time.Now().UTC(), Cluster: cluster, Op: t.Op, Tool: tool, Version: version, Program: rep.Program, NCCL: t.NCCL,
		Hosts: slices.Sorted(slices.Values(t.Hosts())), Bytes: v.Bytes, Bus: v.Bus, Part: v.Part, Grade: v.Grade,
	}
	if v.Cause != nil {
		now.Cause = v.Cause.Code
	}
	var err error
	if o.read == "" && rep.ofLinks() { // nobody knows when a test that was read took place
		rep.Last = nccltest.Last(keepHistory(a, nccltest.HistoryFile, now), now)
	}
	d := nccltest.Drawing{Table: t, Verdict: v, Ranks: max(len(t.Devices), len(s.Nodes))}
	if o.svg != "" {
		if err := a.WriteFile(o.svg, d.SVG()); err != nil {
			return app.Exits(app.ExitFailure, err)
		}
	}
	switch {
	case o.JSON:
		err = a.Object(rep)
	case o.svg != "-":
		text := testText(rep, d, now, a.Columns())
		if o.read != "" && view != nil {
			text = readAsOfNow + text
		}
		_, err = io.WriteString(a.Out, text)
	}
	if err != nil {
		return err
	}
	return passes(v.Grade, v.Part, o.gate)
}

// testText is the report for people; its last line is the verdict.
func testText(rep testReport, d nccltest.Drawing, now nccltest.Record, columns int) string {
	var b strings.Builder
	t, v := rep.Result, rep.Verdict
	fmt.Fprintf(&b, "%s by %s", plain.Text(cmp.Or(t.Op, "test")), plain.Text(t.Tool))
	if rep.Program != "" {
		fmt.Fprintf(&b, " (%s)", plain.Text(rep.Program))
	}
	if t.NCCL != "" {
		fmt.Fprintf(&b, ", NCCL %s", plain.Text(t.NCCL))
	}
	if hosts := t.Hosts(); len(hosts) > 0 {
		fmt.Fprintf(&b, ", on %s", plain.Text(strings.Join(hosts, ", ")))
	}
	if len(t.Devices) > 0 {
		fmt.Fprintf(&b, " (%s)", plain.Text(t.Devices[0].Name))
	}
	b.WriteString("\n")
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "%s\n", plain.Text(n))
	}
	b.WriteString(d.Text(columns))
	if via := transports(rep.Log); via != "" {
		fmt.Fprintf(&b, "transport: %s\n", plain.Text(via))
	}
	if busy := nettest.Busiest(rep.Traffic); len(busy) > 0 {
		fmt.Fprintf(&b, "sent most: %s\n", plain.Text(strings.Join(busy, "; ")))
	}
	if rep.Last != nil {
		change, _ := nccltest.Compare(now, *rep.Last)
		fmt.Fprintf(&b, "last time: %.2f GB/s, %s ago (%+.1f %%)\n", rep.Last.Bus, launcher.Age(now.At.Sub(rep.Last.At)),
			100*change)
	}
	writeCauses(&b, v.Also, v.Cause, v.Grade, v.Text)
	return b.String()
}

func transports(l nccltest.Log) string {
	var parts []string
	for _, name := range []string{"NET/IB", "NET/Socket", "P2P", "SHM", "C2C"} {
		if n := l.Via[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s, %s", name, app.Count(n, "connection")))
		}
	}
	var devices []string
	for _, by := range []map[string][]string{l.Using, l.Sockets} {
		for _, names := range by {
			for _, n := range names {
				if !slices.Contains(devices, n) {
					devices = append(devices, n)
				}
			}
		}
		if len(devices) > 0 {
			break
		}
	}
	slices.Sort(devices)
	if len(devices) > 0 {
		parts = append(parts, "over "+strings.Join(devices, ", "))
	}
	return strings.Join(parts, "; ")
}
