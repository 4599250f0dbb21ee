package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A watch prints each change once, goes on after an agent that went away, keeps
// the last view while there is no leader, and ends with Ctrl-C.
func TestFabricWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaderless := pair(true)
		leaderless.Leader, leaderless.Problem = "", "an election is under way"
		leaderless.Nodes = leaderless.Nodes[:1]
		led := pair(false)
		led.Leader = "spark2"
		var o, e syncBuffer
		ctx, interrupt := context.WithCancel(t.Context())
		f := &fakeFabrics{follow: func(ctx context.Context, try int, fn func(wire.Status) error) error {
			switch try {
			case 1:
				if err := errors.Join(fn(pair(true)), fn(pair(true)), fn(leaderless)); err != nil {
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
		b := &backend{fabrics: f, close: func() {}}
		a := &app{out: &o, err: &e, dial: func() *backend { return b }, columns: func() int { return 100 }}
		if err := a.watchFabric(ctx, fabricOptions{watch: true}); err != nil {
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
	var o syncBuffer
	w := &fabricWatch{app: &app{out: &o, outTTY: true, columns: func() int { return 80 }}, opts: fabricOptions{drawing: true}, now: time.Now}
	if err := errors.Join(w.take(pair(true)), w.take(pair(false))); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(o.String(), "\x1b[H\x1b[2J"); n != 2 {
		t.Errorf("%d times drawn, want 2", n)
	}
	if !strings.Contains(o.String(), "┌ spark1") || !strings.Contains(o.String(), "spark2 port 0 lost its link") {
		t.Error(o.String())
	}
}
