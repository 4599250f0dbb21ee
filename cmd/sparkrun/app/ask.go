package app

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// InTTY tells whether standard input is a terminal, so that a person can be asked.
func (a *App) InTTY() bool {
	f, ok := a.In.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// AskSecret reads a line from the terminal without showing it.
func (a *App) AskSecret(ctx context.Context, prompt string) ([]byte, error) {
	f := a.In.(*os.File) //nolint:forcetypeassert // inTTY was asked
	before, err := term.GetState(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = term.Restore(int(f.Fd()), before) }() // otherwise the shell would not echo afterwards
	if err := silence(int(f.Fd())); err != nil {
		return nil, err
	}
	fmt.Fprint(a.Err, prompt)
	defer fmt.Fprintln(a.Err)
	return answered(ctx, func() ([]byte, error) { return term.ReadPassword(int(f.Fd())) })
}

// silence turns off the terminal's echo before the prompt appears. ReadPassword does so
// only later, and a fast answer, such as a script's, would be shown.
func silence(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Lflag &^= unix.ECHO
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}

// AskLine reads a line from the terminal.
func (a *App) AskLine(ctx context.Context, prompt string) (string, error) {
	fmt.Fprint(a.Err, prompt)
	text, err := answered(ctx, func() ([]byte, error) {
		line := bufio.NewScanner(a.In)
		line.Scan()
		return line.Bytes(), line.Err()
	})
	return string(text), err
}

// answered waits for an answer, or for the end of the command.
func answered(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	type answer struct {
		text []byte
		err  error
	}
	got := make(chan answer, 1)
	go func() { // ends with the line or the process
		text, err := read()
		got <- answer{text, err}
	}()
	select {
	case r := <-got:
		return r.text, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Confirm asks a yes-or-no question on the terminal; to ends the hint "give --yes ...".
func (a *App) Confirm(ctx context.Context, question, to string) error {
	f, ok := a.In.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return Usagef("no terminal to ask on: give --yes %s", to)
	}
	fmt.Fprint(a.Err, question+" [y/N] ")
	answer, err := a.line(ctx)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "y") {
		return fmt.Errorf("nothing was changed")
	}
	return nil
}

// line reads one line of input, unless ctx ends first.
func (a *App) line(ctx context.Context) (string, error) {
	read := make(chan string, 1)
	go func() { // ends with the line or the process
		text, _ := bufio.NewReader(a.In).ReadString('\n')
		read <- text
	}()
	select {
	case text := <-read:
		return text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
