package agent

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// The guard keeps a node's ranks from using up its memory. Where CPU and GPU share the
// memory, one allocation too many can freeze the machine, sshd included, and the kernel's
// OOM killer neither sees what the GPU holds nor comes in time. So below MemoryFloor the
// largest attempt is ended, while the machine still answers.
const (
	// guardEvery is the time between two checks; reading meminfo takes 20 us.
	guardEvery = 500 * time.Millisecond
	// stallTrigger wakes the guard at once when every task waited for memory for 150 ms of
	// a second (PSI, Documentation/accounting/psi.rst).
	stallTrigger = "full 150000 1000000"
	pressureFile = "/proc/pressure/memory"
	// Below warnAt times the floor a warning is logged, once, until twice that is available
	// again.
	warnAt = 2
)

// guard watches memory until ctx ends.
func (a *Agent) guard(ctx context.Context) {
	w, err := newStallWatch(ctx)
	if err != nil {
		a.cfg.Logger.Error("the memory guard is off", "error", err)
		return
	}
	defer w.close()
	warned := false
	news := a.subscribe(bell)
	defer a.unsubscribe(news)
	for ctx.Err() == nil {
		if !a.anyStarted() { // there is nothing to end
			select {
			case <-news.more:
			case <-ctx.Done():
			}
			continue
		}
		stalled := w.wait(guardEvery)
		m, err := proc.ReadMemory()
		if err != nil {
			a.cfg.Logger.Error("the memory guard is off", "error", err)
			return
		}
		switch near := m.Available < warnAt*a.cfg.MemoryFloor; {
		case m.Available < a.cfg.MemoryFloor, near && stalled:
			a.endLargest(ctx, m)
		case near && !warned:
			warned = true
			a.cfg.Logger.Warn("memory is running out", "available", launcher.Size(m.Available), "floor",
				launcher.Size(a.cfg.MemoryFloor))
		case m.Available > 2*warnAt*a.cfg.MemoryFloor:
			warned = false
		}
	}
}

// endLargest ends the attempt that holds most memory, if that helps: one that holds less than
// the floor has not used up the machine.
func (a *Agent) endLargest(ctx context.Context, m proc.Memory) {
	key, held := largest(a.usages(), m)
	if held < a.cfg.MemoryFloor {
		a.cfg.Logger.Warn("memory is below its floor, and no job here holds much of it", "available",
			launcher.Size(m.Available), "floor", launcher.Size(a.cfg.MemoryFloor))
		return
	}
	client, err := a.reach(ctx, key)
	if err == nil {
		cause := fmt.Sprintf("ended because its machine had %s of memory left, less than the --memory-floor of %s: "+
			"it held about %s",
			launcher.Size(m.Available), launcher.Size(a.cfg.MemoryFloor), launcher.Size(held))
		a.cfg.Logger.Error("end ranks to save the machine", "job", key.Job, "available", launcher.Size(m.Available),
			"held", launcher.Size(held))
		err = client.EndFor(ctx, cause)
	}
	if err != nil {
		a.cfg.Logger.Error("end ranks to save the machine", "job", key.Job, "error", err)
		return
	}
	a.guarded.Add(1)
	a.awaitEnd(ctx, key)
}

// awaitEnd gives an attempt that was ended time to release its memory, so that the next
// check does not end another one.
func (a *Agent) awaitEnd(ctx context.Context, k launcher.Key) {
	ctx, cancel := context.WithTimeout(ctx, reapWait)
	defer cancel()
	news := a.subscribe(bell)
	defer a.unsubscribe(news)
	for {
		a.mu.Lock()
		t := a.attempts[k]
		a.mu.Unlock()
		if t == nil || t.snapshot().Phase == launcher.PhaseEnded {
			return
		}
		select {
		case <-news.more:
		case <-ctx.Done():
			return
		}
	}
}

