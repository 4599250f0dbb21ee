package proc

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

func TestListening(t *testing.T) {
	text := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:4E21 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
`
	for port, want := range map[int]bool{20000: true, 20001: false, 8080: false} {
		if got := len(Listening(text, port)) > 0; got != want {
			t.Errorf("%d: %t", port, got)
		}
	}
}
