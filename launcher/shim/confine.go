package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// confineArg instead of DIR makes the shim's program the first half of a rank's exec:
// limits apply to a whole process, and raising them takes the privilege that the rank
// itself will not have. So they are set between fork and exec, in a process that is the
// rank already: same PID, cgroup, session, descriptors.
const confineArg = "@rank"

// Its descriptors beside the rank's own three.
const (
	confineIn  = 3 // its confinement, as JSON, to the end
	confineOut = 4 // the error; nothing if the exec succeeded
	// 5 is the rank's own: its connection to its process manager.
)

// confinement is what has to happen before the program runs.
type confinement struct {
	launcher.RankOptions
	CPUs   []int
	UID    *uint32
	GID    *uint32
	Groups []uint32
	Paths  []text // the first that can be
	Argv   []text
	Env    []text
	Dir    text
}

// confineFailure is why a confined rank was not exec'd.
type confineFailure struct {
	What  string // empty: the exec itself
	Errno syscall.Errno
}

// resources are the numbers of launcher.UlimitNames (getrlimit(2)).
var resources = map[string]int{
	"core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE,
	"locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK, "msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE,
	"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
	"rttime": unix.RLIMIT_RTTIME, "sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

// confine execs the rank in this process. It returns only if that failed.
func confine() int {
	in, out := os.NewFile(confineIn, "confinement"), os.NewFile(confineOut, "exec error")
	unix.CloseOnExec(confineIn)
	unix.CloseOnExec(confineOut)
	var c confinement
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return 1 // the shim died before it could send it: so do we
	}
	what, err := c.become()
	var no syscall.Errno
	if !errors.As(err, &no) {
		no = syscall.EINVAL
	}
	_ = json.NewEncoder(out).Encode(confineFailure{what, no})
	return 1
}

// become sets the limits, then the user, then the folder: root might not even see a home on
// NFS.
func (c confinement) become() (what string, err error) {
	runtime.LockOSThread() // CPU affinity is a thread's, and this one execs
	if len(c.CPUs) > 0 {
		var set unix.CPUSet
		for _, cpu := range c.CPUs {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Sprintf("bind to processors %v", c.CPUs), err
		}
	}
	for _, u := range c.Ulimits {
		// Package syscall's Setrlimit knows that the runtime has raised nofile for itself;
		// else the runtime would restore it at the exec.
		limit := syscall.Rlimit{Cur: limitOf(u.Soft), Max: limitOf(u.Hard)}
		if err := syscall.Setrlimit(resources[u.Name], &limit); err != nil {
			return "ulimit " + u.String(), err
		}
	}
	if c.UID != nil {
		groups := make([]int, len(c.Groups))
		for i, g := range c.Groups {
			groups[i] = int(g)
		}
		if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(int(*c.GID)),
			syscall.Setuid(int(*c.UID))); err != nil {
			return fmt.Sprintf("become uid %d", *c.UID), err
		}
	}
	if err := syscall.Chdir(string(c.Dir)); err != nil {
		return "", err // execError checks the folder
	}
	argv, env := untexts(c.Argv), untexts(c.Env)
	return "", firstOf(untexts(c.Paths), func(path string) error { return syscall.Exec(path, argv, env) })
}

// MayLimit refuses limits above this process's own if it lacks the privilege to raise them
// (setrlimit(2)): the shim would find that out only after other ranks have started.
func MayLimit(limits []launcher.Ulimit) error {
	for _, u := range limits {
		var own unix.Rlimit
		if err := unix.Getrlimit(resources[u.Name], &own); err != nil || limitOf(u.Hard) <= own.Max || mayRaiseLimits() {
			continue
		}
		of := limitText(own.Max)
		return fmt.Errorf("--ulimit %s: the agent itself has %s: %w: raise Limit%s= in its unit, or ask for less", u,
			of, unix.EPERM, strings.ToUpper(u.Name))
	}
	return nil
}

func mayRaiseLimits() bool {
	var caps [2]unix.CapUserData // of version 3, the second for numbers from 32 on
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	return err == nil && caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func limitText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "no bound"
	}
	return strconv.FormatUint(n, 10)
}

func limitOf(n int64) uint64 {
	if n == launcher.Unlimited {
		return unix.RLIM_INFINITY
	}
	return uint64(n)
}

// forkConfined forks a rank that has limits or processors of its own, and waits until it
// has exec'd. attr is as for other ranks.
func forkConfined(r Rank, paths []string, cfg Config, cg *cgroup, attr *syscall.ProcAttr, pmi *int) (pid int,
	err error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer inW.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		return 0, err
	}
	defer outR.Close()
	attr.Sys.Credential = nil // not yet
	attr.Files = append(attr.Files, inR.Fd(), outW.Fd())
	withPMI(attr, pmi)
	pid, err = cg.fork(attr.Sys, func() (int, error) {
		return syscall.ForkExec(SelfExe, []string{"sparkrun", "shim", confineArg}, &syscall.ProcAttr{
			Dir: "/", Env: []string{processors(confineProcessors)}, Files: attr.Files, Sys: attr.Sys})
	})
	inR.Close()
	outW.Close()
	if err != nil {
		return 0, err
	}
	c := confinement{RankOptions: r.RankOptions, CPUs: r.CPUs, UID: cfg.UID, GID: cfg.GID, Groups: cfg.Groups,
		Paths: texts(paths), Argv: texts(r.Argv), Env: texts(attr.Env), Dir: text(r.Dir)}
	_ = json.NewEncoder(inW).Encode(c) // a killed process reads nothing
	told, _ := io.ReadAll(outR)
	var s confineFailure
	switch {
	case len(told) == 0: // it is the rank now, or dead, which waitpid reports
		return pid, nil
	case json.Unmarshal(told, &s) != nil:
		return 0, fmt.Errorf("exec %q: %s", r.Argv[0], told)
	case s.What == "":
		return 0, explainExec(r, paths[0], cfg.UID, s.Errno)
	case s.Errno == syscall.EPERM:
		return 0, fmt.Errorf("%s: %w: the agent's own limit is lower: raise it in its unit "+
			"(LimitNOFILE= and the like), or ask for less", s.What, s.Errno)
	}
	return 0, fmt.Errorf("%s: %w", s.What, s.Errno)
}
