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

// Some programs that mpirun starts have rank 0 start another one in its background, and
// wait for their peers rather than for it: TensorRT-LLM's trtllm-llmapi-launch does so with
// its server, whose end nobody would see (DESIGN.md). In such a command line TaskCommand
// replaces that program: its arguments come through head's socket, unchanged, and its exit
// is sent back.

// TaskCommand is not for people; TaskMain runs it.
const TaskCommand = "mpi-task"

// taskArgv makes TaskMain run o's task. Its first word is this process's own program: that
// of head, which outlives mpirun.
func taskArgv(o Options) []string {
	return append(o.Argv[:o.Task:o.Task], fmt.Sprintf("/proc/%d/exe", os.Getpid()), TaskCommand)
}

// order is head's answer to a task's question.
type order struct {
	Argv []string `json:"argv"`
}

// taskEnd is what a task sends once it has ended, or is about to.
type taskEnd struct {
	Code int    `json:"code"`
	How  string `json:"how"` // in words
	// Asked: it was told to end, as mpirun tells all ranks when one has failed: that one is
	// the cause.
	Asked bool `json:"asked,omitempty"`
	lost  bool // it ended without a message
	ended bool // mpirun was told to end
}

// Time-outs, which tests change.
var (
	// mpirunGrace is how long mpirun may take to end its ranks once it was told to, or has
	// begun to.
	mpirunGrace = 20 * time.Second
	// lostGrace is how long it may take to end by itself when the task is gone without a
	// message: mpirun may have killed the task, and Open MPI 4.1 crashes if it is told to
	// end while it does.
	lostGrace = 5 * time.Second
	// whoseWait is how long it may take until it shows that a task ended because of mpirun,
	// or of a rank that failed: mpirun learns of a rank's end on another machine within
	// milliseconds.
	whoseWait = time.Second
)

// attend tells a task that asks what to run, and waits for its end; nil: mpirun has ended
// before. The task stays until ctx is done, that is, until mpirun has ended: if it went
// before, mpirun would see a failed rank.
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
		err = fmt.Errorf("a request for %q after all daemons were placed", w.Host)
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

// endsAll ends mpirun after its task, unless ctx is done: then mpirun has ended.
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
	time.AfterFunc(mpirunGrace, func() { _ = mpirun.Kill() }) // a no-op if it is gone
}

// code is the job's exit code, where mpirun's own is code.
func (e *taskEnd) code(code int) int {
	if e == nil || e.Asked || e.lost && !e.ended && code != 0 {
		return code
	}
	return e.Code
}

// TaskMain is the whole of `sparkrun mpi-task`; it returns the exit code.
func TaskMain() int {
	// The end of this thread would end the child (PR_SET_PDEATHSIG, prctl(2): the parent is
	// a thread).
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
		return exitBroken, errors.New("this command works only as a part of an MPI job of sparkrun")
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
	_ = os.Unsetenv(remoteSocket) // it does not fail for this name
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // head sends nothing more: it has ended, and mpirun with it
		signals <- syscall.SIGTERM
	}()
	end := runTask(o.Argv, signals, func() { _ = json.NewEncoder(conn).Encode(taskEnd{Asked: true}) })
	if end.Asked {
		return end.Code, nil
	}
	if err := json.NewEncoder(conn).Encode(end); err != nil {
		return end.Code, fmt.Errorf("tell that %s %s: %w", o.Argv[0], end.How, err)
	}
	// The program that started this continues once it has ended, while mpirun ends that.
	<-signals
	return end.Code, nil
}

// runTask runs a command in a process group of its own: mpirun ends a rank by a signal to
// its group, and a command in that group could be seen to end before the signal to this
// process is.
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
			_ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal)) // it may have left children
			waits = ended != nil
		case <-ended:
			ended, whose = nil, time.After(whoseWait)
			waits = !end.Asked
		case <-whose:
			waits = false
		}
	}
	ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus) // on Linux it always is one
	if ws.Signaled() {
		end.Code, end.How = 128+int(ws.Signal()), fmt.Sprintf("was killed by signal %d (%s)", ws.Signal(), ws.Signal())
	} else {
		end.Code, end.How = ws.ExitStatus(), fmt.Sprintf("ended with %d", ws.ExitStatus())
	}
	return end
}
