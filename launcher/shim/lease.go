package shim

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// A lease bounds how long an attempt may run without being renewed: whoever has started it
// elsewhere meanwhile relies on its end. CLOCK_BOOTTIME continues while the machine sleeps;
// Go's own timers do not.

// Uptime is this machine's CLOCK_BOOTTIME.
func Uptime() launcher.Uptime {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // fails for unknown clocks only
	return launcher.Uptime(ts.Nano())
}

// lease is the attempt's right to run. Its until only rises.
type lease struct {
	until launcher.Uptime // 0: for ever
	cause string          // why the attempt ends when it has run out
	timer *os.File        // a timerfd, which wakes the loop; nil before the first lease
}

// renew lets the attempt run until a moment, and no longer. It does not stop an end that
// has begun.
func (a *attempt) renew(until launcher.Uptime, cause string) error {
	switch now := Uptime(); {
	case a.phase >= ending:
		return fmt.Errorf("lease: %w: the attempt is being ended", ErrRefused)
	case until <= now:
		return fmt.Errorf("lease: %w: it ran out %s ago", ErrRefused, time.Duration(now-until))
	case until <= a.lease.until:
		return nil
	}
	if a.lease.timer == nil {
		timer, err := newLeaseTimer()
		if err != nil {
			return fmt.Errorf("lease: %w: %w", ErrRefused, err)
		}
		a.lease.timer = timer
		go a.watchLease(timer) // ends with the process, at the latest
	}
	if err := setLeaseTimer(a.lease.timer, until); err != nil {
		return fmt.Errorf("lease: %w: %w", ErrRefused, err)
	}
	a.lease.until, a.lease.cause = until, cause
	return nil
}

// endLease ends an attempt whose lease has run out. KILL comes when it would have come
// without a delay: a machine that slept has no grace left.
func (a *attempt) endLease() {
	if a.lease.until == 0 || a.phase >= ending {
		return
	}
	if over := time.Duration(Uptime() - a.lease.until); over >= 0 {
		a.log.Warn("the lease has run out", "late", over)
		a.endFor(a.lease.cause, unix.SIGTERM, max(0, a.cfg.Grace-over))
	}
}

// watchLease wakes the loop, which checks itself whether the lease was renewed.
func (a *attempt) watchLease(timer *os.File) {
	var expired [8]byte // timerfd_create(2): how often
	for {
		if _, err := timer.Read(expired[:]); err != nil {
			return
		}
		select {
		case a.in <- func() {}:
		case <-a.gone:
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
