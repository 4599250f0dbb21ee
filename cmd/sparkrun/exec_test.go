package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fakePlace is a rank's place: what exec does there, and what reaches it.
type fakePlace struct {
	exec func(ctx context.Context, r wire.ExecRequest, fn func(wire.ExecChunk) error) error

	mu      sync.Mutex
	typed   strings.Builder
	reached func(r wire.ExecReachRequest, typed string)
}

func (f *fakePlace) Calls() []wire.Call {
	return []wire.Call{wire.Exec.Serve(f.run), wire.ExecReach.Serve(f.reach)}
}

func (f *fakePlace) run(ctx context.Context, _ wire.Caller, r wire.ExecRequest, fn func(wire.ExecChunk) error) error {
	return f.exec(ctx, r, fn)
}

func (f *fakePlace) reach(_ context.Context, _ wire.Caller, r wire.ExecReachRequest) (wire.Empty, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.typed.Write(r.Data)
	if f.reached != nil {
		f.reached(r, f.typed.String())
	}
	return wire.Empty{}, nil
}

// visiting runs `sparkrun exec` with these signals.
func visiting(t *testing.T, f *fakePlace, in io.Reader, signals chan os.Signal, line ...string) (code int, out,
	err string) {
	t.Helper()
	var o, e apptest.SyncBuffer
	b := apptest.Agent(&apptest.FakeRunner{}, f, &apptest.FakeCluster{})
	a := &app.App{
		In: in, Out: &o, Err: &e, Environ: []string{"TERM=vt220"}, Dial: func() *wire.Client { return b },
		Signals: func() (<-chan os.Signal, func()) { return signals, func() {} },
	}
	code = execute(t.Context(), a, append([]string{"exec"}, line...))
	return code, o.String(), e.String()
}

// says is a command that writes and ends.
func says(exit launcher.Exit, chunks ...wire.ExecChunk) func(context.Context, wire.ExecRequest,
	func(wire.ExecChunk) error) error {
	return func(_ context.Context, _ wire.ExecRequest, fn func(wire.ExecChunk) error) error {
		all := slices.Concat([]wire.ExecChunk{{Began: "job2345678"}}, chunks, []wire.ExecChunk{{Exit: &exit}})
		if exit.Error != "" {
			all = all[len(all)-1:]
		}
		for _, c := range all {
			if err := fn(c); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestExecExitCodes(t *testing.T) {
	for name, tc := range map[string]struct {
		exec func(context.Context, wire.ExecRequest, func(wire.ExecChunk) error) error
		code int
		err  string
	}{
		"its own":        {says(launcher.Exit{Code: 3}), 3, ""},
		"a signal":       {says(launcher.Exit{Signal: 9}), 137, ""},
		"not found":      {says(launcher.Exit{Code: 127, Error: `exec "x": not found`}), 127, `rank 0: exec "x": not found`},
		"not executable": {says(launcher.Exit{Code: 126, Error: `exec "x": permission denied`}), 126, "permission denied"},
		"refused": {func(context.Context, wire.ExecRequest, func(wire.ExecChunk) error) error { return wire.ErrDenied },
			125, "not allowed"},
		"broken off": {func(_ context.Context, _ wire.ExecRequest, fn func(wire.ExecChunk) error) error {
			return errors.Join(fn(wire.ExecChunk{Began: "job2345678"}), wire.ErrUnreachable)
		}, 125, "the command is ended: does not answer"},
		"the reader has gone": {func(context.Context, wire.ExecRequest, func(wire.ExecChunk) error) error {
			return fmt.Errorf("%w: %w", follow.ErrOutput, syscall.EPIPE)
		}, 141, ""},
	} {
		code, _, err := visiting(t, &fakePlace{exec: tc.exec}, strings.NewReader(""), nil, "train", "--", "x")
		if code != tc.code || !strings.Contains(err, tc.err) || tc.err == "" && err != "" {
			t.Errorf("%s: code %d, want %d, stderr %q", name, code, tc.code, err)
		}
	}
}

// Bytes come as they are, each on its stream; input goes only where it was
// asked for, to the job that answered.
func TestExecStreams(t *testing.T) {
	for _, flags := range [][]string{nil, {"-i"}} {
		f := &fakePlace{}
		fed := make(chan struct{})
		f.reached = func(r wire.ExecReachRequest, _ string) {
			if r.Job != "job2345678" || r.Rank != 2 {
				t.Errorf("reached %+v", r)
			}
			if r.End {
				close(fed)
			}
		}
		var asked wire.ExecRequest
		f.exec = func(ctx context.Context, r wire.ExecRequest, fn func(wire.ExecChunk) error) error {
			asked = r
			if err := fn(wire.ExecChunk{Began: "job2345678"}); err != nil {
				return err
			}
			if r.Stdin {
				<-fed
			}
			return says(launcher.Exit{}, wire.ExecChunk{Stream: wire.Stdout, Data: []byte("a\x00")},
				wire.ExecChunk{Stream: wire.Stderr, Data: []byte("b")})(ctx, r, func(c wire.ExecChunk) error {
				if c.Began != "" {
					return nil
				}
				return fn(c)
			})
		}
		code, o, e := visiting(t, f, strings.NewReader("typed"), nil,
			append(flags, "train", "--rank", "2", "--", "sh", "-c", "x --rank 1")...)
		if code != 0 || o != "a\x00" || e != "b" {
			t.Errorf("%v: code %d, stdout %q, stderr %q", flags, code, o, e)
		}
		want := ""
		if flags != nil {
			want = "typed"
		}
		if f.typed.String() != want || asked.Job != "train" || asked.Rank != 2 || asked.Session == "" ||
			!slices.Equal(asked.Argv, []string{"sh", "-c", "x --rank 1"}) {
			t.Errorf("%v: typed %q, asked %+v", flags, f.typed.String(), asked)
		}
	}
}

// Signals go to the command; the third Ctrl-C leaves it, and so does a hang-up.
func TestExecSignals(t *testing.T) {
	for name, tc := range map[string]struct {
		send []os.Signal
		want []int
		code int
	}{
		"passed on":     {[]os.Signal{syscall.SIGUSR1, os.Interrupt}, []int{2, 10}, 4},
		"not listening": {[]os.Signal{os.Interrupt, os.Interrupt, os.Interrupt}, []int{2, 2}, 130},
		"hung up":       {[]os.Signal{syscall.SIGHUP}, nil, 129},
	} {
		signals := make(chan os.Signal, 3)
		var got []int
		heard := make(chan struct{}, 3)
		f := &fakePlace{reached: func(r wire.ExecReachRequest, _ string) { got = append(got, r.Signal); heard <- struct{}{} }}
		f.exec = func(ctx context.Context, _ wire.ExecRequest, fn func(wire.ExecChunk) error) error {
			if err := fn(wire.ExecChunk{Began: "job2345678"}); err != nil {
				return err
			}
			for i, sig := range tc.send {
				signals <- sig
				if i < len(tc.want) {
					<-heard
				}
			}
			if tc.code == 4 {
				return fn(wire.ExecChunk{Exit: &launcher.Exit{Code: 4}})
			}
			<-ctx.Done() // what ends the command
			return ctx.Err()
		}
		code, _, e := visiting(t, f, strings.NewReader(""), signals, "train", "--", "x")
		f.mu.Lock()
		slices.Sort(got)
		if code != tc.code || !slices.Equal(got, tc.want) || e != "" {
			t.Errorf("%s: code %d, signals %v, stderr %q", name, code, got, e)
		}
		f.mu.Unlock()
	}
}

// Every key goes to the command's terminal, which has the size and the name of
// ours, and ours is as before in the end.
func TestExecTTY(t *testing.T) {
	keyboard, screen := apptest.PTY(t)
	done := make(chan struct{})
	end := sync.OnceFunc(func() { close(done) })
	f := &fakePlace{}
	f.reached = func(r wire.ExecReachRequest, typed string) {
		switch {
		case r.Window != nil:
			if !apptest.IsRaw(t, screen) {
				t.Error("the terminal is not raw")
			}
			if _, err := io.WriteString(keyboard, "a\x03\x10\x11b"); err != nil {
				t.Error(err)
			}
		case strings.HasSuffix(typed, "b"):
			end()
		}
	}
	var asked wire.ExecRequest
	f.exec = func(_ context.Context, r wire.ExecRequest, fn func(wire.ExecChunk) error) error {
		asked = r
		if err := fn(wire.ExecChunk{Began: "job2345678"}); err != nil {
			return err
		}
		<-done
		return fn(wire.ExecChunk{Exit: &launcher.Exit{Code: 5}})
	}
	code, _, e := visiting(t, f, screen, nil, "-t", "train", "--", "sh")
	if apptest.IsRaw(t, screen) {
		t.Error("the terminal was left raw")
	}
	if code != 5 || f.typed.String() != "a\x03\x10\x11b" || asked.TTY == nil ||
		*asked.TTY != (launcher.Window{Rows: 40, Cols: 120}) || !slices.Equal(asked.Env, []string{"TERM=vt220"}) {
		t.Errorf("code %d, stderr %q, typed %q, asked %+v", code, e, f.typed.String(), asked)
	}
}

func TestExecRefused(t *testing.T) {
	for line, want := range map[string]string{
		"-- true":                 "the job is missing",
		"train":                   "the command is missing: sparkrun exec train -- COMMAND",
		"train --":                "the command is missing",
		"train --rank -1 -- true": "--rank -1: want 0 or more",
		"train -- \xff":           "it is not UTF-8",
		"-t train -- sh":          "the input device is not a TTY: --stdin",
	} {
		f := &fakePlace{exec: func(context.Context, wire.ExecRequest, func(wire.ExecChunk) error) error {
			t.Errorf("%s: was asked for", line)
			return nil
		}}
		if code, _, err := visiting(t, f, strings.NewReader(""), nil, strings.Split(line, " ")...); code != 125 ||
			!strings.Contains(err, want) {
			t.Errorf("%s: %d, %q", line, code, err)
		}
	}
}
