package network

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nccltest"
)

// testReport is what --json prints. Scripts read it: fields may come, none may go.
type testReport struct {
	Verdict nccltest.Verdict   `json:"verdict"`
	Program string             `json:"program,omitempty"` // of nccl-tests, as sparkrun found it
	Result  nccltest.Table     `json:"result"`
	Log     nccltest.Log       `json:"nccl_log"`
	Traffic []nccltest.Traffic `json:"traffic,omitempty"`
	Last    *nccltest.Record   `json:"last,omitempty"`

	early  *nccltest.Verdict  // where there was nothing to judge
	places []rendezvous.Place // of the launch; nil: a text was read, or nobody said
	ended  rendezvous.End     // how the launch ended; empty: a text was read
}

// hosts are those that ran it, by the names that the cluster has for them: nccl-tests prints the
// machine's own, which may be another.
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

// ofLinks tells whether a result is a word on the links: one that was stopped, or left, is none, nor one
// that failed before NCCL had a part in it.
func (r testReport) ofLinks() bool {
	over := r.ended == rendezvous.Completed || r.ended == rendezvous.Failed
	alone := r.Verdict.Cause != nil && r.Verdict.Cause.Code == nccltest.CauseAlone
	return over && !alone && r.early == nil && (len(r.Result.Rows) > 0 || r.Log.Links())
}

// startNCCLTest runs a test, which watches its own launch, or judges another's.
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

// ncclTest launches the test as `launch --json` would, reads along, and judges.
func ncclTest(ctx context.Context, a *app.App, o testOptions, before beforehand) error {
	w := watcher{sub: &lineWriter{}, err: a.Err, verbose: o.verbose, live: a.ErrTTY && !o.JSON}
	w.sub.line = w.take
	view := before.view
	span, lerr := launchRead(ctx, a, o.Options, w.sub)
	w.end()
	table, log := w.table.Table(), w.log
	if w.early != nil {
		table.Tool = viaTorch
	}
	if table.Op == "" {
		table.Op = o.Request.NCCLTest.WithDefaults().Op
	}
	if table.OutOfBounds == nil && w.early == nil {
		for _, line := range w.errs {
			fmt.Fprint(a.Err, line)
		}
	}
	var exit *app.ExitError
	if lerr != nil && (!errors.As(lerr, &exit) || len(table.Rows) == 0 && w.early == nil && w.ended != rendezvous.Failed) {
		return lerr // it never ran, or was stopped before it gave anything: launch has said why
	}
	rep := testReport{early: w.early, Program: o.Request.NCCLTest.Program, Result: table, Log: log, places: w.places,
		ended: w.ended}
	if view != nil {
		rep.Traffic = trafficSince(ctx, a, before.counted, span, rep.hosts())
	}
	if err := tell(ctx, a, rep, view, o); lerr == nil {
		return err
	}
	return lerr // the rank's code; launch has said which
}

// launchRead launches a test whose lines this command reads, as `launch --json` writes them, and
// tells how long that took.
func launchRead(ctx context.Context, a *app.App, o launch.Options, lines io.Writer) (time.Duration, error) {
	inner := *a
	inner.Out, inner.OutTTY = lines, false
	o.JSON, o.Request.Stdin = true, "none" // nobody reads, and this command's input is not the ranks'
	began := time.Now()
	err := launch.Run(ctx, &inner, o)
	return time.Since(began), err
}

// beforehand is what is known before a test; nothing in standalone mode.
type beforehand struct {
	view    *fabricView
	counted []wire.NodeCounters
}

// beforeTest learns what there is to test, and takes all of it unless told otherwise; and
// what there is to test with.
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

// countedNow reads the devices' totals; what cannot be read is worth no failure.
func countedNow(ctx context.Context, b *wire.Client) []wire.NodeCounters {
	res, err := wire.Counters.Call(ctx, b, wire.Empty{})
	if err != nil {
		return nil
	}
	return res.Nodes
}

func trafficSince(ctx context.Context, a *app.App, before []wire.NodeCounters, span time.Duration,
	hosts []string) []nccltest.Traffic {
	b := a.Dial()
	defer b.Close()
	var out []nccltest.Traffic
	for _, now := range countedNow(ctx, b) {
		i := slices.IndexFunc(before, func(n wire.NodeCounters) bool { return n.ID == now.ID })
		if i >= 0 && slices.Contains(hosts, now.Host) {
			out = append(out, nccltest.Counted(now.Host, before[i].Totals, now.Totals, span)...)
		}
	}
	return out
}

