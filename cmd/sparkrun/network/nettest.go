package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// What nccl-test and ib-test share: the launch whose output they read, the counters
// before and after, the history, the end of the report, and the exit code.

// ranksOutput reads the objects that a launch prints.
type ranksOutput struct {
	line  func(follow.OutputLine) // called with each whole line of a rank
	event func(object []byte)     // nil: events are not needed
	err   io.Writer
	// verbose shows what the ranks write, live how far they are.
	verbose, live bool

	part []byte
	open openLines
	said []string // the last other lines: warnings, shown only after a failure
}

// newRanksOutput makes one that shows on the terminal what was asked for.
func newRanksOutput(a *app.App, o launch.Options, verbose bool) ranksOutput {
	return ranksOutput{err: a.Err, verbose: verbose, live: a.ErrTTY && !o.JSON && !verbose}
}

// keptLines is enough for a traceback of each of a few ranks.
const keptLines = 100

// keep stores a line that may say why a test failed.
func (r *ranksOutput) keep(l follow.OutputLine) {
	r.said = append(r.said, fmt.Sprintf("[%d] %s\n", l.Rank, *l.Line))
	r.said = r.said[max(0, len(r.said)-keptLines):]
}

// tellKept prints those lines.
func (r *ranksOutput) tellKept() {
	for _, line := range r.said {
		fmt.Fprint(r.err, line)
	}
}

// Write takes the launch's objects, one per line.
func (r *ranksOutput) Write(b []byte) (int, error) {
	r.part = append(r.part, b...)
	for {
		i := bytes.IndexByte(r.part, '\n')
		if i < 0 {
			return len(b), nil
		}
		r.take(r.part[:i])
		r.part = r.part[i+1:]
	}
}

func (r *ranksOutput) take(object []byte) {
	var l follow.OutputLine
	switch {
	case json.Unmarshal(object, &l) != nil:
	case l.Type == "event" && r.event != nil:
		r.event(object)
	case r.open.whole(&l):
		r.line(l)
	}
}

// launch starts the test as `launch --json` would, reads its output, and returns how long
// it took.
func (r *ranksOutput) launch(ctx context.Context, a *app.App, o launch.Options) (time.Duration, error) {
	inner := *a
	inner.Out, inner.OutTTY = r, false
	o.JSON, o.Request.Stdin = true, "none" // the ranks must not read this command's input
	began := time.Now()
	err := launch.Run(ctx, &inner, o)
	r.end()
	return time.Since(began), err
}

// end handles the lines that have no end.
func (r *ranksOutput) end() {
	for _, l := range r.open {
		r.line(l)
	}
	r.open = nil
}

// openLines are lines that have arrived in part: a launch does not wait for ever for the
// end of one.
type openLines map[follow.TailKey]follow.OutputLine

// whole completes l to the whole line that it ends; false: it is no line of output, or
// its end is missing.
func (o *openLines) whole(l *follow.OutputLine) bool {
	if l.Type != "output" || l.Line == nil {
		return false
	}
	k := follow.TailKey{Rank: l.Rank, Stream: l.Stream}
	if part, ok := (*o)[k]; ok {
		text := *part.Line + *l.Line
		l.Line = &text
		delete(*o, k)
	}
	if !l.Partial || len(*l.Line) >= follow.MaxLine {
		return true
	}
	if *o == nil {
		*o = openLines{}
	}
	(*o)[k] = *l
	return false
}

// countedNow reads the devices' totals; errors are ignored.
func countedNow(ctx context.Context, b *wire.Client) []wire.NodeCounters {
	res, err := wire.Counters.Call(ctx, b, wire.Empty{})
	if err != nil {
		return nil
	}
	return res.Nodes
}

// trafficSince is what the devices of hosts have counted since before.
func trafficSince(ctx context.Context, a *app.App, before []wire.NodeCounters, span time.Duration,
	hosts []string) []nettest.Traffic {
	b := a.Dial()
	defer b.Close()
	var out []nettest.Traffic
	for _, now := range countedNow(ctx, b) {
		i := slices.IndexFunc(before, func(n wire.NodeCounters) bool { return n.ID == now.ID })
		if i >= 0 && slices.Contains(hosts, now.Host) {
			out = append(out, nettest.Counted(now.Host, before[i].Totals, now.Totals, span)...)
		}
	}
	return out
}

// keepHistory appends a record to one of the user's files, and returns what was in it
// before. An error is printed, and is no failure.
func keepHistory(a *app.App, name string, now any) (old []byte) {
	old, err := appendHistory(a, name, now)
	if err != nil {
		a.Say(fmt.Sprintf("the history is not kept: %v", err))
	}
	return old
}

func appendHistory(a *app.App, name string, now any) (old []byte, err error) {
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
	if len(old) > 0 && old[len(old)-1] != '\n' { // a full disk has cut this line
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

// writeCauses ends a report for people: the further causes, and the verdict as the last
// line.
func writeCauses(b *strings.Builder, also []nettest.Cause, cause *nettest.Cause, grade nettest.Grade, text string) {
	for _, c := range also {
		fmt.Fprintf(b, "also: %s (%s); %s\n", plain.Text(c.Text), plain.Text(c.Evidence), c.Remedy)
	}
	if cause != nil {
		fmt.Fprintf(b, "evidence: %s\nremedy: %s\n", plain.Text(cause.Evidence), cause.Remedy)
	}
	fmt.Fprintf(b, "verdict: %s: %s\n", grade, plain.Text(text))
}

// passes makes the exit code: part is the fraction of the expected rate that was reached,
// nil where no rate is expected, and gate the fraction required; 0: any.
func passes(grade nettest.Grade, part *float64, gate float64) error {
	switch {
	case grade == nettest.Failed:
		return app.Exits(app.ExitFailure, nil)
	case gate > 0 && (part == nil || grade == nettest.Unjudged):
		return app.Exits(app.ExitFailure,
			fmt.Errorf("%s: nothing is known of what to expect, so it does not pass", gateText(gate)))
	case gate > 0 && *part < gate:
		return app.Exits(app.ExitFailure, missed(gate, *part))
	}
	return nil
}

func gateText(gate float64) string { return fmt.Sprintf("--gate %g", gate) }

// missed says what was reached in place of gate, with as many digits as it takes to tell
// the two apart.
func missed(gate, part float64) error {
	digits := 2
	for digits < 6 && math.Round(part*math.Pow10(digits)) >= math.Round(gate*math.Pow10(digits)) {
		digits++
	}
	return fmt.Errorf("%s: %.*f of what is expected was reached", gateText(gate), digits, part)
}
