package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// OuterArg instead of a shim's folder makes this program the outer half. It reads an Order
// from descriptor 3 to its end and writes one Answer to 4, then closes it. 5 is what an
// Order passes on beside 0, 1 and 2.
const (
	OuterArg = "@outer"
	orderFD  = 3
	answerFD = 4
	moreFD   = 5
)

// startWait bounds the time an engine takes to make and start a container, and the
// container to ask for its command. Unpacked images start in a second; disks may be busy.
const startWait = 2 * time.Minute

// Order asks for one rank in a container.
type Order struct {
	Socket  string  `json:"socket"` // of the engine
	Spec    Spec    `json:"spec"`
	Command Command `json:"command"`
	// More: the program's descriptor 3 is the outer half's 5.
	More    bool `json:"more,omitempty"`
	Session bool `json:"guest,omitempty"` // the container exists: the command runs in it beside its program
}

// Answer is the result of an Order: the program runs, or Error says why it never will. Then
// nothing of a container is left, if the engine answers.
type Answer struct {
	Container string `json:"container,omitempty"` // its id
	Init      int    `json:"init,omitempty"`      // PID of its first process, with which all others end
	// Program is the PID of the program on the host, as in the kernel's log; 0: not known.
	Program int    `json:"program,omitempty"`
	Error   string `json:"error,omitempty"`
	// Code of an error that is the command's fault: 127 where there is no such program,
	// else 126.
	Code  int  `json:"code,omitempty"`
	Ended bool `json:"ended,omitempty"` // by a TERM, before the program began
}

// outer stands in the rank's place on the host.
type outer struct {
	order    Order
	answer   *os.File
	sigs     chan os.Signal
	engine   *Engine
	id       string
	line     *line
	inner    int               // PID of the inner half on the host
	sessions *net.UnixListener // listener for exec sessions; an exec session has none
}

func runOuter() int {
	o := &outer{answer: os.NewFile(answerFD, "answer"), sigs: make(chan os.Signal, 64)}
	unix.CloseOnExec(orderFD)
	unix.CloseOnExec(answerFD)
	signal.Notify(o.sigs)
	if err := json.NewDecoder(os.NewFile(orderFD, "order")).Decode(&o.order); err != nil {
		return launcher.ExitOwnFailure // the process that forked us died before it could send it
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), startWait,
		fmt.Errorf("the engine took longer than %s", startWait))
	defer cancel()
	init, late, err := o.begin(ctx)
	if err != nil {
		o.giveUp()
		var no *execError
		b := Answer{Error: err.Error(), Ended: errors.Is(err, errTold)}
		if errors.As(err, &no) {
			b.Code = no.code
		}
		o.tell(b)
		return launcher.ExitOwnFailure
	}
	o.tell(Answer{Container: o.id, Init: init, Program: proc.Here.OnlyChild(o.inner)})
	return o.watch(late)
}

func (o *outer) tell(b Answer) {
	_ = json.NewEncoder(o.answer).Encode(b)
	o.answer.Close()
}

// begin makes the container, starts it and sends the command. The deadline of ctx is for
// all of it. A TERM ends it too, until the command is sent; a later one is returned as
// late: it is for the program, if there is one.
func (o *outer) begin(ctx context.Context) (init int, late []os.Signal, err error) {
	making, cancel := context.WithCancelCause(ctx)
	over, told := make(chan struct{}), make(chan []os.Signal)
	go func() { // joined by told
		var handed []os.Signal
		for {
			select {
			case s := <-o.sigs:
				if s != syscall.SIGTERM {
					continue
				}
				if cancel(errTold); !errors.Is(context.Cause(making), errTold) {
					handed = append(handed, s)
				}
			case <-over:
				told <- handed
				return
			}
		}
	}()
	defer func() {
		close(over)
		late = <-told
		cancel(nil)
	}()
	if o.order.Session {
		err = o.execInside(making)
	} else {
		init, err = o.found(making)
	}
	if err != nil {
		return 0, nil, cause(making, err)
	}
	if cancel(errHanded); !errors.Is(context.Cause(making), errHanded) {
		return 0, nil, context.Cause(making)
	}
	if err := o.meet(ctx); err != nil {
		return 0, nil, err
	}
	return init, nil, nil
}

