package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// Container runs a rank in a container. The rank's command, environment and folder are
// those in the container; its user, limits and processors are the Spec's.
type Container struct {
	Socket string         `json:"socket"` // of the engine
	Spec   container.Spec `json:"spec"`   // the shim adds its mark

	session bool // a command beside the rank's, in its container
}

// contained is a rank's container, until nothing of it is left. Only the attempt's loop
// touches it.
type contained struct {
	id   string
	pid  int       // of the program on the host; 0: not known
	init proc.Stat // its first process, with which the kernel ends all others
	fd   *os.File  // pidfd of that process; nil: descriptors ran out
	gone bool      // the first process is gone
}

// lives reports whether a process may be left in the rank's container.
func (r *rank) lives() bool { return r.contained != nil && !r.contained.gone }

// forkContained forks the outer half of a container in the rank's place, and waits until
// the program runs in it. It runs as our own user, for it needs the engine. That of an exec
// session has no container of its own.
func forkContained(r Rank, cg *cgroup, mark string, attr *syscall.ProcAttr, pmi *int) (pid int, b *contained,
	err error) {
	orderR, orderW, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer orderW.Close()
	answerR, answerW, err := os.Pipe()
	if err != nil {
		orderR.Close()
		return 0, nil, err
	}
	defer answerR.Close()
	attr.Sys.Credential, attr.Sys.Setctty = nil, false // a terminal becomes the program's
	attr.Dir, attr.Env = "/", []string{processors(confineProcessors), markName + "=" + mark}
	attr.Files = append(attr.Files, orderR.Fd(), answerW.Fd())
	env := r.Env
	if pmi != nil {
		attr.Files = append(attr.Files, uintptr(*pmi))
		env = with(env, []string{"PMI_FD=3"})
	}
	pid, err = cg.fork(attr.Sys, func() (int, error) {
		return syscall.ForkExec(SelfExe, []string{"sparkrun", "shim", container.OuterArg}, attr)
	})
	orderR.Close()
	answerW.Close()
	if err != nil {
		return 0, nil, err
	}
	o := container.Order{Socket: r.Container.Socket, Spec: r.Container.Spec, Session: r.Container.session,
		More: pmi != nil, Command: container.Command{
			Argv: blobs(r.Argv), Env: blobs(env), Dir: []byte(r.Dir), TTY: r.TTY != nil}}
	o.Spec.Mark = markName + "=" + mark
	_ = json.NewEncoder(orderW).Encode(o) // a killed process reads nothing
	orderW.Close()
	told, _ := io.ReadAll(answerR)
	var answer container.Answer
	switch {
	case len(told) == 0: // it was killed, which waitpid reports
		return pid, nil, nil
	case json.Unmarshal(told, &answer) != nil:
		return 0, nil, fmt.Errorf("start a container: %s", told)
	case answer.Ended:
		return 0, nil, errNotStarted
	case answer.Code == exitNoProgram:
		return 0, nil, noProgramError(answer.Error)
	case answer.Error != "" && answer.Code == 0 && r.Container.session:
		return 0, nil, fmt.Errorf("%w: %s", ErrRefused, answer.Error)
	case answer.Error != "":
		return 0, nil, errors.New(answer.Error)
	case r.Container.session:
		return pid, nil, nil
	}
	b = watched(answer.Container, answer.Init)
	b.pid = answer.Program
	return pid, b, nil
}

// exitNoProgram is a shell's code for a command that it did not find.
const exitNoProgram = 127

// noProgramError is errNoProgram with a container's text.
type noProgramError string

func (e noProgramError) Error() string { return string(e) }

func (noProgramError) Is(err error) bool { return err == errNoProgram }

// watched is a container with that first process, which may be gone already, and with it
// all processes of the container.
func watched(id string, init int) *contained {
	b := &contained{id: id}
	fd, err := unix.PidfdOpen(init, unix.PIDFD_NONBLOCK)
	if err == nil {
		b.fd = os.NewFile(uintptr(fd), "pidfd")
	}
	b.init, _ = proc.Here.Stat(init)
	b.init.PID = init
	b.gone = errors.Is(err, unix.ESRCH)
	return b
}

