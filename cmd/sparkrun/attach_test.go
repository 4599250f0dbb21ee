package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// asked tells where an input goes on.
type asked struct {
	at  int64
	err error
}

func (f asked) Calls() []wire.Call {
	return []wire.Call{wire.InputAt.Serve(
		func(context.Context, wire.Caller, wire.InputAtRequest) (wire.InputAtResponse, error) {
			return wire.InputAtResponse{Offset: f.at}, f.err
		})}
}

// runningJob is one of three ranks in its second try.
func runningJob(stdin launcher.Stdin, tty *launcher.Window) wire.JobsResponse {
	return wire.JobsResponse{Jobs: []rendezvous.JobStatus{{
		Job: rendezvous.Job{
			Spec: launcher.Spec{ID: "job2345678", Name: "train", User: "ada",
				Stages: []launcher.Stage{{Main: true, Stdin: stdin, TTY: tty}}},
			Plan: rendezvous.Plan{World: 3, Generation: 2},
		},
		Started: new(time.Now()),
	}}}
}

// What is typed goes on where the one before left off, output begins with the
// last lines of the try that runs, and the exit code is the job's.
func TestAttach(t *testing.T) {
	ranks := &apptest.FakeRanks{}
	ranks.Got.WriteString("typed before ")
	taken := make(chan struct{})
	ranks.Fails = func(int) error {
		if ranks.Ended {
			close(taken)
		}
		return nil
	}
	var read wire.LogsRequest
	g := &apptest.FakeRunner{
		Ranks: ranks,
		OnWatch: func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
			<-taken
			return apptest.TellAll(tell, apptest.Planned(3), apptest.Ended(apptest.Failed7))
		},
		OnLogs: func(_ context.Context, _ int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
			read = r
			return fn(apptest.Out(1, 0, "hi\n"))
		},
	}
	var o, e apptest.SyncBuffer
	b := apptest.Agent(g, asked{at: 13}, &apptest.FakeCluster{Has: runningJob("1", nil)})
	a := &app.App{
		In: strings.NewReader("and now"), Out: &o, Err: &e, Dial: func() *wire.Client { return b },
		Signals: listen,
	}
	if code := execute(t.Context(), a, []string{"attach", "train", "--tail", "3"}); code != 7 || o.String() != "[1] hi\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, o.String(), e.String())
	}
	if got := ranks.Got.String(); got != "typed before and now" {
		t.Errorf("input %q", got)
	}
	if len(g.Launched) > 0 || read.Generation != 2 || read.From.Lines == nil || *read.From.Lines != 3 ||
		len(read.Ranks) > 0 {
		t.Errorf("launched %v, read %+v", g.Launched, read)
	}
}

// Attached to one rank: its output and its input; with --no-stdin nothing is sent.
func TestAttachOfARank(t *testing.T) {
	window := &launcher.Window{Rows: 24, Cols: 80}
	for name, tc := range map[string]struct {
		stdin   launcher.Stdin
		tty     *launcher.Window
		line    string
		input   string // that the ranks got
		only    []int
		code    int
		says    string
		refused error
	}{
		"no input":               {stdin: "none", line: "attach train"},
		"its rank":               {stdin: "1", line: "attach train --rank 1", input: "x", only: []int{1}},
		"another rank":           {stdin: "1", line: "attach train --rank 2", only: []int{2}},
		"one of all":             {stdin: "all", line: "attach train --rank 2", input: "x", only: []int{2}},
		"none of all":            {stdin: "all", line: "attach train"},
		"looks on":               {stdin: "1", line: "attach train --no-stdin", refused: wire.ErrDenied},
		"looks on at a terminal": {stdin: "0", tty: window, line: "attach train --no-stdin", only: []int{0}},
		"somebody else's": {stdin: "1", line: "attach train", refused: wire.ErrDenied, code: 125,
			says: "not allowed: --no-stdin only looks on"},
		"a terminal without ours": {stdin: "0", tty: window, line: "attach train", code: 125,
			says: "the input device is not a TTY; --no-stdin only looks on"},
		"no such rank": {stdin: "1", line: "attach train --rank 3", code: 125, says: "its ranks are 0 to 2"},
		"no such job":  {stdin: "1", line: "attach tran", code: 125, says: "no such job"},
		"negative":     {stdin: "1", line: "attach train --tail -1", code: 125, says: "want 0 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := &apptest.FakeRanks{}
			taken := make(chan struct{})
			ranks.Fails = func(int) error {
				if ranks.Ended {
					close(taken)
				}
				return nil
			}
			var only []int
			g := &apptest.FakeRunner{
				Ranks: ranks,
				OnWatch: func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
					if tc.input != "" {
						<-taken
					}
					return apptest.TellAll(tell, apptest.Ended(apptest.Completed))
				},
				OnLogs: func(_ context.Context, _ int, r wire.LogsRequest, _ func(wire.LogChunk) error) error {
					only = r.Ranks
					return nil
				},
			}
			var e apptest.SyncBuffer
			b := apptest.Agent(g, asked{err: tc.refused}, &apptest.FakeCluster{Has: runningJob(tc.stdin, tc.tty)})
			a := &app.App{In: strings.NewReader("x"), Out: &bytes.Buffer{}, Err: &e,
				Dial: func() *wire.Client { return b }, Signals: listen}
			if code := execute(t.Context(), a, strings.Fields(tc.line)); code != tc.code ||
				!strings.Contains(e.String(), tc.says) {
				t.Errorf("code %d, stderr %q", code, e.String())
			}
			if ranks.Got.String() != tc.input || !slices.Equal(only, tc.only) {
				t.Errorf("input %q, output of %v", ranks.Got.String(), only)
			}
		})
	}
}

func TestAttachToTheEnded(t *testing.T) {
	jobs := runningJob("", nil)
	jobs.Jobs[0].Outcome = &apptest.Completed
	code, _, err := cli(t, apptest.Agent(&apptest.FakeRunner{}, &apptest.FakeCluster{Has: jobs}),
		"attach", "train")
	if code != 125 || !strings.Contains(err, "`sparkrun logs job2345678` has its output") {
		t.Errorf("code %d, %q", code, err)
	}
}
