package usage

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// SMI asks the GPUs' driver, by two children `nvidia-smi -lms`, as its library cannot be linked into a program without
// cgo. They run only while somebody wants to know: together they cost 0.25 % of a core (H200, driver 580), where
// starting nvidia-smi for each reading would cost 2 % each.
type SMI struct {
	logger *slog.Logger
	news   chan struct{} // somebody wants to know, and no children live

	mu     sync.Mutex
	until  time.Time     // for how long somebody wants to know
	lives  bool          // the children do: a stuck driver can keep them for ever
	began  time.Time     // of the children
	after  time.Time     // they are not started again before
	failed int           // times in a row that they ended before they said anything
	told   string        // the last problem that was logged
	names  int           // which of reasonFields is asked for
	line   chan struct{} // closed with the next line of a GPU

	seen   map[int]GPU
	at     time.Time     // of the newest line of a GPU
	own    bool          // the GPUs have memory of their own
	held   map[int]int64 // by the newest frame, which is what the driver says at once
	before map[int]int64 // by the one before
	lines  map[App]bool  // of the newest frame, without the bytes
	frame  time.Time     // when the newest frame began
	lacks  int           // frames of GPUs since then
	mute   time.Time     // when it last told of a process, and not what that holds
}

const (
	every = time.Second // between two frames
	// Children that say nothing for so long are ended: the driver hangs.
	silent = 5 * every
	// What is older than this is not told.
	stale = 3 * every
	// heldFor is for how long the memory of processes is told: it is wanted just when everything is slow.
	heldFor = 90 * every
	// A frame is written at once; this is far more than that takes.
	frameTakes = every / 5
	// tryAgain is the pause after a first failure; each further one doubles it.
	tryAgain  = time.Second
	tryAtMost = 5 * time.Minute
)

const appFields = "gpu_uuid,pid,used_memory"

const gpuFields = "index,name,utilization.gpu,clocks.sm,clocks.max.sm,power.draw,temperature.gpu,memory.used,memory.total"

// reasonFields are the names that the mask of reasons for a slow clock has had: the first since driver 535, which knows
// the second as well. An older one ends with "not a valid field to query".
var reasonFields = [...]string{",clocks_event_reasons.active", ",clocks_throttle_reasons.active", ""}

var (
	errField  = errors.New("not a valid field to query")
	errSilent = errors.New("it says nothing: the driver hangs")
)

// OpenSMI makes it; Run has it work.
func OpenSMI(logger *slog.Logger) *SMI {
	return &SMI{logger: logger, news: make(chan struct{}, 1), line: make(chan struct{}), seen: map[int]GPU{}}
}

// Want says that somebody wants to know for a while from now.
func (s *SMI) Want(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if until := now.Add(d); until.After(s.until) {
		s.until = until
	}
	if !s.lives && !now.Before(s.after) {
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

// Fresh waits for the first line of children that have just been started, and for nothing else.
func (s *SMI) Fresh(ctx context.Context, patience time.Duration) {
	s.mu.Lock()
	line, now := s.line, time.Now()
	wait := now.Sub(s.at) > stale && !now.Before(s.after) && (!s.lives || now.Sub(s.began) < patience)
	s.mu.Unlock()
	if !wait {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-line:
	case <-ctx.Done():
	}
}

// GPUs are those that nvidia-smi told of in the last seconds, by index.
func (s *SMI) GPUs() (all []GPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) > stale {
		return nil
	}
	for i := 0; len(all) < len(s.seen); i++ {
		if g, ok := s.seen[i]; ok {
			all = append(all, g)
		}
	}
	return all
}

// Silent says why nvidia-smi, which is there and was asked, tells nothing; empty: it is well.
func (s *SMI) Silent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case now.Sub(s.at) < stale:
		return ""
	case s.lives && now.Sub(s.began) > 2*silent: // it was ended long ago, and is stuck in the driver
		return errSilent.Error()
	}
	return s.told
}

// Held is what each process holds by the GPU, in bytes by PID, as it was told last; nil: it is not known. It does not
// wait.
func (s *SMI) Held() map[int]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch age := now.Sub(s.frame); {
	case now.Sub(s.mute) < stale:
		return nil
	case age < frameTakes && s.before != nil:
		return maps.Clone(s.before) // the rest of the newest frame may be on its way
	case now.Sub(s.at) < stale && s.lacks > 2:
		return map[int]int64{} // the driver answers, and of no process: then nvidia-smi writes no line
	case age < heldFor:
		return maps.Clone(s.held)
	}
	return nil
}

