package main

import "fmt"

// Exit codes of commands other than launch, attach and exec. Those give the
// codes of what they run, and launcher.ExitOwnFailure for everything that is sparkrun's own, so
// that the two cannot be mistaken for each other.
const (
	exitFailure = 1
	exitUsage   = 2
)

// exitError carries an exit code. With no err everything has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exits wraps a code that is to be the process's; 0 is no error.
func exits(code int, err error) error {
	if code == 0 && err == nil {
		return nil
	}
	return &exitError{code, err}
}

// usageError is a command line that makes no sense.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }
