package shim

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// phase is how far a gang has come. It only rises.
type phase int

const (
	waiting  phase = iota // for Start; nothing was exec'd
	starting              // the journal says so; ranks are being exec'd
	running               // each rank was exec'd, or could not be
	ending                // TERM was sent, the grace runs
	killing               // KILL is sent until nobody is left
	ended                 // nobody is left; the record waits to be taken over
)

func (p phase) String() string {
	return [...]string{"waiting", "starting", "running", "ending", "killing", "ended"}[p]
}

// killPause lies between two passes of TERM or KILL while processes die. One also
// follows killAgain after the last KILL, in case a death was not told to us.
const (
	killPause = 10 * time.Millisecond
	killAgain = time.Second
	// stuckAfter the first KILL whoever is left counts as one that cannot be
	// killed. Letting go of a GPU and 100 GB takes a second or two.
	stuckAfter = 10 * time.Second
)

// gang is the state of one try's ranks. All of it belongs to the goroutine in
// run; others hand it functions through in.
type gang struct {
	cfg    Config
	log    *slog.Logger
	j      *journal
	cg     *cgroup // nil: none
	trace  Trace
	oomAdj string // the shim's own oom_score_adj at birth

	in   chan func()
	gone chan struct{} // closed when run returns
	sigs chan os.Signal
	chld chan os.Signal

	phase    phase
	why      string // what began the end
	cause    string // why the node ended ranks by its own judgement
	startBy  time.Time
	lease    lease
	space    *mpi.Space // of MPI ranks; nil: they are none
	ranks    []*rank
	byPID    map[int]*rank
	early    map[int]death // reaped before their fork was told of
	unborn   int           // ranks whose fork is still to be told of
	removing bool          // containers are being removed
	guests   map[string]*guest
	byGuest  map[int]*guest     // of these, those with a process
	coming   int                // guests whose fork is still to be told of
	stop     atomic.Bool        // tells the starter to fork no more
	starters []func(error)      // callers of Start, waiting
	returns  []returning        // ranks that are to come again
	endedAt  time.Time          // when the end began; zero before
	killAt   time.Time          // end of the grace
	termed   map[proc.Stat]bool // who has had TERM
	lastExit time.Time
	lastPass time.Time // of TERM or KILL
	died     bool      // somebody has since
	stuckAt  time.Time // when to say who is left; zero before the first KILL, and afterwards
	leave    bool      // exit after the end without a Release
	released bool

	now, wake time.Time // of this step; when the next one is due at the latest
}

type death struct {
	exit *launcher.Exit
	at   time.Time
}

// run is the loop of the shim's life.
func (g *gang) run() {
	defer close(g.gone)
	g.startBy = time.Now().Add(g.cfg.StartTimeout)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		g.step()
		if g.phase == ended && (g.leave || g.released) {
			return
		}
		if !g.wake.IsZero() {
			timer.Reset(time.Until(g.wake))
		}
		select {
		case <-g.chld:
		case <-timer.C:
		case f := <-g.in:
			f()
		case s := <-g.sigs:
			g.leave = true
			g.end(g.cfg.Grace, "the shim got "+s.String())
		}
	}
}

// do runs f in the loop and waits for its answer, which may come later.
func (g *gang) do(f func(answer func(error))) error {
	done := make(chan error, 1)
	select {
	case g.in <- func() { f(func(err error) { done <- err }) }:
	case <-g.gone:
		return ErrGone
	}
	select {
	case err := <-done:
		return err
	case <-g.gone:
		return ErrGone
	}
}

func (g *gang) advance(to phase, why string) {
	if to <= g.phase {
		return
	}
	g.log.Info("phase", "from", g.phase.String(), "to", to.String(), "why", why)
	g.phase = to
	if to == killing {
		g.stuckAt = time.Now().Add(stuckAfter)
	}
	if to >= ending && g.why == "" {
		g.why = why
	}
}

// due tells whether t has come, and else sees to it that the loop wakes then.
func (g *gang) due(t time.Time) bool {
	if !g.now.Before(t) {
		return true
	}
	if g.wake.IsZero() || t.Before(g.wake) {
		g.wake = t
	}
	return false
}

// step looks at everything and does what is due. It is called after each
// thing that happens, and decides by state alone, never by what happened.
func (g *gang) step() {
	g.wake = time.Time{}
	childless := g.reap()
	g.endLease()
	g.now = time.Now()
	switch g.phase {
	case waiting:
		if g.due(g.startBy) {
			g.leave = true
			g.finish(fmt.Sprintf("never told to start, for %s", g.cfg.StartTimeout))
		}
		return
	case ended:
		return
	}
	allExited, allTold := g.unborn == 0, g.unborn == 0
	childless = childless && g.unborn == 0 && g.coming == 0
	for _, r := range g.ranks {
		g.settle(r, childless && !r.lives())
		allExited = allExited && r.exit != nil
		allTold = allTold && r.told
	}
	g.seeOut(allExited)
	gone := allTold && childless && !g.cg.populated() && g.emptied()
	if g.bringBack(allExited, gone) {
		return
	}
	if gone && (!g.cfg.Stays || g.phase >= ending) {
		g.finish("every rank has exited")
		return
	}
	if allExited && !gone && g.phase < ending && g.due(g.lastExit.Add(OutputWait)) {
		g.sweepUp()
	}
	g.killIfDue()
	g.tellStuck()
}

