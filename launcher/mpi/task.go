package mpi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// Some programs that mpirun starts have rank 0 start another one in its background, and wait for
// their peers rather than for that: TensorRT-LLM's trtllm-llmapi-launch does with its server, whose
// end nobody would see (DESIGN.md). Such a command line has TaskCommand in that one's
// place: its arguments come by head's socket, word by word as they were, and its end goes back.

// TaskCommand is not for people: TaskMain runs for it.
const TaskCommand = "mpi-task"

// taskArgv has o's task run by TaskMain. Its first word is this process's own program: head, which
// outlives mpirun.
func taskArgv(o Options) []string {
	return append(o.Argv[:o.Task:o.Task], fmt.Sprintf("/proc/%d/exe", os.Getpid()), TaskCommand)
}

// order is head's answer to a task's wish.
type order struct {
	Argv []string `json:"argv"`
}

// taskEnd is what a task says once it is ended, or is about to be.
type taskEnd struct {
	Code int    `json:"code"`
	How  string `json:"how"` // in words
	// Asked: somebody has told it to end, as mpirun does to all ranks when one has failed: that one
	// is the cause.
	Asked bool `json:"asked,omitempty"`
	lost  bool // it ended without a word
	ended bool // mpirun was told to end
}

// Times; tests have others.
var (
	// mpirunGrace is how long mpirun may take to end its ranks once it was told to, or has begun to.
	mpirunGrace = 20 * time.Second
	// lostGrace is how long it may take to end by itself when the task is gone without a word: it may
	// have killed that, and Open MPI 4.1 crashes where it is told to end while it does.
	lostGrace = 5 * time.Second
	// whoseWait is how long the end of a task may turn out to be mpirun's doing, or that of a rank
	// which has failed, too: mpirun is told of a rank's end on another machine in milliseconds.
	whoseWait = time.Second
)

// attend tells the task that asks what it is, and waits for its end; nil: mpirun has ended before.
// The task stays until ctx is done, that is, until mpirun has ended: gone before, it would be a
// rank's failure to mpirun.
func attend(ctx context.Context, l net.Listener, argv []string) *taskEnd {
	conn, err := l.Accept()
	if err != nil {
		return nil
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	in := json.NewDecoder(conn)
	var w wish
	var end taskEnd
	if err = in.Decode(&w); err == nil && !w.Task {
		err = fmt.Errorf("a wish for %q, once all daemons were placed", w.Host)
	}
	if err == nil {
		err = json.NewEncoder(conn).Encode(order{argv})
	}
	if err == nil {
		err = in.Decode(&end)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		conn.Close()
		return &taskEnd{Code: 128 + int(syscall.SIGKILL), How: "ended without a word: " + err.Error(), lost: true}
	}
	return &end
}

// endsAll ends mpirun after its task, unless ctx is done: then it has ended.
func (e *taskEnd) endsAll(ctx context.Context, mpirun *os.Process, name string) {
	if e == nil {
		return
	}
	var grace time.Duration
	switch {
	case e.Asked:
		grace = mpirunGrace
		e.How = "was told to end, and not by mpirun"
	case e.lost:
		grace = lostGrace
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(grace):
	}
	e.ended = true
	fmt.Fprintf(os.Stderr, "sparkrun: %s %s\n", name, e.How)
	_ = mpirun.Signal(syscall.SIGTERM)
	time.AfterFunc(mpirunGrace, func() { _ = mpirun.Kill() }) // Go knows whether it still is
}

// code is the job's, of which mpirun's own would be code.
func (e *taskEnd) code(code int) int {
	if e == nil || e.Asked || e.lost && !e.ended && code != 0 {
		return code
	}
	return e.Code
}

// TaskMain is the whole of `sparkrun mpi-task`; it gives the exit code.
func TaskMain() int {
	// Its end would end the child (PR_SET_PDEATHSIG, prctl(2): the parent is a thread).
	runtime.LockOSThread()
	code, err := taskMain()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sparkrun:", err)
	}
	return code
}

func taskMain() (int, error) {
	path := os.Getenv(remoteSocket)
	if path == "" {
		return exitBroken, errors.New("this is a part of an MPI job of sparkrun's, and nothing by itself")
	}
	conn, err := net.Dial("unix", path)
	var o order
	if err == nil {
		err = json.NewEncoder(conn).Encode(wish{Task: true})
	}
	if err == nil {
		err = json.NewDecoder(conn).Decode(&o)
	}
	if err == nil && len(o.Argv) == 0 {
		err = errors.New("no command came")
	}
	if err != nil {
		return exitBroken, fmt.Errorf("ask what to run: %w", err)
	}
	_ = os.Unsetenv(remoteSocket) // it fails for no such name
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // head says nothing more: it has gone, and mpirun with it
		signals <- syscall.SIGTERM
	}()
	end := runTask(o.Argv, signals, func() { _ = json.NewEncoder(conn).Encode(taskEnd{Asked: true}) })
	if end.Asked {
		return end.Code, nil
	}
	if err := json.NewEncoder(conn).Encode(end); err != nil {
		return end.Code, fmt.Errorf("tell that %s %s: %w", o.Argv[0], end.How, err)
	}
	// What started this goes on once it has ended, while mpirun ends that.
	<-signals
	return end.Code, nil
}

// runTask runs a command in a process group of its own: mpirun ends a rank by a signal to its
// group, and were the command in that, its end could be seen before it is known to be asked for.
func runTask(argv []string, signals <-chan os.Signal, asked func()) (end taskEnd) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return taskEnd{Code: exitBroken, How: "cannot be started: " + err.Error()}
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(done)
	}()
	ended, whose := done, (<-chan time.Time)(nil)
	for waits := true; waits; {
		select {
		case s := <-signals:
			if !end.Asked {
				end.Asked = true
				asked()
			}
			_ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal)) // who has left may have left others
			waits = ended != nil
		case <-ended:
			ended, whose = nil, time.After(whoseWait)
			waits = !end.Asked
		case <-whose:
			waits = false
		}
	}
	ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus) // on Linux it is one
	if ws.Signaled() {
		end.Code, end.How = 128+int(ws.Signal()), fmt.Sprintf("was killed by signal %d (%s)", ws.Signal(), ws.Signal())
	} else {
		end.Code, end.How = ws.ExitStatus(), fmt.Sprintf("ended with %d", ws.ExitStatus())
	}
	return end
}
