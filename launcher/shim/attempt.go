package shim

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// phase is how far an attempt has come. It only rises.
type phase int

const (
	waiting  phase = iota // for Start; nothing was exec'd
	starting              // the journal says so; ranks are being exec'd
	running               // each rank was exec'd, or could not be
	ending                // TERM was sent, the grace runs
	killing               // KILL is sent until no process is left
	ended                 // no process is left; the record waits to be taken over
)

func (p phase) String() string {
	return [...]string{"waiting", "starting", "running", "ending", "killing", "ended"}[p]
}

// killPause is the time between two passes of TERM or KILL while processes die. One also
// follows killAgain after the last KILL, in case a death was not reported to us.
const (
	killPause = 10 * time.Millisecond
	killAgain = time.Second
	// stuckAfter the first KILL a process that is left counts as one that cannot be killed.
	// Freeing a GPU and 100 GB takes a second or two.
	stuckAfter = 10 * time.Second
)

// attempt is the state of one attempt's ranks. All of it belongs to the goroutine in run;
// others pass it functions through in.
type attempt struct {
	cfg    Config
	log    *slog.Logger
	j      *journal
	cg     *cgroup // nil: none
	trace  Trace
	oomAdj string // the shim's own oom_score_adj at its start

	in   chan func()
	gone chan struct{} // closed when run returns
	sigs chan os.Signal
	chld chan os.Signal

	phase     phase
	why       string // what began the end
	cause     string // why the node itself decided to end the ranks
	startBy   time.Time
	lease     lease
	space     *mpi.Space // of MPI ranks; nil: they are none
	ranks     []*rank
	byPID     map[int]*rank
	early     map[int]death // reaped before their fork was reported
	pending   int           // ranks whose fork is not reported yet
	unsent    []unsent      // signals for ranks that have not started yet
	removing  bool          // containers are being removed
	sessions  map[string]*session
	bySession map[int]*session   // those of them that have a process
	coming    int                // exec sessions whose fork is not reported yet
	stop      atomic.Bool        // tells the starter to fork no more
	starters  []func(error)      // callers of Start, waiting
	returns   []returning        // ranks that are to start again
	endedAt   time.Time          // when the end began; zero before
	killAt    time.Time          // end of the grace
	termAt    time.Time          // after INT: when TERM follows; zero: it has been sent, or KILL comes at once
	termed    map[proc.Stat]bool // processes that have had TERM
	left      map[proc.Stat]bool // that were told as left behind
	lastExit  time.Time
	lastPass  time.Time // of TERM or KILL
	died      bool      // some process has died since
	stuckAt   time.Time // when to report what is left; zero before the first KILL, and afterwards
	leave     bool      // exit after the end without a Release
	released  bool

	now, wake time.Time // of this step; when the next one is due at the latest
}

// maxUnsent bounds the signals that wait for ranks to start.
const maxUnsent = 1000

// unsent is a signal that came before the rank that it is for, or with AllRanks before any.
type unsent struct {
	to  int
	sig syscall.Signal
}

type death struct {
	exit *launcher.Exit
	at   time.Time
}

// run is the shim's loop.
func (a *attempt) run() {
	defer close(a.gone)
	a.startBy = time.Now().Add(a.cfg.StartTimeout)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		a.step()
		if a.phase == ended && (a.leave || a.released) {
			return
		}
		if !a.wake.IsZero() {
			timer.Reset(time.Until(a.wake))
		}
		select {
		case <-a.chld:
		case <-timer.C:
		case f := <-a.in:
			f()
		case s := <-a.sigs:
			a.leave = true
			a.end(a.cfg.Grace, "the shim got "+s.String())
		}
	}
}

// do runs f in the loop and waits for its answer, which may come later.
func (a *attempt) do(f func(answer func(error))) error {
	done := make(chan error, 1)
	select {
	case a.in <- func() { f(func(err error) { done <- err }) }:
	case <-a.gone:
		return ErrGone
	}
	select {
	case err := <-done:
		return err
	case <-a.gone:
		return ErrGone
	}
}

func (a *attempt) advance(to phase, why string) {
	if to <= a.phase {
		return
	}
	a.log.Info("phase", "from", a.phase.String(), "to", to.String(), "why", why)
	a.phase = to
	if to == killing {
		a.stuckAt = time.Now().Add(stuckAfter)
	}
	if to >= ending && a.why == "" {
		a.why = why
	}
}

