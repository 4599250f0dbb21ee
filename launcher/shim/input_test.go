package shim

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

func (b *bench) shWithInput(rank int, script string) Rank {
	r := b.sh(rank, script)
	r.Stdin = true
	return r
}

func TestInput(t *testing.T) {
	b := spawn(t)
	b.start(b.shWithInput(0, "cat; say whole; exec sleep 1000"), b.sh(1, "cat; say empty; exec sleep 1000"))
	must(t, b.c.Input(b.ctx, 0, 0, []byte("hello \x00\xff"), false))
	must(t, b.c.Input(b.ctx, 0, 0, []byte("hello \x00\xffagain"), false)) // asked again: what is new is written
	if err := b.c.Input(b.ctx, 0, 99, []byte("x"), false); !errors.Is(err, ErrRefused) {
		t.Errorf("input with a hole before it: %v", err)
	}
	must(t, b.c.Input(b.ctx, 0, 13, nil, true))
	must(t, b.c.Input(b.ctx, 0, 8, []byte("again"), true))
	heard := []string{b.hear(), b.hear()}
	slices.Sort(heard)
	if want := []string{"empty", "whole"}; !slices.Equal(heard, want) { // who has no input reads an empty one
		t.Errorf("heard %q, want %q", heard, want)
	}
	if err := b.c.Input(b.ctx, 1, 0, []byte("x"), false); !errors.Is(err, ErrRefused) {
		t.Errorf("input of a rank without: %v", err)
	}
	must(t, b.c.End(b.ctx, 0))
	b.events()
	if got := b.log(0, "out"); got != "hello \x00\xffagain" {
		t.Errorf("it read %q", got)
	}
	if err := b.c.Input(b.ctx, 0, 13, []byte("x"), false); !errors.Is(err, ErrNoRank) {
		t.Errorf("input after the exit: %v", err)
	}
}

// A rank that doesn't read holds up nobody but who writes to it, and its end
// ends that too.
func TestInputThatNobodyReads(t *testing.T) {
	b := spawn(t)
	b.start(b.shWithInput(0, "say up; while :; do sleep 1000; done"))
	b.hear()
	written := make(chan error, 1)
	go func() { written <- b.c.Input(b.ctx, 0, 0, make([]byte, 1<<20), false) }()
	must(t, b.c.Signal(b.ctx, 0, unix.SIGCONT))
	must(t, b.c.End(b.ctx, 0))
	if err := <-written; !errors.Is(err, ErrNoRank) {
		t.Errorf("Input: %v", err)
	}
	b.events()
	b.noneAlive()
}

func TestTerminal(t *testing.T) {
	b := spawn(t)
	r := b.sh(0, `tty > /dev/null && stty size; say up; read line; stty size; echo "got $line"; say read; read line || echo bye >&2; exit 3`)
	r.TTY = &launcher.Window{Rows: 33, Cols: 101}
	b.start(r)
	b.hear()
	must(t, b.c.Resize(b.ctx, 0, launcher.Window{Rows: 20, Cols: 70}))
	must(t, b.c.Input(b.ctx, 0, 0, []byte("one\n"), false))
	b.hear()
	must(t, b.c.Input(b.ctx, 0, 4, nil, true))
	if e := exits(b.events())[0]; e.Code != 3 {
		t.Errorf("exit %s", e)
	}
	got := strings.ReplaceAll(b.log(0, "out"), "\r\n", "\n")
	for _, want := range []string{"33 101\n", "20 70\n", "got one\n", "bye\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if got := b.log(0, "err"); got != "" {
		t.Errorf("beside the terminal: %q", got)
	}
	b.noneAlive()
}

func TestCtrlCInATerminal(t *testing.T) {
	b := spawn(t)
	r := b.sh(0, "say up; exec sleep 1000")
	r.TTY = &launcher.Window{Rows: 24, Cols: 80}
	b.start(r)
	b.hear()
	must(t, b.c.Input(b.ctx, 0, 0, []byte{3}, false))
	if e := exits(b.events())[0]; e.Signal != int(unix.SIGINT) || e.ByUs {
		t.Errorf("exit %+v", e)
	}
}

func TestResizeWithoutTerminal(t *testing.T) {
	b := spawn(t)
	b.start(b.shWithInput(0, "cat"))
	if err := b.c.Resize(b.ctx, 0, launcher.Window{Rows: 1, Cols: 1}); !errors.Is(err, ErrRefused) {
		t.Errorf("Resize: %v", err)
	}
	must(t, b.c.Input(b.ctx, 0, 0, nil, true))
	b.events()
}

// BenchmarkInput is the way of standard input, 32 KiB a call.
func BenchmarkInput(b *testing.B) {
	t := spawn(b)
	t.start(t.shWithInput(0, "exec cat > /dev/null"))
	data := bytes.Repeat([]byte("x"), 32<<10)
	b.SetBytes(int64(len(data)))
	at := int64(0)
	for b.Loop() {
		must(b, t.c.Input(context.Background(), 0, at, data, false))
		at += int64(len(data))
	}
	must(b, t.c.End(t.ctx, 0))
	t.events()
}
