package network

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A watch prints each change once, goes on after an agent that went away, keeps
// the last view while there is no leader, and ends with Ctrl-C.
func TestFabricWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaderless := apptest.Pair(true)
		leaderless.Leader, leaderless.Problem = "", "an election is under way"
		leaderless.Nodes = leaderless.Nodes[:1]
		led := apptest.Pair(false)
		led.Leader = "spark2"
		var o, e apptest.SyncBuffer
		ctx, interrupt := context.WithCancel(t.Context())
		f := &apptest.FakeFabrics{OnFollow: func(ctx context.Context, try int, fn func(wire.Status) error) error {
			switch try {
			case 1:
				if err := errors.Join(fn(apptest.Pair(true)), fn(apptest.Pair(true)), fn(leaderless)); err != nil {
					return err
				}
				return node.ErrNoAgent
			case 2:
				if err := fn(led); err != nil {
					return err
				}
			}
			interrupt()
			<-ctx.Done()
			return ctx.Err()
		}}
		b := apptest.Agent(f)
		a := &app.App{Out: &o, Err: &e, Dial: func() *wire.Client { return b }, Columns: func() int { return 100 }}
		if err := watchFabric(ctx, a, fabricOptions{watch: true}); err != nil {
			t.Fatal(err)
		}
		var said []string
		for line := range strings.Lines(o.String()) {
			stamp, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			if _, err := time.Parse("2006-01-02T15:04:05.000Z07:00", stamp); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			said = append(said, text)
		}
		want := []string{
			"pair: spark1 and spark2 are joined by one cable, seen by the probe",
			"no leader, the last view stands: an election is under way",
			"leader spark2",
			"spark1 port 0 lost its link",
		}
		if len(said) < len(want) || !cmp.Equal(want, said[:len(want)]) {
			t.Errorf("said\n%s", strings.Join(said, "\n"))
		}
		if !strings.Contains(o.String(), "gone: cable: spark1 port 0 - spark2 port 0\n") {
			t.Errorf("the cable is not told of:\n%s", o.String())
		}
	})
}

// On a terminal the whole is drawn anew.
func TestFabricWatchDraws(t *testing.T) {
	var o apptest.SyncBuffer
	w := &fabricWatch{app: &app.App{Out: &o, OutTTY: true, Columns: func() int { return 80 }},
		opts: fabricOptions{drawing: true}, now: time.Now}
	if err := errors.Join(w.take(apptest.Pair(true)), w.take(apptest.Pair(false))); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(o.String(), "\x1b[H\x1b[2J"); n != 2 {
		t.Errorf("%d times drawn, want 2", n)
	}
	if !strings.Contains(o.String(), "┌ spark1") || !strings.Contains(o.String(), "spark2 port 0 lost its link") {
		t.Error(o.String())
	}
}
