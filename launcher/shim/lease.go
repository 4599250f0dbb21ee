package shim

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// A lease bounds how long a gang may run without a further word: whoever has
// started it elsewhere meanwhile relies on its end. CLOCK_BOOTTIME goes on while
// the machine sleeps, which Go's own timers don't.

// Uptime is this machine's CLOCK_BOOTTIME.
func Uptime() launcher.Uptime {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // fails for unknown clocks only
	return launcher.Uptime(ts.Nano())
}

// lease is the gang's right to go on. Its until only rises.
type lease struct {
	until launcher.Uptime // 0: for ever
	cause string          // of the end when it has come, in words
	timer *os.File        // a timerfd, which wakes the loop; nil before the first lease
}

// renew lets the gang go on until a moment, and no longer. A gang that is being
// ended stays so.
func (g *gang) renew(until launcher.Uptime, cause string) error {
	switch now := Uptime(); {
	case g.phase >= ending:
		return fmt.Errorf("lease: %w: the gang is being ended", ErrRefused)
	case until <= now:
		return fmt.Errorf("lease: %w: it ran out %s ago", ErrRefused, time.Duration(now-until))
	case until <= g.lease.until:
		return nil
	}
	if g.lease.timer == nil {
		timer, err := newLeaseTimer()
		if err != nil {
			return fmt.Errorf("lease: %w: %w", ErrRefused, err)
		}
		g.lease.timer = timer
		go g.watchLease(timer) // ends with the process, at the latest
	}
	if err := setLeaseTimer(g.lease.timer, until); err != nil {
		return fmt.Errorf("lease: %w: %w", ErrRefused, err)
	}
	g.lease.until, g.lease.cause = until, cause
	return nil
}

// endLease ends a gang whose lease has run out. KILL comes when it would have
// come had we been there in time: a machine that slept has no grace left.
func (g *gang) endLease() {
	if g.lease.until == 0 || g.phase >= ending {
		return
	}
	if over := time.Duration(Uptime() - g.lease.until); over >= 0 {
		g.log.Warn("the lease has run out", "late", over)
		g.endFor(g.lease.cause, max(0, g.cfg.Grace-over))
	}
}

// watchLease wakes the loop, which looks for itself whether it was renewed.
func (g *gang) watchLease(timer *os.File) {
	var expired [8]byte // timerfd_create(2): how often
	for {
		if _, err := timer.Read(expired[:]); err != nil {
			return
		}
		select {
		case g.in <- func() {}:
		case <-g.gone:
			return
		}
	}
}

func newLeaseTimer() (*os.File, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return os.NewFile(uintptr(fd), "lease"), nil
}

func setLeaseTimer(timer *os.File, at launcher.Uptime) error {
	conn, err := timer.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = conn.Control(func(fd uintptr) {
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
		serr = os.NewSyscallError("timerfd_settime", unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil))
	})
	if err != nil {
		return err
	}
	return serr
}
