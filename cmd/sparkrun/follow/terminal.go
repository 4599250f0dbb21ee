package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Terminal is the caller's terminal; while it is raw, every key goes to a rank.
type Terminal struct {
	fd int

	mu     sync.Mutex
	cooked *term.State // the state to restore; nil: it is not raw
}

// ErrNoTerminal has docker's words.
var ErrNoTerminal = errors.New("the input device is not a TTY")

// TerminalOf fails where the input is no terminal.
func TerminalOf(in io.Reader) (*Terminal, error) {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, ErrNoTerminal
	}
	return &Terminal{fd: int(f.Fd())}, nil
}

// Window is the terminal's size; 80 by 24 where that is not known.
func (t *Terminal) Window() launcher.Window {
	if t == nil {
		return launcher.Window{Rows: 24, Cols: 80}
	}
	cols, rows, err := term.GetSize(t.fd)
	if err != nil || cols <= 0 || rows <= 0 {
		return launcher.Window{Rows: 24, Cols: 80}
	}
	return launcher.Window{Rows: uint16(rows), Cols: uint16(cols)} // struct winsize has 16 bits for each
}

// InForeground wraps an input so that a terminal is read only while we are in its
// foreground. The kernel stops any other reader with SIGTTIN (termios(3)), and a launch
// in the background must continue.
func InForeground(in io.Reader) io.Reader {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return in
	}
	return &foreground{f, int(f.Fd())}
}

type foreground struct {
	f  *os.File
	fd int // of f: f may be closed during a read, and must not be used then
}

// backgroundPause is the interval at which we check whether we are in the foreground
// again, since no event says so.
const backgroundPause = 250 * time.Millisecond

func (r *foreground) Read(b []byte) (int, error) {
	for {
		// Polling stops nobody. A line that arrives while another process is in the
		// foreground is for that process.
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, -1)
		if err != nil && err != unix.EINTR {
			return 0, fmt.Errorf("read the terminal: %w", err)
		}
		group, gerr := unix.IoctlGetInt(r.fd, unix.TIOCGPGRP)
		if err == nil && (gerr != nil || group == unix.Getpgrp()) { // an error: it is not our controlling terminal
			return r.f.Read(b)
		}
		time.Sleep(backgroundPause)
	}
}

// Raw makes the terminal pass on each key as it is typed, until Restore.
func (t *Terminal) Raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cooked != nil {
		return nil
	}
	st, err := term.MakeRaw(t.fd)
	if err != nil {
		return fmt.Errorf("make the terminal raw: %w", err)
	}
	t.cooked = st
	return nil
}

// Restore may be called at any time, also repeatedly.
func (t *Terminal) Restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cooked != nil {
		_ = term.Restore(t.fd, t.cooked) // a terminal that has gone needs no restoring
		t.cooked = nil
	}
}

// stopped runs stop, which stops this process, with the terminal restored for the shell.
func (t *Terminal) stopped(stop func()) {
	t.mu.Lock()
	was := t.cooked != nil
	t.mu.Unlock()
	t.Restore()
	stop()
	if was {
		_ = t.Raw()
	}
}

// Resizes keeps a rank's terminal at the size of ours until ctx ends.
func (t *Terminal) Resizes(ctx context.Context, to Input, r wire.InputRequest, say func(string)) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	defer signal.Stop(changed)
	for {
		w := t.Window()
		r.Window = &w
		err := send(ctx, func() error { return to(ctx, r) })
		switch {
		case ctx.Err() != nil, errors.Is(err, wire.ErrNoReader):
			return
		case err != nil:
			say(fmt.Sprintf("the rank's terminal keeps its size: %v", err))
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// RawLines makes our own lines begin at the left margin of a raw terminal.
type RawLines struct{ To io.Writer }

func (w RawLines) Write(b []byte) (int, error) {
	if _, err := w.To.Write(bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(b), nil
}
