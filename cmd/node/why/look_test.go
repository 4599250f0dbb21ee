package why

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

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
	if got, _ := w.program(k); got != pid {
		t.Errorf("process %d, want %d", got, pid)
	}
	if all := proc.Here.Threads(os.Getpid(), 1); len(all) != 1 || all[0].TID != os.Getpid() {
		t.Errorf("the main thread is not the first: %+v", all)
	}
}

// Who waits for a file's lock is found, and who holds it.
func TestFileLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.lock")
	start := func(args ...string) int {
		c := exec.CommandContext(t.Context(), "flock", append([]string{"--no-fork", file}, args...)...)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		return c.Process.Pid
	}
	holder := start("sleep", "60")
	for proc.Here.Name(holder) != "sleep" {
		runtime.Gosched()
	}
	waits := start("true")
	for proc.Here.LockHolder(waits, inode(t, file)) == 0 {
		runtime.Gosched()
	}
	var got *wire.FileLock
	for w := New(Config{Proc: proc.Here}); got == nil; {
		got = w.fileLock(waits, waits, map[int]proc.Work{holder: {CPU: time.Hour}})
	}
	want := &wire.FileLock{File: file, Holder: wire.BusyProgram{PID: holder, Name: "sleep", CPU: got.Holder.CPU}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A program is stuck that writes to its parent, which waits for it; not one that somebody else could read.
func TestUnreadProgram(t *testing.T) {
	w := New(Config{Proc: proc.Here})
	for script, want := range map[string]bool{
		"p.wait()": true,
		"import threading; threading.Thread(target=time.sleep, args=(600,)).start(); p.wait()":             false,
		"q = subprocess.Popen(['sleep', '600'], stdin=p.stdout); p.stdout.close(); p.wait()":               false,
		"subprocess.Popen(['sleep', '600']).wait()":                                                        false,
		"import threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); p.wait()": true,
	} {
		c := exec.CommandContext(t.Context(), "python3", "-c", "import subprocess, time\n"+
			"p = subprocess.Popen(['yes'], stdout=subprocess.PIPE)\nprint(p.pid, flush=True)\n"+script)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		var yes int
		if _, err := fmt.Fscan(out, &yes); err != nil {
			t.Fatal(err)
		}
		waits := func(pid int, in string) {
			for !strings.Contains(proc.Here.WaitsIn(pid, pid), in) {
				runtime.Gosched()
			}
		}
		waits(yes, "pipe_write")
		waits(c.Process.Pid, "do_wait")
		if got := w.unread(yes, yes, proc.Here.WaitsIn(yes, yes)); got != want {
			t.Errorf("%s: stuck %v, want %v", script, got, want)
		}
		_ = unix.Kill(yes, unix.SIGKILL)
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

func inode(t *testing.T, file string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// A process that has not ended well, and that nobody has waited for, is told of; not one that has.
func TestDeadChildren(t *testing.T) {
	k := &watched{root: os.Getpid(), pids: []int{os.Getpid()}}
	for _, text := range []string{"exit 3", "kill -SEGV $$", "exit 0"} {
		c := exec.CommandContext(t.Context(), "sh", "-c", text)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait() //nolint:errcheck // it has failed
		k.pids = append(k.pids, c.Process.Pid)
		if err := unix.Waitid(unix.P_PID, c.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
	}
	w := New(Config{Proc: proc.Here})
	k.dead = w.dead(k.pids)
	want := []wire.DeadChild{{PID: k.pids[1], Name: "sh", End: "exit 3"}, {PID: k.pids[2], Name: "sh",
		End: "killed by SIGSEGV (11)"}}
	if d := cmp.Diff(want, w.failed(k)); d != "" {
		t.Error(d)
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

// What a process writes to a file is seen, and to which; that it is in memory does not matter.
func TestMoves(t *testing.T) {
	w := New(Config{Proc: proc.Here})
	file := filepath.Join(t.TempDir(), "ckpt")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	was := w.moved([]int{os.Getpid()})
	if _, err := f.Write(make([]byte, 8<<20)); err != nil {
		t.Fatal(err)
	}
	got := w.moved([]int{os.Getpid()}).since(was, 2*time.Second)
	if got.File != file || got.Written < 3<<20 || got.Written > 9<<20 {
		t.Errorf("%+v, want about 4 MiB/s to %s", got, file)
	}
}