// due reports whether t has come; else it makes the loop wake then.
func (a *attempt) due(t time.Time) bool {
	if !a.now.Before(t) {
		return true
	}
	if a.wake.IsZero() || t.Before(a.wake) {
		a.wake = t
	}
	return false
}

// step looks at everything and does what is due. It is called after each thing that
// happens, and decides by state alone, never by what happened.
func (a *attempt) step() {
	a.wake = time.Time{}
	childless := a.reap()
	a.endLease()
	a.now = time.Now()
	switch a.phase {
	case waiting:
		if a.due(a.startBy) {
			a.leave = true
			a.finish(fmt.Sprintf("not started within %s", a.cfg.StartTimeout))
		}
		return
	case ended:
		return
	}
	allExited, allTold := a.pending == 0, a.pending == 0
	childless = childless && a.pending == 0 && a.coming == 0
	for _, r := range a.ranks {
		a.settle(r, childless && !r.lives())
		allExited = allExited && r.exit != nil
		allTold = allTold && r.told
	}
	a.endSessions(allExited)
	gone := allTold && childless && !a.cg.populated() && a.emptied()
	if a.bringBack(allExited, gone) {
		return
	}
	if gone && (!a.cfg.Stays || a.phase >= ending) {
		a.finish("every rank has exited")
		return
	}
	if allExited && !gone && a.phase < ending && a.due(a.lastExit.Add(OutputWait)) {
		a.sweepUp()
	}
	a.killIfDue()
	a.tellStuck()
}

// killIfDue makes the passes of TERM and KILL that follow the first.
func (a *attempt) killIfDue() {
	if a.phase == ending && !a.termAt.IsZero() && a.due(a.termAt) {
		a.termAt = time.Time{}
		a.term()
	}
	if a.phase == ending && a.due(a.killAt) {
		a.advance(killing, "the grace is over")
		a.lastPass = time.Time{}
	}
	soon := a.died && a.due(a.lastPass.Add(killPause))
	switch {
	case a.phase == ending && soon && !a.termAt.IsZero(): // what INT has left has its time until TERM
	case a.phase == ending && soon:
		a.termOrphans()
	case a.phase == killing && (soon || a.due(a.lastPass.Add(killAgain))):
		a.kill()
		a.due(a.now.Add(killAgain))
	default:
		return
	}
	a.died = false
	a.lastPass = a.now
}

// settle advances one rank as far as possible: an exit is reported once its output has
// ended too, and leftovers are waited for only for a time.
func (a *attempt) settle(r *rank, childless bool) {
	switch {
	case r.told || r.exit == nil:
	case r.open == 0 && r.mpi.heard():
		r.told = true
		r.exit = r.mpi.evaluate(r.exit, a.endedAt)
		defer a.endIfFailed(r)
		ev := Event{Kind: Exited, Rank: r.Rank.Rank, PID: r.pid, Again: r.Again, Exit: r.exit, Time: r.died}
		if r.contained != nil {
			ev.ContainerPID = r.contained.pid
		}
		a.note(ev)
	case childless && r.open > 0:
		// No descendant of ours holds the pipe, so it has all that was written.
		r.cut()
	case r.exit.ByUs && !childless:
		// The grace is also for its children: a shell dies at once by the TERM that the
		// program below it still handles.
	case !r.killed && a.due(r.died.Add(OutputWait)):
		r.killed = true
		a.killHolders(r)
		a.due(r.died.Add(OutputWait + outputCut))
	case r.killed && a.due(r.died.Add(OutputWait+outputCut)):
		r.cut()
		r.hangUp()
	}
}

// start begins to exec the ranks, once in an attempt.
func (a *attempt) start(ranks []Rank, answer func(error)) {
	switch {
	case a.ranks == nil && a.phase == ended:
		answer(ErrEnded)
		return
	case a.ranks != nil && a.pending == 0:
		answer(nil)
		return
	}
	if a.ranks != nil {
		a.starters = append(a.starters, answer)
		return
	}
	a.begin(ranks, answer)
}

func (a *attempt) openOutputs(ranks []Rank) (files [][2]*logFile, err error) {
	for _, r := range ranks {
		out, err := openOutput(a.cfg.LogDir, r.Rank, "out", a.cfg.MaxOutput)
		if err != nil {
			return files, err
		}
		errs, err := openOutput(a.cfg.LogDir, r.Rank, "err", a.cfg.MaxOutput)
		if err != nil {
			out.Close()
			return files, err
		}
		files = append(files, [2]*logFile{out, errs})
		if err := errors.Join(out.goOn(), errs.goOn()); err != nil { // of an earlier incarnation, or boot
			return files, fmt.Errorf("go on with output: %w", err)
		}
	}
	return files, nil
}

var errNotStarted = errors.New("not started: the attempt was ended first")

// spawnAll forks one rank after the other, outside the loop: an exec from a disk that hangs
// must not keep the shim from answering. It is joined by pending.
func (a *attempt) spawnAll(first int, ranks []Rank, files [][2]*logFile) {
	for i, r := range ranks {
		one := func() {
			b := spawned{at: time.Now(), err: errNotStarted}
			if !a.stop.Load() {
				b = spawnRank(r, a.cfg, a.cg, a.trace.Mark, [2]sink{files[i][0], files[i][1]})
			}
			if b.err != nil {
				files[i][0].Close()
				files[i][1].Close()
			}
			a.in <- func() { a.tellSpawned(a.ranks[first+i], b) }
		}
		if r.Container != nil { // the engine is slow, for each
			go one()
			continue
		}
		one()
	}
}

// tellSpawned enters one rank's process, which may be dead already.
func (a *attempt) tellSpawned(r *rank, b spawned) {
	defer a.allSpawned()
	defer a.sent(r)
	if a.pending--; a.pending == 0 {
		a.advance(running, "each rank was exec'd, or could not be")
		for _, answer := range a.starters {
			defer answer(nil)
		}
		a.starters = nil
	}
	if b.err != nil {
		byUs := errors.Is(b.err, errNotStarted)
		a.exited(r, &launcher.Exit{Error: b.err.Error(), ByUs: byUs}, b.at)
		return
	}
	r.pid, r.plumbing, r.open, r.contained = b.pid, b.plumbing, len(b.streams), b.contained
	if r.contained != nil {
		go a.attend(r.contained) // joined by gone
	}
	a.byPID[r.pid] = r
	a.serveMPI(r)
	a.note(Event{Kind: Started, Rank: r.Rank.Rank, PID: r.pid, Again: r.Again, Time: b.at, Ticks: b.ticks})
	for _, s := range r.streams {
		s.lost = func(l Lost) {
			a.in <- func() { a.note(Event{Kind: OutputLost, Rank: r.Rank.Rank, Lost: &l}) }
		}
		go func() { // joined by open
			s.run()
			s.dst.(io.Closer).Close()
			a.in <- func() { r.open-- }
		}()
	}
	if d, dead := a.early[r.pid]; dead {
		delete(a.early, r.pid)
		delete(a.byPID, r.pid)
		a.exited(r, d.exit, d.at)
		return
	}
	for _, u := range a.unsent {
		if u.to == AllRanks || u.to == r.Rank.Rank {
			_ = unix.Kill(-r.pid, u.sig) // not reaped yet, so the PID is its own
		}
	}
	switch a.phase { // forked while the attempt was being ended
	case ending:
		termGroup(r)
	case killing:
		a.died = true
	}
}

// reap collects every dead child, ranks and orphans alike, and reports whether none is
// left: as a subreaper the shim then has no descendant at all.
func (a *attempt) reap() (childless bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err == unix.ECHILD
		case pid == 0:
			return false
		}
		at := time.Now()
		a.died = true
		if r := a.byPID[pid]; r != nil {
			delete(a.byPID, pid)
			a.exited(r, a.exitOf(ws), at)
		} else if es := a.bySession[pid]; es != nil {
			a.sessionExited(es, exitOf(ws, false))
		} else if a.pending > 0 || a.coming > 0 {
			// Its fork may not have been reported yet. A PID is reused only after all
			// others, so a mistaken entry does no harm.
			a.early[pid] = death{a.exitOf(ws), at}
		}
	}
}

func (a *attempt) exited(r *rank, exit *launcher.Exit, at time.Time) {
	r.exit, r.died = exit, at
	if r.mpi.heard() {
		r.exit = r.mpi.evaluate(exit, a.endedAt)
	}
	if r.in != nil {
		r.in.close()
	}
	if at.After(a.lastExit) {
		a.lastExit = at
	}
	a.log.Info("rank exited", "rank", r.Rank.Rank, "pid", r.pid, "exit", r.exit.String())
	a.endIfFailed(r)
}