// HeldHere is what each process holds of the machine's memory by the GPU: nothing where that has its own.
func (s *SMI) HeldHere() (held map[int]int64, own bool) {
	s.mu.Lock()
	own = s.own
	s.mu.Unlock()
	if own {
		return map[int]int64{}, true
	}
	return s.Held(), false
}

// Run has the children run while somebody wants it, until ctx ends.
func (s *SMI) Run(ctx context.Context) error {
	for {
		select {
		case <-s.news:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.mu.Lock()
		start := !s.lives
		if start {
			s.lives, s.began, s.lacks = true, time.Now(), 0
			s.seen = map[int]GPU{} // one may have fallen off its bus
		}
		ask := gpuFields + reasonFields[s.names]
		s.mu.Unlock()
		if start {
			// Beside no join: what is stuck in the driver cannot be ended, and Run does not wait for it.
			go s.children(ctx, ask)
		}
	}
}

// children ask until nobody wants to know, until nothing is heard of the GPUs, or until the child that asks for these
// ends.
func (s *SMI) children(ctx context.Context, ask string) {
	ctx, end := context.WithCancelCause(ctx)
	quiet := time.AfterFunc(silent, func() { end(errSilent) })
	defer quiet.Stop()
	var apps sync.WaitGroup
	apps.Go(func() {
		for pause := tryAgain; ; pause = min(2*pause, tryAtMost) { // it ends nothing: the other one may work
			_ = child(ctx, "--query-compute-apps="+appFields, s.app)
			if ctx.Err() != nil {
				return
			}
			s.mu.Lock()
			s.mute = time.Now().Add(pause)
			s.mu.Unlock()
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	})
	spoke := false
	err := child(ctx, "--query-gpu="+ask, func(line string) {
		if !s.gpu(line) {
			return
		}
		spoke = true
		quiet.Reset(silent)
		if !s.wanted() {
			end(nil)
		}
	})
	end(nil)
	apps.Wait()
	s.ended(spoke, err)
}

// child is one run of nvidia-smi; fn gets its lines.
func child(ctx context.Context, ask string, fn func(string)) error {
	runtime.LockOSThread() // what ends its parent's thread ends it (PR_SET_PDEATHSIG, prctl(2))
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "nvidia-smi", ask, "--format=csv,noheader,nounits", "-lms",
		strconv.FormatInt(every.Milliseconds(), 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = every
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	said := "it ended"
	lines := bufio.NewScanner(out)
	// Without its end a line is half of one.
	lines.Split(func(b []byte, _ bool) (int, []byte, error) { return bufio.ScanLines(b, false) })
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" {
			fn(line)
			said = line
		}
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case strings.Contains(said, errField.Error()):
		return errField
	default:
		return errors.Join(errors.New(said), err)
	}
}

func (s *SMI) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.until)
}

// ended notes why the children ended, and when they may be started again.
func (s *SMI) ended(spoke bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives = false
	switch {
	case errors.Is(err, context.Canceled): // nobody wants to know, or the agent ends
		s.failed, s.told = 0, ""
	case errors.Is(err, errField) && s.names+1 < len(reasonFields):
		s.names++
	case errors.Is(err, exec.ErrNotFound): // a machine without NVIDIA's driver
		s.after = time.Now().Add(tryAtMost)
	default:
		if spoke {
			s.failed = 0
		}
		s.failed++
		s.after = time.Now().Add(min(tryAgain<<min(s.failed-1, 10), tryAtMost))
		if text := err.Error(); text != s.told {
			s.logger.Warn("nvidia-smi tells nothing", "error", err)
			s.told = text
		}
	}
	close(s.line) // who waits for a first line waits in vain
	s.line = make(chan struct{})
}

// gpu takes a line of a GPU.
func (s *SMI) gpu(line string) bool {
	g, ok := ParseGPU(line)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.at) > every/2 {
		s.lacks++
	}
	s.seen[g.Index], s.at, s.own = g, now, g.Total != nil
	close(s.line)
	s.line = make(chan struct{})
	return true
}

// app takes a line of a process.
func (s *SMI) app(line string) {
	a, bytes, ok := ParseApp(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lacks = 0
	if !ok {
		s.mute = time.Now()
		return
	}
	// Who reads late gets two frames at once: what is told of again is the next one's.
	if now := time.Now(); s.lines[a] || now.Sub(s.frame) > every/2 {
		s.before, s.held, s.lines, s.frame = s.held, map[int]int64{}, map[App]bool{}, now
	}
	s.lines[a] = true
	s.held[a.PID] += bytes // by more than one GPU
}
