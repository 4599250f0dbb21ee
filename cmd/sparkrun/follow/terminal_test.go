package follow

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
)

// A shell that stops us finds its terminal as it was, and we ours afterwards.
func TestStoppedTerminal(t *testing.T) {
	_, screen := apptest.PTY(t)
	tty, err := TerminalOf(screen)
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []bool{false, true} {
		if raw {
			if err := tty.Raw(); err != nil {
				t.Fatal(err)
			}
		}
		tty.stopped(func() {
			if apptest.IsRaw(t, screen) {
				t.Error("raw while stopped")
			}
		})
		if apptest.IsRaw(t, screen) != raw {
			t.Errorf("raw afterwards: %v, want %v", !raw, raw)
		}
	}
	tty.Restore()
	tty.Restore()
	if apptest.IsRaw(t, screen) {
		t.Error("raw in the end")
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
		var keys DetachKeys
		if err := keys.Set(tc.keys); err != nil || keys.String() != tc.keys {
			t.Fatalf("%q: %q, %v", tc.keys, keys.String(), err)
		}
		for name, in := range map[string]io.Reader{"at once": strings.NewReader(tc.typed),
			"one by one": iotest.OneByteReader(strings.NewReader(tc.typed))} {
			got, err := io.ReadAll(&keyReader{in: in, keys: keys.OrDefault()})
			if string(got) != tc.want || errors.Is(err, errDetached) != tc.left {
				t.Errorf("%s of %q, %s: %q, %v", tc.typed, tc.keys, name, got, err)
			}
		}
	}
}

// What is typed at a terminal that is not ours to stop at comes all the same;
// what is no terminal is read as it is.
func TestInForeground(t *testing.T) {
	in := strings.NewReader("x")
	if got := InForeground(in); got != io.Reader(in) {
		t.Errorf("wrapped: %T", got)
	}
	keyboard, screen := apptest.PTY(t)
	typed := make(chan string, 1)
	go func() {
		b := make([]byte, 10)
		n, err := InForeground(screen).Read(b)
		if err != nil {
			t.Error(err)
		}
		typed <- string(b[:n])
	}()
	if _, err := keyboard.WriteString("hi\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-typed:
		if got != "hi\n" {
			t.Errorf("read %q", got)
		}
	case <-time.After(30 * time.Second):
		t.Error("nothing is read")
	}
}