func (a *attempt) endIfFailed(r *rank) {
	if a.cfg.EndOnFailure && r.exit.Failed() && !r.exit.ByUs {
		a.end(a.cfg.Grace, fmt.Sprintf("rank %d: %s", r.Rank.Rank, r.exit))
	}
}

// end begins the end: TERM now, KILL after grace. Later calls may only shorten the grace.
func (a *attempt) end(grace time.Duration, why string) { a.endBy(unix.SIGTERM, grace, why) }

// endBy begins with TERM, or with INT as a terminal's Ctrl-C: then TERM follows after half of the grace.
func (a *attempt) endBy(first syscall.Signal, grace time.Duration, why string) {
	if a.phase < ending {
		a.reap() // what is dead by now has died by itself
	}
	at := time.Now().Add(grace)
	switch {
	case a.phase == waiting:
		a.finish(why)
	case a.phase < ending:
		a.stop.Store(true)
		a.killAt, a.endedAt = at, time.Now()
		a.advance(ending, why)
		a.lastPass = time.Now()
		switch {
		case grace == 0:
		case first == unix.SIGINT:
			a.termAt = a.endedAt.Add(grace / 2)
			a.due(a.termAt)
			a.interrupt()
		default:
			a.term()
		}
	case a.phase == ending:
		if at.Before(a.killAt) {
			a.killAt = at
		}
		if first != unix.SIGINT && !a.termAt.IsZero() {
			a.termAt = time.Now()
		}
	}
}

// endFor handles an End order. With a cause the node itself has decided to end the ranks.
func (a *attempt) endFor(cause string, first syscall.Signal, grace time.Duration) {
	why := "told to end"
	if cause != "" {
		why = cause
	}
	if a.phase < ending {
		a.reap() // what is dead by now has died by itself
		a.cause = cause
	}
	a.endBy(first, grace, why)
}

// exitOf converts a child's wait status.
func (a *attempt) exitOf(ws unix.WaitStatus) *launcher.Exit {
	e := exitOf(ws, a.phase >= ending)
	if e.ByUs && a.cause != "" {
		e.ByUs, e.Cause = false, a.cause
	}
	return e
}

// signal sends a signal to a rank's process group, or to all of them. A rank that has not
// started yet gets it when it starts: on another node others may run already.
func (a *attempt) signal(to int, sig syscall.Signal) error {
	if len(a.unsent) >= maxUnsent {
		return fmt.Errorf("rank %d: %w: %d signals wait for ranks to start", to, ErrRefused, maxUnsent)
	}
	sent := a.phase == waiting
	if sent {
		a.unsent = append(a.unsent, unsent{to, sig})
	}
	for _, r := range a.ranks {
		switch {
		case to != AllRanks && to != r.Rank.Rank || r.exit != nil:
			continue
		case r.pid == 0:
			a.unsent = append(a.unsent, unsent{r.Rank.Rank, sig})
		default:
			if err := unix.Kill(-r.pid, sig); err != nil {
				return fmt.Errorf("rank %d: %w: %w", r.Rank.Rank, ErrRefused, err)
			}
		}
		sent = true
	}
	if !sent && to != AllRanks {
		return fmt.Errorf("rank %d: %w", to, ErrNoRank)
	}
	return nil
}

// sent drops the signals that a rank has had, or never will, and with the last rank that is being started those for
// all ranks.
func (a *attempt) sent(r *rank) {
	a.unsent = slices.DeleteFunc(a.unsent, func(u unsent) bool {
		return u.to == r.Rank.Rank || u.to == AllRanks && a.pending == 0
	})
}

// input finds the input of a running rank.
func (a *attempt) input(of int) (*input, error) {
	for _, r := range a.ranks {
		if r.Rank.Rank == of && r.running() {
			if r.in == nil {
				return nil, fmt.Errorf("rank %d: %w: it was started without input", of, ErrRefused)
			}
			return r.in, nil
		}
	}
	return nil, fmt.Errorf("rank %d: %w", of, ErrNoRank)
}

func (a *attempt) finish(why string) {
	a.advance(ended, why)
	if a.space != nil {
		a.space.Close()
	}
	if err := a.cg.remove(); err != nil {
		a.log.Warn("cgroup stays", "error", err)
	}
	a.note(Event{Kind: Ended, Rank: AllRanks, Why: a.why})
}

func (a *attempt) note(e Event) {
	if err := a.j.record(e); err != nil {
		a.log.Error("event not kept on disk", "seq", e.Seq, "kind", e.Kind, "error", err)
	}
}
