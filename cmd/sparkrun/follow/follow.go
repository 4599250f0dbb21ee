// Package follow decides how one launch is followed to its end: its event log, its ranks' output, their input and
// terminal, the user's signals, and the exit code.
//
// It must not make a job's spec, nor choose a cluster: both are handed to it.
package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Bounds on waiting. Once a job is recorded there are none: it goes on without
// us, and only its user may turn away.
const (
	LeaderlessWait   = time.Second      // of that, while it says that it has no leader and that waiting does not help
	quietAfterEnd    = 10 * time.Second // for output that is late when the job has ended
	goroutinesJoined = time.Second      // for a write to a stuck terminal, when we leave
)

// Follower carries one launch from its request to its exit code.
type Follower struct {
	Agent    *wire.Client
	In       io.Reader // what ranks are to read; nil: none does
	Terminal *Terminal // in's, where a rank has one; nil: none has
	Keys     []byte    // that detach from it
	Only     []int     // ranks whose output is shown; none: all
	InputAt  int64     // offset of the first byte of in
	InputOf  []int     // of the ranks with an input, only these; none: all

	// Attached: the job was launched before, as far as generation heard, and runs
	// says that all of that do. from is where its output begins.
	Attached, Runs bool
	From           launcher.From
	Spec           launcher.Spec
	Out            *Printer
	Say            func(string)
	Signals        <-chan os.Signal
	Standalone     bool // the job lives no longer than we do
	Detach         bool // return when it runs
	Leader         string

	accepted, started, running Flagged
	reading                    Flagged // those who have an input run
	left                       Flagged // the keys that detach were typed
	serves                     Flagged // the job is a service, and answers
	passing                    sync.Mutex
	suspended                  bool // by a TSTP that was passed on; passing guards it
	interrupted                atomic.Bool
	troubled                   atomic.Bool // output may have been out of reach for a while
	Outcome                    *rendezvous.Outcome
	Rejected                   bool                   // no rank was started, and none will be; for who called run
	OnlyOn                     atomic.Pointer[string] // the one host that has the job recorded; empty where others have
	World                      int

	// First is the generation whose output is read first; later takes those that
	// follow it. heard and stage are of events alone.
	First atomic.Uint64
	later chan launcher.Generation // has room for one: the latest
	lost  chan struct{}            // has room for one: a leader was, and with it what it was asked
	Heard launcher.Generation
	stage string
	head  string // rank 0's address where the ranks meet

	machines int             // of the last plan
	begun    map[string]bool // those of them that have started a rank; of events alone
}

// Flagged is a fact that becomes true once.
type Flagged struct {
	once sync.Once
	c    chan struct{}
}

// Set makes it true.
func (f *Flagged) Set() { f.once.Do(func() { close(f.c) }) }

// Is tells whether it is.
func (f *Flagged) Is() bool { return closed(f.c) }

// NewFlagged is a fact that is not true yet.
func NewFlagged() Flagged { return Flagged{c: make(chan struct{})} }

