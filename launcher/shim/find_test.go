package shim

import "testing"

// A SIGSTOP that a busy machine has not carried out yet counts as carried out.
func TestStopPending(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tsh\nState:\tR (running)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000040000\nSigBlk:\t0000000000000000\n": true,
		"Name:\tsh\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000040200\n":                                                 true,
		"Name:\tsh\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000020000\n":                                                 false, // SIGCONT
		"Name:\tsh\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000040000\n":                      false,
		"": false,
	} {
		if got := stopPending(status); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
}
