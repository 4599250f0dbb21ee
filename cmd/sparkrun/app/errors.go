package app

import "fmt"

// Exit codes of commands other than launch, attach and exec. Those pass on the codes of
// what they run, and use launcher.ExitOwnFailure for all failures of sparkrun itself, so
// that the two cannot be confused.
const (
	ExitFailure = 1
	ExitUsage   = 2
)

// ExitError carries an exit code. A nil err means that the error has been printed
// already.
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

// Exits wraps err with the process's exit code; 0 is no error.
func Exits(code int, err error) error {
	if code == 0 && err == nil {
		return nil
	}
	return &ExitError{code, err}
}

// UsageError is an error in the command line.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }
