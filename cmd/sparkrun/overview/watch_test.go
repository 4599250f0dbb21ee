package overview

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// watched runs status --watch for a while on a cluster whose second machine goes away after 5 s, and whose memory in use
// is another at each look; that is told after the first one so much later.
func watched(t *testing.T, a *app.App, o options, later time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		f := &apptest.FakeFabrics{OnFollow: func(ctx context.Context, _ int, fn func(wire.Status) error) error {
			time.Sleep(5 * time.Second)
			st := apptest.Pair(true)
			st.Nodes[1].State = "away"
			if err := fn(st); err != nil {
				return err
			}
			time.Sleep(5 * time.Second)
			interrupt()
			<-ctx.Done()
			return ctx.Err()
		}}
		var asked atomic.Int64
		uses := apptest.Calls{wire.Usage.Unary.Serve(func(context.Context, wire.Caller, wire.Empty) (wire.UsageResponse, error) {
			used := asked.Add(1) << 30
			if used > 1<<30 {
				time.Sleep(later)
			}
			return wire.UsageResponse{Nodes: []wire.NodeUsage{{ID: "id-spark1",
				Machine: usage.Machine{Memory: &usage.Memory{Total: 121 << 30, Available: 121<<30 - used}}}}}, nil
		})}
		b := apptest.Agent(f, apptest.StatusIs(apptest.Pair(true), nil), uses)
		a.Dial, a.Columns = func() *wire.Client { return b }, func() int { return 100 }
		o.watch = true
		if err := runStatus(ctx, a, o); err != nil {
			t.Error(err)
		}
	})
}

// Without a terminal there is a block for each change, and a figure is none.
func TestWatchPrintsChanges(t *testing.T) {
	var out, errs apptest.SyncBuffer
	watched(t, &app.App{Out: &out, Err: &errs}, options{}, 0)
	text := out.String()
	blocks := strings.Split(text, "\n\n")
	if len(blocks) != 2 || strings.Contains(blocks[0], "away") || !strings.Contains(blocks[1], "spark2   10.0.0.12   away") ||
		strings.Contains(text, "\x1b") || errs.String() != "" {
		t.Errorf("stderr %q, stdout\n%s", errs.String(), text)
	}
}

// A terminal has each look in place, and keeps the last one when it ends.
func TestWatchDraws(t *testing.T) {
	var out apptest.SyncBuffer
	watched(t, &app.App{Out: &out, Err: &out, OutTTY: true, Environ: []string{"TERM=xterm"}, Rows: func() int { return 5 }},
		options{wide: true}, 0)
	drawn := strings.Split(out.String(), "\x1b[H")
	last, kept, left := strings.Cut(drawn[len(drawn)-1], "\x1b[?1049l")
	some := strings.Join(drawn[min(2, len(drawn)-1):min(4, len(drawn))], "")
	switch { // at each second it is drawn before the answer or after it
	case len(drawn) < 10 || !strings.Contains(some, "2 of 121 GiB") && !strings.Contains(some, "3 of 121 GiB"):
		t.Errorf("drawn %d times:\n%s", len(drawn)-1, out.String())
	case !left || !strings.Contains(last, "away") || !strings.Contains(kept, "away"):
		t.Errorf("the end is %q, then %q", last, kept)
	case strings.Contains(out.String(), "\x1b[2J"):
		t.Error("it clears the screen, which flickers")
	}
	for _, frame := range drawn[1:] {
		if n := strings.Count(strings.Split(frame, "\x1b[J")[0], "\n") + 1; n > 5 {
			t.Errorf("%d lines on a terminal of 5", n)
		}
	}
}

// A machine that does not answer holds up neither the view nor, for good, the figures of the others.
func TestWatchBesideASilentMachine(t *testing.T) {
	var out apptest.SyncBuffer
	watched(t, &app.App{Out: &out, Err: &out, OutTTY: true, Environ: []string{"TERM=xterm"}}, options{wide: true},
		3*time.Second)
	if n := strings.Count(out.String(), "\x1b[H"); n < 10 || !strings.Contains(out.String(), "2 of 121 GiB") {
		t.Errorf("drawn %d times:\n%s", n, out.String())
	}
}
