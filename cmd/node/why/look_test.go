package why

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
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

// A name is a job's that runs, then a machine's, then what else FindJob finds.
func TestFind(t *testing.T) {
	job := func(id launcher.JobID, name string, over bool) (j rendezvous.JobStatus) {
		j.Spec = launcher.Spec{ID: id, Name: name, User: "ada"}
		if over {
			j.Outcome = &rendezvous.Outcome{}
		}
		return j
	}
	jobs := wire.JobsResponse{User: "ada", Jobs: []rendezvous.JobStatus{job("n1xxxxxxxx", "train", false),
		job("bbbbbbbbbb", "n2", true), job("cccccccccc", "n3", false)}}
	st := wire.Status{Nodes: []wire.NodeStatus{{Host: "n1"}, {Host: "n2"}, {Host: "n3"}}}
	for text, want := range map[string]string{"n1": "machine n1", "n2": "machine n2", "n3": "job cccccccccc",
		"n1x": "job n1xxxxxxxx", "train": "job n1xxxxxxxx", "n4": ""} {
		got := ""
		switch j, n, _ := find(jobs, st, text); {
		case j != nil:
			got = "job " + string(j.Spec.ID)
		case n != nil:
			got = "machine " + n.Host
		}
		if got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}
