package follow

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// View is one picture of something that changes.
type View struct {
	Text string
	// Key is what of it counts as a change where there is no terminal: figures change with each look.
	Key string
}

// watchEvery is how often what is watched is looked at, beside each time that something says that it has changed.
const watchEvery = time.Second

// Watch looks again and again, until Ctrl-C, or q on a terminal. A terminal shows the newest view, and keeps the last
// one; elsewhere each change is a block of lines. The first look has to succeed; later a view stands until there is
// another.
func Watch(ctx context.Context, a *app.App, changed <-chan struct{}, look func(context.Context) (View, error)) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	show, end := blocks(a)
	if OnScreen(a) {
		show, end = screen(ctx, a, quit)
	}
	defer end()
	outage := app.Outage{Say: a.Say}
	var last View
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		v, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is the normal end of a watch
		case err != nil && (first || !app.Passing(err)):
			return err
		case err != nil && OnScreen(a):
			v = last
			v.Text += fmt.Sprintf("\nthe view is cut off (%v); waiting for it\n", err)
		case err != nil:
			outage.Failed(fmt.Sprintf("the view is cut off (%v); waiting for it", err))
			v = last
		default:
			outage.Over()
			last = v
		}
		if err := show(v); err != nil {
			return fmt.Errorf("%w: %w", ErrOutput, err)
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// OnScreen tells whether what is watched is drawn in place.
func OnScreen(a *app.App) bool {
	kind, _ := a.Getenv("TERM")
	return a.OutTTY && kind != "dumb"
}

// blocks shows each view whose key is another than that of the one before.
func blocks(a *app.App) (show func(View) error, end func()) {
	var last *View
	return func(v View) error {
		text := v.Text
		switch {
		case last != nil && last.Key == v.Key:
			return nil
		case last != nil:
			text = "\n" + text
		}
		last = &v
		_, err := io.WriteString(a.Out, text)
		return err
	}, func() {}
}

const (
	// The other screen of a terminal has no history that a redrawn view would fill.
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	endOfLine   = "\x1b[K"
	endOfScreen = "\x1b[J"
)

// screen draws each view over the one before: only what is another changes, so nothing flickers.
func screen(ctx context.Context, a *app.App, quit func()) (show func(View) error, end func()) {
	var read sync.WaitGroup
	t, err := TerminalOf(a.In)
	if err == nil && t.Raw() == nil {
		read.Go(func() { awaitQuit(ctx, t.fd, quit) })
	}
	io.WriteString(a.Out, enterScreen) //nolint:errcheck // the first view meets the same error
	last := ""
	return func(v View) error {
			last = plain.Text(v.Text)
			_, err := io.WriteString(a.Out, home+strings.Join(fitted(a, last), endOfLine+"\r\n")+endOfLine+endOfScreen)
			return err
		}, func() {
			quit()
			read.Wait()
			if t != nil {
				t.Restore()
			}
			io.WriteString(a.Out, leaveScreen+last) //nolint:errcheck // nobody reads it any more
		}
}

// fitted are a text's lines as the terminal has room for: a line that wraps would move those below it.
func fitted(a *app.App, text string) []string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if high := a.Height(); high > 1 && len(lines) > high {
		lines = append(lines[:high-1], fmt.Sprintf("... and %d more lines", len(lines)-high+1))
	}
	wide := a.Columns()
	for i, line := range lines {
		if r := []rune(line); len(r) > wide {
			lines[i] = string(r[:wide])
		}
	}
	return lines
}

// awaitQuit ends the view with q, or with Ctrl-C, which a raw terminal passes on as a key.
func awaitQuit(ctx context.Context, fd int, quit func()) {
	const ctrlC = "\x03"
	const patience = 250 // ms, after which it looks whether the view has ended
	var keys [64]byte
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patience)
		if n == 0 || err == unix.EINTR {
			continue
		}
		if err == nil {
			n, err = unix.Read(fd, keys[:])
		}
		if err != nil || n == 0 || strings.ContainsAny(string(keys[:n]), "qQ"+ctrlC) {
			quit()
			return
		}
	}
}