func closed[T any](c <-chan T) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Run returns the exit code, or an error of sparkrun's own.
func (f *Follower) Run(ctx context.Context) (int, error) {
	f.begun = map[string]bool{}
	f.accepted, f.started, f.running, f.reading, f.left = NewFlagged(), NewFlagged(), NewFlagged(), NewFlagged(),
		NewFlagged()
	f.serves = NewFlagged()
	f.later, f.lost = make(chan launcher.Generation, 1), make(chan struct{}, 1)
	if f.Attached {
		f.accepted.Set()
		if f.Heard > 0 {
			f.started.Set()
		}
		if f.Runs {
			f.running.Set()
			f.reading.Set()
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() { cancel(); joined(&wg, goroutinesJoined) }()

	told := make(chan error, 1)
	wg.Go(func() { told <- f.events(ctx) })

	read := make(chan error, 1)
	reading := false
	stopReading, stopped := context.CancelFunc(func() {}), false
	var next launcher.Generation // to be read when the reading has stopped
	startReading := func(gen launcher.Generation) {
		readCtx, stop := context.WithCancel(ctx)
		reading, stopReading, stopped, next = true, stop, false, 0
		// Outages are told by events: one line is enough.
		trouble := app.Outage{Say: func(string) { f.troubled.Store(true) }}
		r := OutputReader{Agent: f.Agent, Out: f.Out, Job: string(f.Spec.ID), Ranks: f.Only, Generation: gen,
			Follow: true, launched: true, Outage: trouble}
		if gen == launcher.Generation(f.First.Load()) {
			r.From = f.From
		}
		wg.Go(func() { read <- r.Run(readCtx) })
	}
	defer func() { stopReading() }()

	started, running, serves := f.started.c, f.running.c, f.serves.c
	if f.Attached || f.Detach {
		serves = nil
	}
	if f.Detach {
		started = nil // nobody reads
	} else {
		running = nil
	}
	var tick <-chan time.Time
	var lastTaken int64
	var lastMoved time.Time
	in := interrupts{f: f, wg: &wg}
	ended := false // f.outcome may be read

	begin := func() {
		started = nil
		startReading(launcher.Generation(f.First.Load()))
		if f.In != nil {
			go f.feed(ctx) // not joined: a read of a terminal ends with the process
		}
	}
	goOn := func(gen launcher.Generation) {
		if f.Detach {
			return
		}
		next, stopped = gen, true
		stopReading() // what its nodes had has come, or they are away
		if !reading {
			f.Out.restart()
			startReading(gen)
		}
	}
	for {
		select {
		case <-running:
			if running = nil; in.count == 0 {
				return 0, nil
			}
		case <-started:
			begin()
		case <-serves:
			if serves = nil; in.count > 0 { // it came up while it was asked to end, which has to be heard
				continue
			}
			f.Say(fmt.Sprintf("job %[1]s goes on by itself: `sparkrun logs -f %[1]s` follows it, `sparkrun stop %[1]s` ends it", f.Spec.ID))
			return 0, nil
		case <-f.left.c:
			f.Say(fmt.Sprintf("detached: job %[1]s goes on; `sparkrun attach %[1]s` comes back to it, `sparkrun stop %[1]s` ends it", f.Spec.ID))
			return 0, nil
		case gen := <-f.later:
			goOn(gen)
		case <-f.lost:
			in.askAgain(ctx)
		case err := <-read:
			reading = false
			if gen := next; gen != 0 && !errors.Is(err, ErrOutput) {
				f.Out.restart()
				startReading(gen)
				continue
			}
			switch {
			case errors.Is(err, ErrOutput):
				return f.OutputBroken(err, ended), nil
			case err != nil && !stopped:
				f.Say(fmt.Sprintf("the output cannot be read: %v; `sparkrun logs %s` tries again", err, f.Spec.ID))
			}
			if ended {
				return f.finish(ctx, in.signal), nil
			}
		case err := <-told:
			switch {
			case f.Detach && f.running.Is() && in.count == 0: // it ran: how it went on is not waited for
				return 0, nil
			case errors.Is(err, ErrOutput):
				return f.OutputBroken(err, ended), nil
			case errors.Is(err, errInterrupted):
				return app.ExitOf(in.signal), err
			case err != nil:
				if errors.Is(err, node.ErrLoggedOut) && f.accepted.Is() {
					f.Say(f.goesOn())
				}
				return launcher.ExitOwnFailure, err
			}
			// All events of a short job come at once: what was told before the end comes first.
			if started != nil && f.started.Is() {
				begin()
			}
			select {
			case gen := <-f.later:
				goOn(gen)
			default:
			}
			ended, f.Rejected = true, f.Outcome.End == rendezvous.Rejected
			if !reading || f.Outcome.End == rendezvous.Rejected {
				return f.finish(ctx, in.signal), nil
			}
			// The output is a step behind. It is waited for as long as it moves.
			quiet := time.NewTicker(time.Second)
			defer quiet.Stop()
			tick, lastTaken, lastMoved = quiet.C, f.Out.taken.Load(), time.Now()
		case now := <-tick:
			if n := f.Out.taken.Load(); n != lastTaken || f.Out.busy.Load() {
				lastTaken, lastMoved = n, now
			}
			if now.Sub(lastMoved) >= quietAfterEnd {
				tick, stopped = nil, true
				f.Say(fmt.Sprintf("some output is out of reach; `sparkrun logs %s` tries again", f.Spec.ID))
				stopReading()
			}
		case sig := <-f.Signals:
			switch {
			case slices.Contains(app.Forwarded, sig):
				wg.Go(func() { f.forward(ctx, sig.(syscall.Signal)) })
			case ended: // only our own reader is slow
				return cmp.Or(f.Outcome.ExitCode, app.ExitOf(sig)), nil
			case sig == syscall.SIGHUP && !f.Standalone && in.count > 0:
				f.Say(fmt.Sprintf("hung up: job %s was asked to end; `sparkrun ps` shows whether it has", f.Spec.ID))
				return app.ExitOf(sig), nil
			case sig == syscall.SIGHUP && !f.Standalone:
				f.resume(ctx)
				f.Say("hung up: " + f.goesOn())
				return app.ExitOf(sig), nil
			case !in.take(ctx, sig):
				f.Say(fmt.Sprintf("not waiting any longer; `sparkrun ps` shows whether job %s has ended", f.Spec.ID))
				return app.ExitOf(in.signal), nil
			}
		}
	}
}

// goesOn says what becomes of a job that we turn away from.
func (f *Follower) goesOn() string {
	switch {
	case f.Standalone:
		return "the job ends with it"
	case !f.accepted.Is():
		return fmt.Sprintf("`sparkrun ps` tells whether job %s was started", f.Spec.ID)
	}
	return fmt.Sprintf("job %[1]s goes on; `sparkrun logs -f %[1]s` follows it, `sparkrun stop %[1]s` ends it", f.Spec.ID)
}

// OutputBroken: the reader of our output has gone, which says nothing about the
// job. Exit like a program that SIGPIPE killed, as `yes | head` does.
func (f *Follower) OutputBroken(err error, ended bool) int {
	if !ended {
		f.Say(fmt.Sprintf("%v: %s", err, f.goesOn()))
	}
	if errors.Is(err, syscall.EPIPE) {
		return app.ExitOf(syscall.SIGPIPE)
	}
	return launcher.ExitOwnFailure
}

// finish prints what is left and draws the exit code from the outcome.
func (f *Follower) finish(ctx context.Context, sig os.Signal) int {
	o := *f.Outcome
	if f.troubled.Load() && f.started.Is() && !f.Detach {
		f.readAgain(ctx)
	}
	broken := f.Out.Flush()
	switch {
	case o.End == rendezvous.Completed && broken != nil:
		return f.OutputBroken(broken, true)
	case o.End == rendezvous.Completed:
		return 0
	case o.End == rendezvous.Stopped && sig != nil:
		f.Say("stopped: every rank has ended")
		return app.ExitOf(sig)
	}
	f.Say(Sentence(o, f.Spec, f.World))
	if r := o.Root; r != nil && !f.Detach { // its output has just been read
		bare := *r
		bare.Exit.Last = ""
		o.Root = &bare
	}
	for _, line := range Why(o, f.Spec) {
		f.Say(line)
	}
	return cmp.Or(o.ExitCode, launcher.ExitOwnFailure)
}

// readAgain fetches what a node that was away for a while may have been left
// out with. What was printed is not printed again.
func (f *Follower) readAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quietAfterEnd/2)
	defer cancel()
	r := OutputReader{Agent: f.Agent, Out: f.Out, Job: string(f.Spec.ID), Ranks: f.Only, launched: true,
		From: f.From, Outage: app.Outage{Say: f.Say}}
	if err := r.Run(ctx); err != nil && !errors.Is(err, ErrOutput) {
		f.Say(fmt.Sprintf("some output may be missing: `sparkrun logs %s` tries again", f.Spec.ID))
	}
}

