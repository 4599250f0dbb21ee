package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// Reap kills all that a dead shim left running, and then completes its journal with Ended:
// nothing will ever start from dir again. Ranks without an Exited in the journal ended
// unobserved.
//
// Survivors are found by cgroup, if there was one; by the recorded PIDs and their start
// times; by their sessions; by SPARKRUN_GANG in the environment; and as descendants of all
// these. Without a cgroup only a process that has left all of them is missed. ErrAlive: a
// shim runs there, and nothing was done. If ctx ends first, the error is ErrStuck and names
// what is left.
func Reap(ctx context.Context, dir string) error {
	lock, err := openLock(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reap shim: %w", err)
	}
	defer lock.Close()
	if err := lockByte(lock, unix.F_OFD_SETLK, unix.F_WRLCK, alive); err != nil {
		if errors.Is(err, errLocked) {
			err = ErrAlive
		}
		return fmt.Errorf("reap shim %s: %w", dir, err)
	}
	events, err := Replay(dir)
	if err != nil {
		return err
	}
	if len(events) == 0 {
		return nil
	}
	r := remains{started: map[int]uint64{}, ranks: map[int]int{}}
	for _, e := range events {
		switch {
		case e.Kind == Ended:
			return nil
		case e.Kind == Starting && e.Trace != nil:
			r.trace = *e.Trace
		case e.Kind == Started:
			r.started[e.PID] = e.Ticks
			r.ranks[e.PID] = e.Rank
		}
	}
	if boot, _ := proc.BootID(); r.trace.Boot == boot { // else the kernel ended them all
		if err := r.end(ctx); err != nil {
			return fmt.Errorf("reap shim %s: %w", dir, err)
		}
	}
	return complete(dir, len(events))
}

// A look at the process table that finds nothing counts only if each process in it could be
// checked. If that never happens - on a busy machine some process is always just gone -
// mostLooks of them do, or fewLooks over lookFor if each takes long: many of them would
// take longer than the caller waits, and the caller would begin again for ever.
const (
	mostLooks = 50
	fewLooks  = 5
	lookFor   = 2 * time.Second
	lookAgain = 2 * time.Millisecond
)

// remains is what a dead shim's journal says about its ranks.
type remains struct {
	trace   Trace
	started map[int]uint64 // PID -> start time
	ranks   map[int]int    // PID -> rank
}

func (r remains) end(ctx context.Context) error {
	var cg *cgroup
	if r.trace.Cgroup != "" {
		var err error
		if cg, err = openCgroup(r.trace.Cgroup); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var since time.Time // of the first look that found nothing
	for looks := 0; ; {
		left, sure := r.survivors(cg)
		if len(left) == 0 && (sure || looks >= mostLooks || looks >= fewLooks && time.Since(since) > lookFor) {
			return cg.remove()
		}
		if len(left) == 0 { // none was found, but some could not be checked
			if looks == 0 {
				since = time.Now()
			}
			looks++
			select {
			case <-time.After(lookAgain):
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		looks = 0
		cg.kill()
		if err := killAndWait(left); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %s", ErrStuck, stuckText(left, r.ranks))
		}
	}
}

// survivors lists what is left; sure is false if there may be others.
func (r remains) survivors(cg *cgroup) (found []proc.Stat, sure bool) {
	procs, sure := proc.Here.All()
	byPID := map[int]proc.Stat{}
	for _, p := range procs {
		byPID[p.PID] = p
	}
	known := map[int]bool{}
	for _, pid := range cg.procs() {
		known[pid] = true
	}
	var roots []int
	except := map[int]bool{os.Getpid(): true}
	for _, p := range procs {
		if except[p.PID] {
			continue
		}
		ticks, rank := r.started[p.PID]
		ours := known[p.PID] || rank && ticks == p.Ticks || r.inSession(p, byPID)
		if !ours && !p.Dead() {
			yes, told := proc.Here.HasEnv(p, markName+"="+r.trace.Mark)
			ours, sure = yes, sure && told
		}
		if !ours {
			continue
		}
		except[p.PID] = true
		roots = append(roots, p.PID)
		if !p.Dead() {
			found = append(found, p)
		}
	}
	return append(found, below(procs, roots, except)...), sure
}

// inSession reports whether p is in the session that a rank led. A session's number is not
// reused while one of its members lives; a leader that has it with another start time shows
// that it was reused.
func (r remains) inSession(p proc.Stat, byPID map[int]proc.Stat) bool {
	ticks, ours := r.started[p.Session]
	if !ours || p.Ticks < ticks {
		return false
	}
	leader, lives := byPID[p.Session]
	return !lives || leader.Ticks == ticks
}

// killAndWait kills processes through pidfds, which a reused PID cannot mislead, and waits
// up to a second for their deaths. They are not our children.
func killAndWait(procs []proc.Stat) error {
	var fds []unix.PollFd
	defer func() {
		for _, f := range fds {
			unix.Close(int(f.Fd))
		}
	}()
	for _, p := range procs {
		fd, err := unix.PidfdOpen(p.PID, 0)
		if err != nil {
			continue // gone, or out of descriptors: the next pass finds it
		}
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		if now, ok := proc.Here.Stat(p.PID); !ok || now.Ticks != p.Ticks {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err == unix.EPERM {
			return fmt.Errorf("kill PID %d: %w: it runs as another user now: root has to end it", p.PID, err)
		}
	}
	until := time.Now().Add(time.Second)
	for waits := fds; len(waits) > 0; {
		rest := time.Until(until)
		if rest <= 0 {
			return nil
		}
		n, err := unix.Poll(waits, int(rest.Milliseconds())+1)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for killed processes: %w", err)
		}
		if n <= 0 {
			continue
		}
		var open []unix.PollFd
		for _, f := range waits {
			if f.Revents == 0 {
				open = append(open, f)
			}
		}
		waits = open
	}
	return nil
}

// complete removes a line that the shim's death cut short, and adds Ended.
func complete(dir string, n int) error {
	path := filepath.Join(dir, journalName)
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("complete journal: %w", err)
	}
	if err := os.Truncate(path, int64(bytes.LastIndexByte(b, '\n')+1)); err != nil {
		return fmt.Errorf("complete journal: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("complete journal: %w", err)
	}
	err = writeLine(f, Event{Seq: n + 1, Time: time.Now(), Kind: Ended, Rank: AllRanks,
		Why: "the shim died, and what it left was killed"})
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("complete journal: %w", err)
	}
	return nil
}