func blobs(ss []string) [][]byte {
	out := make([][]byte, len(ss))
	for i, s := range ss {
		out[i] = []byte(s)
	}
	return out
}

// askAgain is the polling interval for a process that cannot be watched.
const askAgain = 200 * time.Millisecond

// attend tells the loop when the container's first process is gone.
func (a *attempt) attend(b *contained) {
	if b.gone {
		return
	}
	err := b.awaitEnd()
	if err != nil {
		a.log.Error("watch container", "container", b.id, "error", err)
	}
	for err != nil && b.there() { // there is no pidfd, so poll
		time.Sleep(askAgain)
	}
	a.in <- func() {
		b.gone = true
		if b.fd != nil {
			b.fd.Close()
		}
	}
}

// awaitEnd waits for the pidfd; an error says that there is none.
func (b *contained) awaitEnd() error {
	if b.fd == nil {
		return errors.New("no descriptor was left to watch it by")
	}
	rc, err := b.fd.SyscallConn()
	if err != nil {
		return err
	}
	var perr error
	err = rc.Read(func(fd uintptr) bool {
		var n int
		n, perr = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if perr == unix.EINTR {
			perr = nil
		}
		return n > 0 || perr != nil
	})
	return errors.Join(err, perr)
}

// there reports whether the first process exists, or may: without a descriptor left nothing
// can be read of it.
func (b *contained) there() bool {
	if unix.Kill(b.init.PID, 0) == unix.ESRCH {
		return false
	}
	p, ok := proc.Here.Stat(b.init.PID)
	return !ok || !p.Dead() && (b.init.Ticks == 0 || p.Ticks == b.init.Ticks)
}

// kill ends everything in the container. It must not hit a reused PID: the pidfd is of that
// process alone, and without one the start time must match. If neither is available, the
// outer half's end is the container's as well.
func (b *contained) kill() {
	switch {
	case b == nil || b.gone:
	case b.fd != nil:
		if rc, err := b.fd.SyscallConn(); err == nil {
			_ = rc.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
		}
	default:
		if p, ok := proc.Here.Stat(b.init.PID); ok && p.Born() == b.init.Born() {
			_ = unix.Kill(b.init.PID, unix.SIGKILL)
		}
	}
}

// removeWait bounds the removal of containers without processes. What an engine has not
// removed by then is left to the agent's sweep.
const removeWait = 10 * time.Second

// emptied reports whether all containers are gone, from the engine too. It has them
// removed, once, by name, including those of which nothing was reported.
func (a *attempt) emptied() bool {
	var with []*rank
	var containers []*Container
	for _, r := range a.ranks {
		if r.lives() {
			return false
		}
		if r.Container != nil && !r.removed {
			with, containers = append(with, r), append(containers, r.Container)
		}
	}
	if len(containers) > 0 && !a.removing {
		a.removing = true
		go func() { // joined by removing
			err := removeAll(containers)
			a.in <- func() {
				if err != nil {
					a.log.Warn("containers without processes are left", "error", err)
				}
				for _, r := range with { // more may have come since
					r.removed = true
				}
				a.removing = false
			}
		}()
	}
	return len(containers) == 0
}

func removeAll(containers []*Container) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeWait)
	defer cancel()
	errs := make([]error, len(containers))
	var all sync.WaitGroup
	for i, b := range containers {
		all.Go(func() {
			e, err := container.Open(ctx, b.Socket)
			if err == nil {
				err = e.Remove(ctx, b.Spec.Name)
			}
			errs[i] = err
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (b *Container) validate() error {
	if b == nil {
		return nil
	}
	if !strings.HasPrefix(b.Socket, "/") {
		return fmt.Errorf("engine's socket %q: want an absolute path", b.Socket)
	}
	return b.Spec.Validate()
}

func hasContainer(ranks []Rank) bool {
	return slices.ContainsFunc(ranks, func(r Rank) bool { return r.Container != nil })
}
