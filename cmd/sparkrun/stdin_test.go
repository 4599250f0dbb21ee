package main

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Rank 0 reads what launch does, unless nobody stays to read it, or it may be
// wanted twice.
func TestWhoReads(t *testing.T) {
	for line, want := range map[string]struct {
		stdin launcher.Stdin
		tty   bool
		reads string
	}{
		"launch exec -- cat":                                    {stdin: "0", reads: "typed"},
		"launch exec --stdin 2 --nodes 3 -- cat":                {stdin: "2", reads: "typed"},
		"launch exec --stdin none -- cat":                       {stdin: "none"},
		"launch --max-restarts 1 exec -- cat":                   {stdin: ""},
		"launch --max-restarts 1 --stdin 0 exec -- cat":         {stdin: "0", reads: "typed"},
		"launch -d exec -- cat":                                 {stdin: ""},
		"launch -d -t exec -- sh":                               {stdin: "0", tty: true},
		"launch -d -t --stdin 1 --nodes 2 exec -- sh":           {stdin: "1", tty: true},
		"launch --standalone exec -- cat":                       {stdin: "0", reads: "typed"},
		"launch torchrun --nodes 2 --python p -- /etc/passwd x": {stdin: "0", reads: "typed"},
	} {
		ranks := &apptest.FakeRanks{}
		read := make(chan struct{})
		end := sync.OnceFunc(func() { close(read) })
		ranks.Fails = func(int) error {
			if ranks.Ended {
				end()
			}
			return nil
		}
		if want.reads == "" {
			end()
		}
		g := &apptest.FakeRunner{Ranks: ranks, OnLaunch: func(_ context.Context, _ int,
			tell func(rendezvous.Progress) error) error {
			if err := apptest.TellAll(tell, apptest.Planned(1), apptest.Started("a"), apptest.Runs); err != nil {
				return err
			}
			<-read
			return apptest.TellAll(tell, apptest.Ended(apptest.Completed))
		}}
		parts := []apptest.Answers{g}
		if !strings.Contains(line, "standalone") {
			parts = append(parts, &apptest.FakeCluster{})
		}
		b := apptest.Agent(parts...)
		var o, e apptest.SyncBuffer
		a := &app.App{
			In: strings.NewReader("typed"), Out: &o, Err: &e, Getwd: func() (string, error) { return "/", nil }, Signals: listen,
			Dial:       func() *wire.Client { return b },
			Standalone: func() (*wire.Client, func(), error) { return b, func() {}, nil },
		}
		if code := execute(t.Context(), a, strings.Fields(line)); code != 0 {
			t.Errorf("%s: code %d, %s", line, code, e.String())
			continue
		}
		spec := g.Spec()
		st := spec.MainStage()
		if got := ranks.Got.String(); st.Stdin != want.stdin || got != want.reads || (st.TTY != nil) != want.tty {
			t.Errorf("%s: stdin %q, terminal %v, read %q, want %+v", line, st.Stdin, st.TTY, got, want)
		}
		if want.tty && *st.TTY != (launcher.Window{Rows: 24, Cols: 80}) {
			t.Errorf("%s: a terminal of %v", line, *st.TTY)
		}
	}
}