// killIfDue makes the passes of TERM and KILL that follow the first.
func (g *gang) killIfDue() {
	if g.phase == ending && g.due(g.killAt) {
		g.advance(killing, "the grace is over")
		g.lastPass = time.Time{}
	}
	soon := g.died && g.due(g.lastPass.Add(killPause))
	switch {
	case g.phase == ending && soon:
		g.termOrphans()
	case g.phase == killing && (soon || g.due(g.lastPass.Add(killAgain))):
		g.kill()
		g.due(g.now.Add(killAgain))
	default:
		return
	}
	g.died = false
	g.lastPass = g.now
}

// settle brings one rank as far as it can come: an exit is told once its
// output has ended too, and leftovers are not waited for in vain.
func (g *gang) settle(r *rank, childless bool) {
	switch {
	case r.told || r.exit == nil:
	case r.open == 0 && r.mpi.heard():
		r.told = true
		r.exit = r.mpi.judge(r.exit, g.endedAt)
		defer g.endIfFailed(r)
		ev := Event{Kind: Exited, Rank: r.Rank.Rank, PID: r.pid, Again: r.Again, Exit: r.exit, Time: r.died}
		if r.box != nil {
			ev.Boxed = r.box.pid
		}
		g.note(ev)
	case childless && r.open > 0:
		// No process of ours holds the pipe. All that was written is in it.
		r.cut()
	case r.exit.ByUs && !childless:
		// The grace is for its children too: a shell dies at once by the TERM
		// that the program below it still obeys.
	case !r.killed && g.due(r.died.Add(OutputWait)):
		r.killed = true
		g.killHolders(r)
		g.due(r.died.Add(OutputWait + outputCut))
	case r.killed && g.due(r.died.Add(OutputWait+outputCut)):
		r.cut()
		r.hangUp()
	}
}

// start begins to exec the ranks, once in the life of this gang.
func (g *gang) start(ranks []Rank, answer func(error)) {
	switch {
	case g.ranks == nil && g.phase == ended:
		answer(ErrEnded)
		return
	case g.ranks != nil && g.unborn == 0:
		answer(nil)
		return
	}
	if g.ranks != nil {
		g.starters = append(g.starters, answer)
		return
	}
	g.begin(ranks, answer)
}

func (g *gang) openOutputs(ranks []Rank) (files [][2]*logFile, err error) {
	for _, r := range ranks {
		out, err := openOutput(g.cfg.LogDir, r.Rank, "out", g.cfg.MaxOutput)
		if err != nil {
			return files, err
		}
		errs, err := openOutput(g.cfg.LogDir, r.Rank, "err", g.cfg.MaxOutput)
		if err != nil {
			out.Close()
			return files, err
		}
		files = append(files, [2]*logFile{out, errs})
		if err := errors.Join(out.goOn(), errs.goOn()); err != nil { // of an earlier life, or boot
			return files, fmt.Errorf("go on with output: %w", err)
		}
	}
	return files, nil
}

var errNotStarted = errors.New("not started: the gang was ended first")

// bearAll forks one rank after the other, apart from the loop: an exec from a
// disk that hangs must not keep the shim from answering. Its join is unborn.
func (g *gang) bearAll(first int, ranks []Rank, files [][2]*logFile) {
	for i, r := range ranks {
		one := func() {
			b := born{at: time.Now(), err: errNotStarted}
			if !g.stop.Load() {
				b = bear(r, g.cfg, g.cg, g.trace.Mark, [2]sink{files[i][0], files[i][1]})
			}
			if b.err != nil {
				files[i][0].Close()
				files[i][1].Close()
			}
			g.in <- func() { g.tellBorn(g.ranks[first+i], b) }
		}
		if r.Box != nil { // the engine takes its time, for each
			go one()
			continue
		}
		one()
	}
}

// tellBorn enters one rank's process, which may be dead already.
func (g *gang) tellBorn(r *rank, b born) {
	defer g.allBorn()
	if g.unborn--; g.unborn == 0 {
		g.advance(running, "each rank was exec'd, or could not be")
		for _, answer := range g.starters {
			defer answer(nil)
		}
		g.starters = nil
	}
	if b.err != nil {
		byUs := errors.Is(b.err, errNotStarted)
		g.exited(r, &launcher.Exit{Error: b.err.Error(), ByUs: byUs}, b.at)
		return
	}
	r.pid, r.plumbing, r.open, r.box = b.pid, b.plumbing, len(b.streams), b.box
	if r.box != nil {
		go g.attend(r.box) // its join is gone
	}
	g.byPID[r.pid] = r
	g.serveMPI(r)
	g.note(Event{Kind: Started, Rank: r.Rank.Rank, PID: r.pid, Again: r.Again, Time: b.at, Ticks: b.ticks})
	for _, s := range r.streams {
		s.lost = func(l Lost) {
			g.in <- func() { g.note(Event{Kind: OutputLost, Rank: r.Rank.Rank, Lost: &l}) }
		}
		go func() { // its join is open
			s.run()
			s.dst.(io.Closer).Close()
			g.in <- func() { r.open-- }
		}()
	}
	if d, dead := g.early[r.pid]; dead {
		delete(g.early, r.pid)
		delete(g.byPID, r.pid)
		g.exited(r, d.exit, d.at)
		return
	}
	switch g.phase { // it slipped through while the gang was being ended
	case ending:
		termGroup(r)
	case killing:
		g.died = true
	}
}

