package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A take-over is checked before anybody is asked, asked before it is made, and
// over when the machine leads in the new epoch.
func TestTakeover(t *testing.T) {
	looks := 0
	f := &apptest.FakeCluster{OnStatus: func(wire.StatusRequest) (wire.Status, error) {
		switch looks++; looks {
		case 1:
			return wire.Status{}, fmt.Errorf("it opens anew: %w", wire.ErrRetry)
		case 2:
			return wire.Status{Epoch: 2, Leader: ""}, nil
		}
		return wire.Status{Epoch: 3, Leader: "spark2"}, nil
	}}
	b := apptest.Agent(f)
	code, out, errs := cli(t, b, "takeover", "--confirm-dead", "spark1", "--yes")
	if code != 0 || out != "spark2 leads, in epoch 3; spark1 gives way when it comes back\n" || errs != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	want := []any{wire.TakeoverRequest{Dead: []string{"spark1"}, Check: true},
		wire.TakeoverRequest{Dead: []string{"spark1"}},
		wire.StatusRequest{}, wire.StatusRequest{}, wire.StatusRequest{}}
	if d := cmp.Diff(want, f.Requests); d != "" {
		t.Error(d)
	}

	code, out, errs = cli(t, b, "takeover", "--confirm-dead", "spark3,spark1", "--confirm-dead", "spark3", "--yes")
	if code != 0 || out != "spark2 leads, in epoch 3; spark1, spark3 give way when they come back\n" ||
		!strings.Contains(errs, "do not switch spark1, spark3 on together") {
		t.Errorf("two are dead: exit %d, stdout %q, stderr %q", code, out, errs)
	}

	f.Requests = nil
	code, _, errs = cli(t, b, "takeover", "--confirm-dead", "spark1")
	if code != app.ExitUsage || !strings.Contains(errs, "--yes") || !strings.Contains(errs, "a lost cable is no proof") {
		t.Errorf("no terminal: exit %d, %s", code, errs)
	}
	if d := cmp.Diff(want[:1], f.Requests); d != "" {
		t.Errorf("nobody agreed: %s", d)
	}

	f.Requests, f.Err = nil, fmt.Errorf("%w: spark1 leads", wire.ErrConflict)
	if code, _, errs = cli(t, b, "takeover", "--confirm-dead", "spark1", "--yes"); code != app.ExitFailure ||
		!strings.Contains(errs, "spark1 leads") {
		t.Errorf("refused: exit %d, %s", code, errs)
	}
	if code, _, errs = cli(t, b, "takeover"); code != app.ExitUsage ||
		!strings.Contains(errs, "--confirm-dead is missing") {
		t.Errorf("nobody named: exit %d, %s", code, errs)
	}
}
