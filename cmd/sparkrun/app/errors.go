package app

import "fmt"

// Exit codes of commands other than launch, attach and exec. Those give the
// codes of what they run, and launcher.ExitOwnFailure for everything that is sparkrun's own, so
// that the two cannot be mistaken for each other.
const (
	ExitFailure = 1
	ExitUsage   = 2
)

// ExitError carries an exit code. With no err everything has been said.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Exits wraps a code that is to be the process's; 0 is no error.
func Exits(code int, err error) error {
	if code == 0 && err == nil {
		return nil
	}
	return &ExitError{code, err}
}

// UsageError is a command line that makes no sense.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

// Usagef is the error of a command line that makes no sense.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }
