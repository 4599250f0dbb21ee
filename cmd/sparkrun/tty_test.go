package main

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Keys go to the rank as they are typed, Ctrl-C too, its terminal has the size
// of ours and follows it, and ours is as before whichever way launch ends.
func TestLaunchTTY(t *testing.T) {
	for name, tc := range map[string]struct {
		keys string
		says string
	}{
		"the rank ends": {keys: "a\x03\x10b", says: ""},
		"detached":      {keys: "a\x03\x10\x11", says: "detached: job "},
	} {
		t.Run(name, func(t *testing.T) {
			keyboard, screen := apptest.PTY(t)
			over := make(chan struct{})
			end := sync.OnceFunc(func() { close(over) })
			rank := &typist{}
			rank.heard = func(r wire.InputRequest, typed string) {
				switch {
				case len(rank.windows) == 1 && r.Window != nil:
					if !apptest.IsRaw(t, screen) {
						t.Error("the terminal is not raw")
					}
					if err := unix.IoctlSetWinsize(int(keyboard.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 100}); err != nil {
						t.Error(err)
					}
					if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
						t.Error(err)
					}
				case len(rank.windows) == 2 && r.Window != nil:
					if _, err := io.WriteString(keyboard, tc.keys); err != nil {
						t.Error(err)
					}
				case strings.HasSuffix(typed, "b"):
					end()
				}
			}
			g := &apptest.FakeRunner{OnLaunch: func(ctx context.Context, _ int, tell func(rendezvous.Progress) error) error {
				if err := apptest.TellAll(tell, apptest.Planned(3), apptest.Started("a"), apptest.Runs); err != nil {
					return err
				}
				select {
				case <-over:
					return apptest.TellAll(tell, apptest.Ended(apptest.Failed7))
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
			g.Ranks = rank
			var read wire.LogsRequest
			g.OnLogs = func(_ context.Context, _ int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
				read = r
				return fn(apptest.Out(0, 0, "a\r\n"))
			}
			var o, e apptest.SyncBuffer
			b := apptest.Agent(g, &apptest.FakeCluster{})
			a := &app.App{
				In: screen, Out: &o, Err: &e, ErrTTY: true, Environ: []string{"TERM=vt220"},
				Getwd:   func() (string, error) { return "/", nil },
				Dial:    func() *wire.Client { return b },
				Signals: func() (<-chan os.Signal, func()) { return nil, func() {} },
			}
			code := execute(t.Context(), a, []string{"launch", "-t", "exec", "--nodes", "3", "--", "sh"})
			if apptest.IsRaw(t, screen) {
				t.Error("the terminal was left raw")
			}
			typed, wantCode := "a\x03", 0
			if tc.says == "" {
				typed, wantCode = "a\x03\x10b", 7
			}
			if code != wantCode || rank.typed.String() != typed || !strings.Contains(e.String(), tc.says) ||
				o.String() != "a\r\n" {
				t.Errorf("code %d, typed %q, stdout %q, stderr %q", code, rank.typed.String(), o.String(), e.String())
			}
			if want := []launcher.Window{{Rows: 40, Cols: 120}, {Rows: 50, Cols: 100}}; !slices.Equal(rank.windows[:2], want) {
				t.Errorf("windows %v", rank.windows)
			}
			spec := g.Spec()
			if st := spec.MainStage(); st.Stdin != "0" || *st.TTY != (launcher.Window{Rows: 40, Cols: 120}) ||
				!slices.ContainsFunc(st.Env, func(v launcher.Var) bool { return v.Name == "TERM" && v.Value.String() == "vt220" }) {
				t.Errorf("sent %+v", st)
			}
			if !slices.Equal(read.Ranks, []int{0}) {
				t.Errorf("read output of %v", read.Ranks)
			}
		})
	}
}

func TestTTYRefused(t *testing.T) {
	b := apptest.Agent(&apptest.FakeRunner{}, &apptest.FakeCluster{})
	for line, want := range map[string]string{
		"launch -t exec -- sh":                "the input device is not a TTY",
		"launch -d --stdin 0 exec -- sh":      "nobody stays to read it; --tty",
		"launch -t --json exec -- sh":         "a terminal's output is raw",
		"launch --detach-keys up exec -- sh":  "want keys such as ctrl-p,ctrl-q",
		"launch --detach-keys a,,b exec -- x": "want keys such as ctrl-p,ctrl-q",
	} {
		if code, _, err := cli(t, b, strings.Fields(line)...); code != 125 || !strings.Contains(err, want) {
			t.Errorf("%s: %d, %q", line, code, err)
		}
	}
}

// typist is a rank at whose terminal somebody types.
type typist struct {
	mu      sync.Mutex
	typed   strings.Builder
	windows []launcher.Window
	heard   func(r wire.InputRequest, typed string)
}

func (f *typist) Calls() []wire.Call {
	return apptest.RankCalls(f.input, func(context.Context, wire.SignalRequest) error { return nil })
}

func (f *typist) input(_ context.Context, r wire.InputRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Window != nil {
		f.windows = append(f.windows, *r.Window)
	}
	f.typed.Write(r.Data)
	f.heard(r, f.typed.String())
	return nil
}
