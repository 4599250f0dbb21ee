package shim

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// What a shim writes into the pipe that Spawn gave it as descriptor 3.
const (
	readyFD   = 3
	readyOK   = "ok"   // it listens
	readyHeld = "held" // another shim does
)

// Main is `sparkrun shim DIR`: it reads its Config from stdin, as Spawn sends it, and
// returns the process's exit code. Its log goes to stderr.
func Main(dir string) int {
	switch dir {
	case confineArg:
		return confine()
	case tryArg:
		return 0
	case container.OuterArg, container.InnerArg:
		return container.Main(dir)
	}
	_ = os.WriteFile("/proc/self/comm", []byte(commName), 0)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("pid", os.Getpid())
	ready := readyPipe()
	// Other inherited descriptors must not reach a rank.
	_ = unix.CloseRange(readyFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	status, err := live(dir, log, func() { say(ready, readyOK) })
	if err != nil {
		log.Error("shim", "error", err)
		f := faultOf(err)
		say(ready, f.Code+" "+f.Text)
		return 1
	}
	if status != "" {
		say(ready, status)
	}
	return 0
}

// readyPipe returns nil if the shim was started by hand: 3 may then be anything.
func readyPipe() *os.File {
	var st unix.Stat_t
	if unix.Fstat(readyFD, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil
	}
	return os.NewFile(readyFD, "ready")
}

func say(ready *os.File, status string) {
	if ready != nil {
		_, _ = io.WriteString(ready, status+"\n")
		ready.Close()
	}
}

// live comes up under the lock `spawning` and keeps `alive` to the end. It returns
// readyHeld at once if another shim has that.
func live(dir string, log *slog.Logger, ready func()) (status string, err error) {
	var cfg Config
	if err := json.NewDecoder(os.Stdin).Decode(&cfg); err != nil {
		return "", fmt.Errorf("read shim configuration: %w", err)
	}
	if err := cfg.validate(); err != nil {
		return "", err
	}
	cfg = cfg.withDefaults()
	log = log.With("job", cfg.Key.Job, "generation", cfg.Key.Generation)
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	lock, err := openLock(dir)
	if err != nil {
		return "", fmt.Errorf("open lock: %w", err)
	}
	defer lock.Close()
	if err := lockByte(lock, unix.F_SETLKW, unix.F_WRLCK, spawning); err != nil {
		return "", err
	}
	if err := lockByte(lock, unix.F_SETLK, unix.F_WRLCK, alive); errors.Is(err, errLocked) {
		return readyHeld, nil
	} else if err != nil {
		return "", err
	}
	j, err := openJournal(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cfg.LogDir, 0o700); err != nil {
		return "", fmt.Errorf("make log folder: %w", err)
	}
	// Orphans become our children from here on, so that none is lost when its parent dies
	// and none is left when we say so.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return "", fmt.Errorf("become subreaper: %w", err)
	}
	a := newAttempt(cfg, log, j)
	ln, err := listen(dir)
	if err != nil {
		return "", fmt.Errorf("listen in %s: %w", dir, err)
	}
	if err := lockByte(lock, unix.F_SETLK, unix.F_UNLCK, spawning); err != nil {
		return "", err
	}
	ready()
	_ = os.Chdir("/")
	if cfg.Cgroup != "" { // no client waits for this: a Start comes later
		if a.cg, err = ranksCgroup(cfg.Cgroup); err != nil {
			log.Warn("no cgroup, descendants are walked instead", "error", err)
		} else {
			a.trace.Cgroup = a.cg.path
		}
	}
	s := &server{g: a, log: log, ln: ln, bye: make(chan struct{})}
	go s.run() // ends in close
	a.run()
	s.close()
	return "", os.Remove(filepath.Join(dir, socketName))
}

func newAttempt(cfg Config, log *slog.Logger, j *journal) *attempt {
	var nonce [8]byte
	rand.Read(nonce[:])
	boot, _ := proc.BootID()
	a := &attempt{
		cfg: cfg, log: log, j: j,
		trace: Trace{Boot: boot, Mark: fmt.Sprintf("%s/%x", cfg.Key, nonce)},
		in:    make(chan func()), gone: make(chan struct{}),
		sigs: make(chan os.Signal, 1), chld: make(chan os.Signal, 1),
		byPID: map[int]*rank{}, early: map[int]death{},
		termed: map[proc.Stat]bool{}, left: map[proc.Stat]bool{},
		sessions: map[string]*session{}, bySession: map[int]*session{},
	}
	signal.Notify(a.chld, syscall.SIGCHLD)
	signal.Notify(a.sigs, syscall.SIGTERM)
	// Caught rather than ignored: ignored signals stay ignored in the ranks. XFSZ (a limit
	// of file sizes, ulimit -f) would end a Go program; caught, it is an error of write
	// like a full disk.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGXFSZ)
	return a
}
