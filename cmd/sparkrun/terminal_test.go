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
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// pty gives both ends of a pseudo-terminal of 40 rows and 120 columns.
func pty(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyboard.Close() })
	fd := int(keyboard.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120})
	}
	if err == nil {
		screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	return keyboard, screen
}

func isRaw(t *testing.T, f *os.File) bool {
	t.Helper()
	st, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return st.Lflag&unix.ICANON == 0
}

// typist is a rank at whose terminal somebody types.
type typist struct {
	mu      sync.Mutex
	typed   strings.Builder
	windows []launcher.Window
	heard   func(r wire.InputRequest, typed string)
}

func (f *typist) Input(_ context.Context, r wire.InputRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Window != nil {
		f.windows = append(f.windows, *r.Window)
	}
	f.typed.Write(r.Data)
	f.heard(r, f.typed.String())
	return nil
}

func (f *typist) Signal(context.Context, wire.SignalRequest) error { return nil }

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
			keyboard, screen := pty(t)
			over := make(chan struct{})
			end := sync.OnceFunc(func() { close(over) })
			rank := &typist{}
			rank.heard = func(r wire.InputRequest, typed string) {
				switch {
				case len(rank.windows) == 1 && r.Window != nil:
					if !isRaw(t, screen) {
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
			g := &fakeGangs{launch: func(ctx context.Context, _ int, tell func(rendezvous.Progress) error) error {
				if err := tellAll(tell, planned(3), started("a"), runs); err != nil {
					return err
				}
				select {
				case <-over:
					return tellAll(tell, ended(failed7))
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
			var spec launcher.Spec
			var read wire.LogsRequest
			g.logs = func(_ context.Context, _ int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
				read = r
				return fn(out(0, 0, "a\r\n"))
			}
			var o, e syncBuffer
			b := &backend{gangs: spying{g, &spec}, ranks: rank, cluster: &fakeCluster{}, close: func() {}}
			a := &app{
				in: screen, out: &o, err: &e, errTTY: true, environ: []string{"TERM=vt220"}, getwd: func() (string, error) { return "/", nil },
				dial: func() *backend { return b }, signals: func() (<-chan os.Signal, func()) { return nil, func() {} },
			}
			code := a.run(t.Context(), []string{"launch", "-t", "exec", "--nodes", "3", "--", "sh"})
			if isRaw(t, screen) {
				t.Error("the terminal was left raw")
			}
			typed, wantCode := "a\x03", 0
			if tc.says == "" {
				typed, wantCode = "a\x03\x10b", 7
			}
			if code != wantCode || rank.typed.String() != typed || !strings.Contains(e.String(), tc.says) || o.String() != "a\r\n" {
				t.Errorf("code %d, typed %q, stdout %q, stderr %q", code, rank.typed.String(), o.String(), e.String())
			}
			if want := []launcher.Window{{Rows: 40, Cols: 120}, {Rows: 50, Cols: 100}}; !slices.Equal(rank.windows[:2], want) {
				t.Errorf("windows %v", rank.windows)
			}
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

// A shell that stops us finds its terminal as it was, and we ours afterwards.
func TestStoppedTerminal(t *testing.T) {
	_, screen := pty(t)
	tty, err := terminalOf(screen)
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []bool{false, true} {
		if raw {
			if err := tty.raw(); err != nil {
				t.Fatal(err)
			}
		}
		tty.stopped(func() {
			if isRaw(t, screen) {
				t.Error("raw while stopped")
			}
		})
		if isRaw(t, screen) != raw {
			t.Errorf("raw afterwards: %v, want %v", !raw, raw)
		}
	}
	tty.restore()
	tty.restore()
	if isRaw(t, screen) {
		t.Error("raw in the end")
	}
}

func TestTTYRefused(t *testing.T) {
	b := &backend{gangs: &fakeGangs{}, cluster: &fakeCluster{}}
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

// Whatever is not the whole of the keys arrives, in whichever pieces it comes.
func TestDetachKeys(t *testing.T) {
	for _, tc := range []struct {
		keys, typed, want string
		left              bool
	}{
		{"ctrl-p,ctrl-q", "ab\x10\x11c", "ab", true},
		{"ctrl-p,ctrl-q", "a\x10b\x11", "a\x10b\x11", false},
		{"ctrl-p,ctrl-q", "\x10\x10\x11", "\x10", true},
		{"ctrl-p,ctrl-q", "a\x10", "a\x10", false},
		{"a,a,b", "aaaab", "aa", true},
		{"a,b,a,c", "ababac", "ab", true},
		{"ctrl-]", "x\x1dy", "x", true},
		{"", "x\x10\x11", "x\x10\x11", false},
	} {
		var keys detachKeys
		if err := keys.Set(tc.keys); err != nil || keys.String() != tc.keys {
			t.Fatalf("%q: %q, %v", tc.keys, keys.String(), err)
		}
		for name, in := range map[string]io.Reader{"at once": strings.NewReader(tc.typed), "one by one": iotest.OneByteReader(strings.NewReader(tc.typed))} {
			got, err := io.ReadAll(&keyReader{in: in, keys: keys.orDefault()})
			if string(got) != tc.want || errors.Is(err, errDetached) != tc.left {
				t.Errorf("%s of %q, %s: %q, %v", tc.typed, tc.keys, name, got, err)
			}
		}
	}
}

// What is asked for secretly is not shown to the quickest either: the terminal is silent before the prompt, and as before after it.
func TestSecretIsNeverShown(t *testing.T) {
	keyboard, screen := pty(t)
	echoes := func() bool {
		m, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return m.Lflag&unix.ECHO != 0
	}
	asked := false
	a := &app{in: screen, err: writerFunc(func(p []byte) (int, error) {
		if !asked {
			asked = true
			if echoes() {
				t.Error("the terminal shows what is typed when the prompt comes")
			}
			if _, err := keyboard.WriteString("open sesame\n"); err != nil {
				t.Error(err)
			}
		}
		return len(p), nil
	})}
	if text, err := a.askSecret(t.Context(), "token: "); err != nil || string(text) != "open sesame" {
		t.Errorf("%q, %v", text, err)
	}
	if !asked || !echoes() {
		t.Errorf("asked %v, and the terminal shows what is typed: %v", asked, echoes())
	}
}