// anyStarted tells whether there is an attempt whose ranks may run.
func (a *Agent) anyStarted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.attempts {
		if t.snapshot().Phase == launcher.PhaseStarted {
			return true
		}
	}
	return false
}

// usages are the memory and GPU use of each attempt whose ranks may run.
func (a *Agent) usages() map[launcher.Key]shim.Usage {
	all := shim.Usages()
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range all {
		if t := a.attempts[k]; t == nil || t.snapshot().Phase != launcher.PhaseStarted {
			delete(all, k)
		}
	}
	return all
}

// largest picks the attempt that holds most.
func largest(usages map[launcher.Key]shim.Usage, m proc.Memory) (key launcher.Key, held int64) {
	for k, h := range heldBy(usages, m) {
		if h > held || h == held && k.String() < key.String() {
			key, held = k, h
		}
	}
	return key, held
}

// heldBy is how much memory each attempt holds, in bytes. Memory that no process accounts for is the GPU's, and counts
// for the attempts that have the GPU open: the driver's allocations are in no RSS.
func heldBy(usages map[launcher.Key]shim.Usage, m proc.Memory) map[launcher.Key]int64 {
	unseen := m.Total - m.Available
	users := int64(0)
	for _, u := range usages {
		unseen -= u.Bytes
		if u.GPU {
			users++
		}
	}
	all := map[launcher.Key]int64{}
	for k, u := range usages {
		all[k] = u.Bytes
		if u.GPU {
			all[k] += max(unseen, 0) / users
		}
	}
	return all
}

// Guarded is how many attempts the guard has ended.
func (a *Agent) Guarded() int64 { return a.guarded.Load() }

// Held is how much memory each attempt whose ranks may run holds now, in bytes. While there is one it reads the whole
// process table.
func (a *Agent) Held() map[launcher.Key]int64 {
	if !a.anyStarted() {
		return nil
	}
	m, err := proc.ReadMemory()
	if err != nil {
		return nil
	}
	return heldBy(a.usages(), m)
}

// measured is how much memory an attempt holds now, in bytes; nil: it cannot be told.
func (a *Agent) measured(k launcher.Key) *int64 {
	m, err := proc.ReadMemory()
	if err != nil {
		return nil
	}
	held, found := heldBy(a.usages(), m)[k]
	if !found {
		return nil
	}
	return &held
}

// stallWatch waits for the kernel to report that memory stalls all tasks.
type stallWatch struct {
	pressure int // -1: this kernel has no PSI
	wake     *os.File
	off      func() bool
	woken    chan struct{} // closed when wake was written to
}

func newStallWatch(ctx context.Context) (*stallWatch, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	w := &stallWatch{pressure: -1, wake: os.NewFile(uintptr(fd), "wake"), woken: make(chan struct{})}
	w.off = context.AfterFunc(ctx, func() {
		_, _ = w.wake.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}) // eventfd(2): a number of eight bytes
		close(w.woken)
	})
	fd, err = unix.Open(pressureFile, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return w, nil //nolint:nilerr // meminfo is enough, half a second later
	}
	if _, err := unix.Write(fd, append([]byte(stallTrigger), 0)); err != nil {
		unix.Close(fd)
		return w, nil //nolint:nilerr // the same
	}
	w.pressure = fd
	return w, nil
}

// wait returns after d, at once with a stall, or when ctx ends.
func (w *stallWatch) wait(d time.Duration) (stalled bool) {
	fds := []unix.PollFd{
		{Fd: int32(w.pressure), Events: unix.POLLPRI}, // poll ignores a negative descriptor
		{Fd: int32(w.wake.Fd()), Events: unix.POLLIN},
	}
	n, err := unix.Poll(fds, int(d.Milliseconds()))
	return err == nil && n > 0 && fds[0].Revents&unix.POLLPRI != 0
}

func (w *stallWatch) close() {
	if !w.off() {
		<-w.woken
	}
	w.wake.Close()
	if w.pressure >= 0 {
		unix.Close(w.pressure)
	}
}
