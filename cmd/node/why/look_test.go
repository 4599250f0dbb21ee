package why

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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

// Many small programs take a rank's processor as one large one does.
func TestBusyPrograms(t *testing.T) {
	var all []proc.Stat
	root, before := t.TempDir(), map[int]proc.Work{}
	for pid := 1; pid <= 6; pid++ {
		dir := filepath.Join(root, strconv.Itoa(pid))
		line := fmt.Sprintf("%d (sh) R 0 0 0 0 0 0 0 0 0 0 %d 0 0 0 0 0 0 0 9 0\n", pid, 10*pid)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+"/stat", []byte(line), 0o600),
			os.WriteFile(dir+"/comm", []byte("sh\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		all, before[pid] = append(all, proc.Stat{PID: pid}), proc.Work{}
	}
	got := New(Config{Proc: proc.FS(root)}).busy(all, before, nil, time.Second)
	want := []wire.BusyProgram{{PID: 6, Name: "sh", CPU: 0.6}, {PID: 5, Name: "sh", CPU: 0.5},
		{PID: 4, Name: "sh", CPU: 0.4}, {Name: "3 other programs", CPU: 0.6}}
	if d := cmp.Diff(want, got, cmpopts.EquateApprox(0, 0.001)); d != "" {
		t.Error(d)
	}
}