// readTest judges a result that another has made.
func readTest(ctx context.Context, a *app.App, o testOptions) error {
	text, err := readAll(a, o.read)
	if err != nil {
		return fmt.Errorf("--read %s: %w", o.read, err)
	}
	table, err := nccltest.Parse(string(text))
	if err != nil {
		return fmt.Errorf("--read %s: %w", o.read, err)
	}
	table.Op = cmp.Or(table.Op, o.Request.NCCLTest.Op) // old versions do not name it
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
	if err != nil { // its numbers can be shown all the same
		a.Say(fmt.Sprintf("nothing is known of the links: %v", err))
	}
	return tell(ctx, a, rep, view, o)
}

// maxResult bounds a file that is read: NCCL's log of a long run may be in it.
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

// readAsOfNow stands before the report on a text of another's: what it says of its time nobody knows.
const readAsOfNow = "judged by the cluster's links as they are now, and not as they were when it was measured\n"

// tell judges, prints, remembers, and makes the exit code.
func tell(ctx context.Context, a *app.App, rep testReport, view *fabricView, o testOptions) error {
	t := rep.Result
	s := nccltest.Setting{Traffic: rep.Traffic}
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
		rep.Verdict = nccltest.Judge(t, rep.Log, s)
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
	if o.read == "" && rep.ofLinks() { // of another's run nobody knows when it was
		if rep.Last, err = remember(a, now); err != nil {
			a.Say(fmt.Sprintf("the history is not kept: %v", err))
		}
	}
	d := nccltest.Drawing{Table: t, Verdict: v, Ranks: max(len(t.Devices), len(s.Nodes))}
	if o.svg != "" {
		if err := writeFile(a, o.svg, d.SVG()); err != nil {
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
	switch {
	case v.Grade == nccltest.Failed:
		return app.Exits(app.ExitFailure, nil)
	case o.gate > 0 && v.Part == nil:
		return app.Exits(app.ExitFailure,
			fmt.Errorf("%s: nothing is known of what to expect, so it does not pass", gateText(o.gate)))
	case o.gate > 0 && *v.Part < o.gate:
		return app.Exits(app.ExitFailure, missed(o.gate, *v.Part))
	}
	return nil
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
	if busy := nccltest.Busiest(rep.Traffic); len(busy) > 0 {
		fmt.Fprintf(&b, "sent most: %s\n", plain.Text(strings.Join(busy, "; ")))
	}
	if rep.Last != nil {
		change, _ := nccltest.Compare(now, *rep.Last)
		fmt.Fprintf(&b, "last time: %.2f GB/s, %s ago (%+.1f %%)\n", rep.Last.Bus, app.Age(now.At.Sub(rep.Last.At)),
			100*change)
	}
	for _, c := range v.Also {
		fmt.Fprintf(&b, "also: %s (%s); %s\n", plain.Text(c.Text), plain.Text(c.Evidence), c.Remedy)
	}
	if c := v.Cause; c != nil {
		fmt.Fprintf(&b, "evidence: %s\nremedy: %s\n", plain.Text(c.Evidence), c.Remedy)
	}
	fmt.Fprintf(&b, "verdict: %s: %s\n", v.Grade, plain.Text(v.Text))
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

// remember appends to the user's history, and gives the last record like it.
func remember(a *app.App, now nccltest.Record) (*nccltest.Record, error) {
	old, err := keepHistory(a, nccltest.HistoryFile, now)
	return nccltest.Last(nccltest.History(old), now), err
}

// keepHistory appends a record to a file of the user's, and gives what was in it before.
func keepHistory(a *app.App, name string, now any) (old []byte, err error) {
	dir, err := a.UserFolder("XDG_STATE_HOME", filepath.Join(".local", "state"))
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, name)
	old, err = os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	line, err := json.Marshal(now)
	if err != nil {
		return old, err
	}
	if len(old) > 0 && old[len(old)-1] != '\n' { // a line that a full disk cut
		line = append([]byte{'\n'}, line...)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return old, err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return old, err
	}
	_, err = f.Write(append(line, '\n')) // one write: another test may end at the same moment
	return old, errors.Join(err, f.Close())
}