// found makes the container and waits for its inner half.
func (o *outer) found(ctx context.Context) (init int, err error) {
	ln, init, err := o.create(ctx)
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return init, o.await(ctx, ln, init)
}

// create makes and starts the container, and checks it.
func (o *outer) create(ctx context.Context) (ln *net.UnixListener, init int, err error) {
	if ln, err = listenHand(o.order.Spec); err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			ln.Close()
		}
	}()
	if o.sessions, err = listenSessions(o.order.Spec); err != nil {
		return nil, 0, err
	}
	if o.engine, err = Open(ctx, o.order.Socket); err != nil {
		return nil, 0, err
	}
	if o.id, err = o.engine.Create(ctx, o.order.Spec); err != nil {
		return nil, 0, err
	}
	if err = unchanged(o.order.Spec.Mounts); err != nil {
		return nil, 0, err
	}
	if err = o.engine.Start(ctx, o.id); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", o.order.Spec.Name, err)
	}
	st, err := o.engine.State(ctx, o.id)
	if err != nil {
		return nil, 0, err
	}
	if !st.Running || st.PID == 0 {
		return nil, 0, o.died(st)
	}
	return ln, st.PID, o.look(st.PID)
}

// maxTold bounds all that the inner half sends: an error, or two messages.
const maxTold = 64 << 10

var (
	errTold   = errors.New("ended before the container ran")
	errHanded = errors.New("the command is handed over")
)

// cause is why ctx ended, if that made something fail.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// died returns what is known of a container that ended before its program began.
func (o *outer) died(st State) error {
	why := st.Error
	if st.OOMKilled {
		why = "out of memory"
	}
	if why == "" {
		why = "see the engine's log (journalctl -u docker)"
	}
	return fmt.Errorf("container %s ended before its program began: %s", o.order.Spec.Name, why)
}