// Sentence is the last line: which rank, which host, why.
func Sentence(o rendezvous.Outcome, spec launcher.Spec, world int) string {
	cause := o.Cause
	if cause == "" {
		cause = "no cause was recorded"
	}
	switch {
	case o.End == rendezvous.Stopped:
		return fmt.Sprintf("job %s was ended: %s", spec.ID, cause)
	case o.End == rendezvous.Rejected && !strings.Contains(cause, "no rank was started"):
		return cause + "; no rank was started"
	case o.End == rendezvous.Failed && world > 1 && spec.OnFailure == launcher.ContinueOnFailure &&
		o.ExitCode != launcher.ExitTimedOut:
		return cause + "; the other ranks were left to end by themselves"
	case o.End == rendezvous.Failed && world > 1:
		return cause + "; the gang was ended"
	}
	return cause
}

// interrupts turns the user's signals into requests: end, kill, leave.
type interrupts struct {
	f      *Follower
	wg     *sync.WaitGroup
	signal os.Signal // the first one
	count  int
	grace  *time.Duration     // that was asked for last
	cancel context.CancelFunc // of the request before
}

// take gives false when the user has asked a third time.
func (in *interrupts) take(ctx context.Context, sig os.Signal) bool {
	if in.signal == nil {
		in.signal = sig
	}
	in.f.interrupted.Store(true)
	in.count++
	switch in.count {
	case 1:
		in.f.Say(fmt.Sprintf("stopping; the ranks have %s (again to kill)", in.f.Spec.WithDefaults().Grace))
		in.stop(ctx, nil)
	case 2:
		in.f.Say("killing (again to leave without waiting)")
		in.stop(ctx, new(time.Duration))
	default:
		return false
	}
	return true
}

// askAgain asks the next leader for what the last one may have taken along.
func (in *interrupts) askAgain(ctx context.Context) {
	if in.count > 0 {
		in.stop(ctx, in.grace)
	}
}

// stop asks until it has been heard; nil means the job's own grace.
func (in *interrupts) stop(ctx context.Context, grace *time.Duration) {
	in.grace = grace
	if in.cancel != nil {
		in.cancel()
	}
	ctx, in.cancel = context.WithCancel(ctx)
	f := in.f
	in.wg.Go(func() {
		var again app.Pause
		for {
			_, err := wire.Stop.Call(ctx, f.Agent, wire.StopRequest{Job: string(f.Spec.ID), Grace: grace})
			switch {
			case err == nil, ctx.Err() != nil, errors.Is(err, rendezvous.ErrJobEnded):
				return
			case errors.Is(err, rendezvous.ErrNoJob) && !f.accepted.Is(): // not yet
			case !app.Passing(err):
				f.Say(fmt.Sprintf("stop job %s: %v", f.Spec.ID, err))
				return
			}
			if again.Wait(ctx) != nil {
				return
			}
		}
	})
}

// joined waits for goroutines, but not for one that a stuck terminal holds: the
// process is about to end.
func joined(wg *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
