package why

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// Of a rank's processes the one is looked at that a signal has stopped: the others wait for it.
func TestStoppedProcessIsLookedAt(t *testing.T) {
	child := exec.CommandContext(t.Context(), "sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()                    //nolint:errcheck // it is killed
	defer child.Process.Kill()            //nolint:errcheck // the same
	child.Process.Signal(syscall.SIGSTOP) //nolint:errcheck // it is seen
	pid := child.Process.Pid
	if _, err := syscall.Wait4(pid, nil, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	w, k := New(Config{Proc: proc.Here}), &watched{root: os.Getpid(), pids: []int{os.Getpid(), pid}}
	if got := w.program(k); got != pid {
		t.Errorf("process %d, want %d", got, pid)
	}
	if all := proc.Here.Threads(os.Getpid(), 1); len(all) != 1 || all[0].TID != os.Getpid() {
		t.Errorf("the main thread is not the first: %+v", all)
	}
}