// reap collects every dead child, ranks and orphans alike, and tells whether
// none is left: as a subreaper the shim then has no descendant at all.
func (g *gang) reap() (childless bool) {
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
		g.died = true
		if r := g.byPID[pid]; r != nil {
			delete(g.byPID, pid)
			g.exited(r, g.exitOf(ws), at)
		} else if gs := g.byGuest[pid]; gs != nil {
			g.departed(gs, exitOf(ws, false))
		} else if g.unborn > 0 || g.coming > 0 {
			// Its fork may not have been told of yet. A PID comes round again
			// only after all others, so a mistaken entry does no harm.
			g.early[pid] = death{g.exitOf(ws), at}
		}
	}
}

func (g *gang) exited(r *rank, exit *launcher.Exit, at time.Time) {
	r.exit, r.died = exit, at
	if r.mpi.heard() {
		r.exit = r.mpi.judge(exit, g.endedAt)
	}
	if r.in != nil {
		r.in.close()
	}
	if at.After(g.lastExit) {
		g.lastExit = at
	}
	g.log.Info("rank exited", "rank", r.Rank.Rank, "pid", r.pid, "exit", r.exit.String())
	g.endIfFailed(r)
}

func (g *gang) endIfFailed(r *rank) {
	if g.cfg.EndOnFailure && r.exit.Failed() && !r.exit.ByUs {
		g.end(g.cfg.Grace, fmt.Sprintf("rank %d: %s", r.Rank.Rank, r.exit))
	}
}

// end begins the end: TERM now, KILL after grace. Later calls may only shorten.
func (g *gang) end(grace time.Duration, why string) {
	if g.phase < ending {
		g.reap() // who is dead by now has died by himself
	}
	at := time.Now().Add(grace)
	switch {
	case g.phase == waiting:
		g.finish(why)
	case g.phase < ending:
		g.stop.Store(true)
		g.killAt, g.endedAt = at, time.Now()
		g.advance(ending, why)
		g.lastPass = time.Now()
		if grace > 0 {
			g.term()
		}
	case g.phase == ending && at.Before(g.killAt):
		g.killAt = at
	}
}

// endFor is an End order. With a cause it is the node's own judgement.
func (g *gang) endFor(cause string, grace time.Duration) {
	why := "told to end"
	if cause != "" {
		why = cause
	}
	if g.phase < ending {
		g.reap() // who is dead by now has died by himself
		g.cause = cause
	}
	g.end(grace, why)
}

// exitOf is how a child ended, in words of the launcher.
func (g *gang) exitOf(ws unix.WaitStatus) *launcher.Exit {
	e := exitOf(ws, g.phase >= ending)
	if e.ByUs && g.cause != "" {
		e.ByUs, e.Cause = false, g.cause
	}
	return e
}

// signal passes one on to a rank's process group, or to each one's.
func (g *gang) signal(to int, sig syscall.Signal) error {
	sent := false
	for _, r := range g.ranks {
		if (to == Gang || to == r.Rank.Rank) && r.running() {
			if err := unix.Kill(-r.pid, sig); err != nil {
				return fmt.Errorf("rank %d: %w: %w", r.Rank.Rank, ErrRefused, err)
			}
			sent = true
		}
	}
	if !sent && to != Gang {
		return fmt.Errorf("rank %d: %w", to, ErrNoRank)
	}
	return nil
}

// input finds a living rank's input.
func (g *gang) input(of int) (*input, error) {
	for _, r := range g.ranks {
		if r.Rank.Rank == of && r.running() {
			if r.in == nil {
				return nil, fmt.Errorf("rank %d: %w: it was started without input", of, ErrRefused)
			}
			return r.in, nil
		}
	}
	return nil, fmt.Errorf("rank %d: %w", of, ErrNoRank)
}

func (g *gang) finish(why string) {
	g.advance(ended, why)
	if g.space != nil {
		g.space.Close()
	}
	if err := g.cg.remove(); err != nil {
		g.log.Warn("cgroup stays", "error", err)
	}
	g.note(Event{Kind: Ended, Rank: Gang, Why: g.why})
}

func (g *gang) note(e Event) {
	if err := g.j.record(e); err != nil {
		g.log.Error("event not kept on disk", "seq", e.Seq, "kind", e.Kind, "error", err)
	}
}
