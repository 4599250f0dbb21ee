package proc

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLockHolder(t *testing.T) {
	const text = `1: FLOCK  ADVISORY  WRITE 4711 fd:00:1234 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4712 fd:00:1234 0 EOF
1:    -> FLOCK  ADVISORY  WRITE 4713 fd:00:1234 0 EOF
2: POSIX  ADVISORY  WRITE 4800 fd:00:1235 0 EOF
2: -> POSIX  ADVISORY  WRITE 4712 fd:00:1235 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fd:00:99 0 EOF
`
	for waits, want := range map[[2]int]int{{4712, 1234}: 4711, {4713, 1234}: 4711,
		{4712, 1235}: 4800, {4711, 1234}: 0, {4712, 99}: 0} {
		if got := lockHolder(text, waits[0], uint64(waits[1])); got != want { //nolint:gosec // it is none below 0
			t.Errorf("%v waits for %d, want %d", waits, got, want)
		}
	}
}

func TestExitCode(t *testing.T) {
	child := exec.CommandContext(t.Context(), "sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	child.Process.Kill() //nolint:errcheck // it is seen
	if err := unix.Waitid(unix.P_PID, child.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if got, known := Here.ExitCode(child.Process.Pid); !known || unix.WaitStatus(got).Signal() != unix.SIGKILL {
		t.Errorf("%d, %v", got, known)
	}
	_ = child.Wait()
	if _, known := Here.ExitCode(child.Process.Pid); known {
		t.Error("a process that is gone has an exit code")
	}
}