// await waits for the inner half, unless the container dies.
func (o *outer) await(ctx context.Context, ln *net.UnixListener, init int) error {
	gone, err := whenGone(ctx, init)
	switch {
	case errors.Is(err, unix.ESRCH):
		return o.died(State{})
	case err != nil:
		return fmt.Errorf("watch container %s: %w", o.order.Spec.Name, err)
	}
	lives, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(lives, func() { _ = ln.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		select {
		case <-gone:
			cancel(o.died(State{}))
		case <-lives.Done():
		}
	}()
	defer func() {
		cancel(nil)
		<-joined
	}()
	if o.inner, err = o.accept(ln); err != nil {
		return cause(lives, err)
	}
	return join(init, o.inner)
}

// accept waits for the rank's user, and returns the PID of the process that connected.
func (o *outer) accept(ln *net.UnixListener) (pid int, err error) {
	for {
		c, err := ln.AcceptUnix()
		if err != nil {
			return 0, err
		}
		uid, pid, err := peer(c)
		if err == nil && uid == o.order.Spec.UID {
			o.line = newLine(c)
			return pid, nil
		}
		c.Close() // an unknown process, which has no right to be in that folder
	}
}

// meet sends the command to the inner half, and reads the result.
func (o *outer) meet(ctx context.Context) error {
	o.line.dec = json.NewDecoder(io.LimitReader(o.line, maxTold)) // the other end may be a process of the rank's user
	// From here on the end of the connection, after all messages, says that the inner half
	// is gone: a program may run and end, and its container with it, before this is read.
	end := context.AfterFunc(ctx, func() { _ = o.line.SetDeadline(time.Unix(1, 0)) })
	defer end()
	var m toOuter
	fds := []int{0, 1, 2}
	if o.order.More {
		fds = append(fds, moreFD)
	}
	err := o.line.give(o.order.Command, fds)
	if o.order.More {
		unix.Close(moreFD) // held by the program alone from now on, so that it ends with it
	}
	if err == nil {
		err = o.line.dec.Decode(&m)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("container %s has got its command and does not say whether that runs: %w", o.order.Spec.Name,
			context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("container %s ended as its program began: %s", o.order.Spec.Name, o.why())
	}
	if m.Error != "" {
		return &execError{m.Error[:min(len(m.Error), 4096)], m.Code}
	}
	return nil
}

// execError is the error of a command that could not be run, with a shell's code for that.
type execError struct {
	text string
	code int
}

func (e *execError) Error() string { return e.text }

// whenGone returns a channel that is closed once a process is gone, whoever's child it is,
// or ctx has ended.
func whenGone(ctx context.Context, pid int) (<-chan struct{}, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	gone := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	go func() { // joined by gone
		defer close(gone)
		defer f.Close()
		defer stop()
		_ = rc.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
	}()
	return gone, nil
}

// giveUp removes what was made, if the engine does so.
func (o *outer) giveUp() {
	if o.engine == nil || o.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeWait)
	defer cancel()
	_ = o.engine.Remove(ctx, o.id) // else the sweep does
}

// removeWait bounds a removal that nobody needs to wait for.
const removeWait = 10 * time.Second

// watch passes signals on, first those that came before, until the program has ended, and
// then ends in the same way.
func (o *outer) watch(late []os.Signal) int {
	// Its output is held by the program alone from now on, so that it ends with it. The
	// last descriptor stays, for our own message.
	if null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Dup3(null, 0, 0)
		_ = unix.Dup3(null, 1, 0)
	}
	exit := make(chan toOuter, 1)
	go func() { // ends with the connection, at the latest with the process
		var m toOuter
		_ = o.line.dec.Decode(&m)
		exit <- m
	}()
	var one sync.Mutex // one write at a time
	say := func(m toInner) error {
		one.Lock()
		defer one.Unlock()
		return o.line.enc.Encode(m)
	}
	pass := func(s os.Signal) {
		n := s.(syscall.Signal)
		if n != syscall.SIGURG && n != syscall.SIGCHLD && n != syscall.SIGPIPE { // the Go runtime's own
			_ = say(toInner{Signal: int(n)})
		}
	}
	if o.sessions != nil {
		go answerSessions(o.sessions, say) // ends with the process
	}
	for _, s := range late {
		pass(s)
	}
	for {
		select {
		case s := <-o.sigs:
			pass(s)
		case m := <-exit:
			e := m.Exit
			if !o.order.Session && (e == nil || m.Outside) {
				fmt.Fprintf(os.Stderr, "sparkrun: container %s%s%s\n", o.order.Spec.Name, launcher.EndedFromOutside, o.why())
			}
			switch {
			case e == nil: // an exec session ends with the container, which its rank reports
				return dieBy(syscall.SIGKILL)
			case e.Signal > 0 && e.Signal <= 64 && !slices.Contains(stops, syscall.Signal(e.Signal)):
				return dieBy(syscall.Signal(e.Signal))
			}
			return e.Code
		}
	}
}

// stops do not end a program.
var stops = []syscall.Signal{unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}

// why is what the engine knows about a container that is gone.
func (o *outer) why() string {
	if o.engine == nil {
		return "its rank has ended"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	st, err := o.engine.State(ctx, o.id)
	switch {
	case errors.Is(err, ErrNoEngine):
		return "its engine has been stopped (live-restore would keep it: see /etc/docker/daemon.json)"
	case err == nil && st.OOMKilled:
		return "out of memory"
	case err == nil && st.Error != "":
		return st.Error
	}
	return "by docker kill, docker stop or docker rm, by the end of its engine, or by the kernel"
}

// dieBy ends this process by a signal, so that the waitpid of shell and shim sees the same
// one. Go's own handler would print a trace for some signals, so it is removed, which
// package signal cannot do for these.
func dieBy(s syscall.Signal) int {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) // the core would be this process's
	var zero [4]uint64                                   // the kernel's struct sigaction: SIG_DFL, no flags, an empty mask
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&zero)), 0, 8, 0, 0)
	_ = unix.Kill(os.Getpid(), s)
	time.Sleep(time.Second) // the signal comes before this ends
	return launcher.Exit{Signal: int(s)}.Status()
}
