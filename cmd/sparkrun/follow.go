package main

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
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Bounds on waiting. Once a job is recorded there are none: it goes on without
// us, and only its user may turn away.
const (
	leaderlessWait   = time.Second      // of that, while it says that it has no leader and that waiting does not help
	quietAfterEnd    = 10 * time.Second // for output that is late when the job has ended
	goroutinesJoined = time.Second      // for a write to a stuck terminal, when we leave
)

// follower carries one launch from its request to its exit code.
type follower struct {
	gangs    gangs
	ranks    ranks
	in       io.Reader // what ranks are to read; nil: none does
	terminal *terminal // in's, where a rank has one; nil: none has
	keys     []byte    // that detach from it
	only     []int     // ranks whose output is shown; none: all
	inputAt  int64     // offset of the first byte of in
	inputOf  []int     // of the ranks with an input, only these; none: all

	// attached: the job was launched before, as far as generation heard, and runs
	// says that all of that do. from is where its output begins.
	attached, runs bool
	from           launcher.From
	spec           launcher.Spec
	out            *printer
	say            func(string)
	signals        <-chan os.Signal
	standalone     bool // the job lives no longer than we do
	detach         bool // return when it runs
	leader         string

	accepted, started, running flagged
	reading                    flagged // those who have an input run
	left                       flagged // the keys that detach were typed
	serves                     flagged // the job is a service, and answers
	passing                    sync.Mutex
	suspended                  bool // by a TSTP that was passed on; passing guards it
	interrupted                atomic.Bool
	troubled                   atomic.Bool // output may have been out of reach for a while
	outcome                    *rendezvous.Outcome
	rejected                   bool                   // no rank was started, and none will be; for who called run
	onlyOn                     atomic.Pointer[string] // the one host that has the job recorded; empty where others have
	world                      int

	// first is the generation whose output is read first; later takes those that
	// follow it. heard and stage are the story's own.
	first atomic.Uint64
	later chan launcher.Generation // has room for one: the latest
	lost  chan struct{}            // has room for one: a leader was, and with it what it was asked
	heard launcher.Generation
	stage string
	head  string // rank 0's address where the ranks meet

	machines int             // of the last plan
	begun    map[string]bool // those of them that have started a rank; the story's own
}

// flagged is a fact that becomes true once.
type flagged struct {
	once sync.Once
	c    chan struct{}
}

func (f *flagged) set()     { f.once.Do(func() { close(f.c) }) }
func (f *flagged) is() bool { return closed(f.c) }
func newFlagged() flagged   { return flagged{c: make(chan struct{})} }
func closed[T any](c <-chan T) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// run returns the exit code, or an error of sparkrun's own.
func (f *follower) run(ctx context.Context) (int, error) {
	f.begun = map[string]bool{}
	f.accepted, f.started, f.running, f.reading, f.left = newFlagged(), newFlagged(), newFlagged(), newFlagged(), newFlagged()
	f.serves = newFlagged()
	f.later, f.lost = make(chan launcher.Generation, 1), make(chan struct{}, 1)
	if f.attached {
		f.accepted.set()
		if f.heard > 0 {
			f.started.set()
		}
		if f.runs {
			f.running.set()
			f.reading.set()
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() { cancel(); joined(&wg, goroutinesJoined) }()

	told := make(chan error, 1)
	wg.Go(func() { told <- f.story(ctx) })

	read := make(chan error, 1)
	reading := false
	stopReading, stopped := context.CancelFunc(func() {}), false
	var next launcher.Generation // to be read when the reading has stopped
	startReading := func(gen launcher.Generation) {
		readCtx, stop := context.WithCancel(ctx)
		reading, stopReading, stopped, next = true, stop, false, 0
		// Of outages the story tells: one line is enough.
		trouble := outage{say: func(string) { f.troubled.Store(true) }}
		r := outputReader{gangs: f.gangs, out: f.out, job: string(f.spec.ID), ranks: f.only, generation: gen, follow: true, launched: true, outage: trouble}
		if gen == launcher.Generation(f.first.Load()) {
			r.from = f.from
		}
		wg.Go(func() { read <- r.run(readCtx) })
	}
	defer func() { stopReading() }()

	started, running, serves := f.started.c, f.running.c, f.serves.c
	if f.attached || f.detach {
		serves = nil
	}
	if f.detach {
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
		startReading(launcher.Generation(f.first.Load()))
		if f.in != nil {
			go f.feed(ctx) // not joined: a read of a terminal ends with the process
		}
	}
	goOn := func(gen launcher.Generation) {
		if f.detach {
			return
		}
		next, stopped = gen, true
		stopReading() // what its nodes had has come, or they are away
		if !reading {
			f.out.restart()
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
			f.say(fmt.Sprintf("job %[1]s goes on by itself: `sparkrun logs -f %[1]s` follows it, `sparkrun stop %[1]s` ends it", f.spec.ID))
			return 0, nil
		case <-f.left.c:
			f.say(fmt.Sprintf("detached: job %[1]s goes on; `sparkrun attach %[1]s` comes back to it, `sparkrun stop %[1]s` ends it", f.spec.ID))
			return 0, nil
		case gen := <-f.later:
			goOn(gen)
		case <-f.lost:
			in.askAgain(ctx)
		case err := <-read:
			reading = false
			if gen := next; gen != 0 && !errors.Is(err, errOutput) {
				f.out.restart()
				startReading(gen)
				continue
			}
			switch {
			case errors.Is(err, errOutput):
				return f.outputBroken(err, ended), nil
			case err != nil && !stopped:
				f.say(fmt.Sprintf("the output cannot be read: %v; `sparkrun logs %s` tries again", err, f.spec.ID))
			}
			if ended {
				return f.finish(ctx, in.signal), nil
			}
		case err := <-told:
			switch {
			case f.detach && f.running.is() && in.count == 0: // it ran: how it went on is not waited for
				return 0, nil
			case errors.Is(err, errOutput):
				return f.outputBroken(err, ended), nil
			case errors.Is(err, errInterrupted):
				return exitOf(in.signal), err
			case err != nil:
				if errors.Is(err, node.ErrLoggedOut) && f.accepted.is() {
					f.say(f.goesOn())
				}
				return launcher.ExitOwnFailure, err
			}
			// A short job's whole story comes at once: what was told before the end comes first.
			if started != nil && f.started.is() {
				begin()
			}
			select {
			case gen := <-f.later:
				goOn(gen)
			default:
			}
			ended, f.rejected = true, f.outcome.End == rendezvous.Rejected
			if !reading || f.outcome.End == rendezvous.Rejected {
				return f.finish(ctx, in.signal), nil
			}
			// The output is a step behind. It is waited for as long as it moves.
			quiet := time.NewTicker(time.Second)
			defer quiet.Stop()
			tick, lastTaken, lastMoved = quiet.C, f.out.taken.Load(), time.Now()
		case now := <-tick:
			if n := f.out.taken.Load(); n != lastTaken || f.out.busy.Load() {
				lastTaken, lastMoved = n, now
			}
			if now.Sub(lastMoved) >= quietAfterEnd {
				tick, stopped = nil, true
				f.say(fmt.Sprintf("some output is out of reach; `sparkrun logs %s` tries again", f.spec.ID))
				stopReading()
			}
		case sig := <-f.signals:
			switch {
			case slices.Contains(forwarded, sig):
				wg.Go(func() { f.forward(ctx, sig.(syscall.Signal)) })
			case ended: // only our own reader is slow
				return cmp.Or(f.outcome.ExitCode, exitOf(sig)), nil
			case sig == syscall.SIGHUP && !f.standalone && in.count > 0:
				f.say(fmt.Sprintf("hung up: job %s was asked to end; `sparkrun ps` shows whether it has", f.spec.ID))
				return exitOf(sig), nil
			case sig == syscall.SIGHUP && !f.standalone:
				f.resume(ctx)
				f.say("hung up: " + f.goesOn())
				return exitOf(sig), nil
			case !in.take(ctx, sig):
				f.say(fmt.Sprintf("not waiting any longer; `sparkrun ps` shows whether job %s has ended", f.spec.ID))
				return exitOf(in.signal), nil
			}
		}
	}
}

// goesOn says what becomes of a job that we turn away from.
func (f *follower) goesOn() string {
	switch {
	case f.standalone:
		return "the job ends with it"
	case !f.accepted.is():
		return fmt.Sprintf("`sparkrun ps` tells whether job %s was started", f.spec.ID)
	}
	return fmt.Sprintf("job %[1]s goes on; `sparkrun logs -f %[1]s` follows it, `sparkrun stop %[1]s` ends it", f.spec.ID)
}

// outputBroken: the reader of our output has gone, which says nothing about the
// job. Exit like a program that SIGPIPE killed, as `yes | head` does.
func (f *follower) outputBroken(err error, ended bool) int {
	if !ended {
		f.say(fmt.Sprintf("%v: %s", err, f.goesOn()))
	}
	if errors.Is(err, syscall.EPIPE) {
		return exitOf(syscall.SIGPIPE)
	}
	return launcher.ExitOwnFailure
}

// finish prints what is left and draws the exit code from the outcome.
func (f *follower) finish(ctx context.Context, sig os.Signal) int {
	o := *f.outcome
	if f.troubled.Load() && f.started.is() && !f.detach {
		f.readAgain(ctx)
	}
	broken := f.out.flush()
	switch {
	case o.End == rendezvous.Completed && broken != nil:
		return f.outputBroken(broken, true)
	case o.End == rendezvous.Completed:
		return 0
	case o.End == rendezvous.Stopped && sig != nil:
		f.say("stopped: every rank has ended")
		return exitOf(sig)
	}
	f.say(sentence(o, f.spec, f.world))
	if r := o.Root; r != nil && !f.detach { // its output has just been read
		bare := *r
		bare.Exit.Last = ""
		o.Root = &bare
	}
	for _, line := range why(o, f.spec) {
		f.say(line)
	}
	return cmp.Or(o.ExitCode, launcher.ExitOwnFailure)
}

// readAgain fetches what a node that was away for a while may have been left
// out with. What was printed is not printed again.
func (f *follower) readAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quietAfterEnd/2)
	defer cancel()
	r := outputReader{gangs: f.gangs, out: f.out, job: string(f.spec.ID), ranks: f.only, launched: true, from: f.from, outage: outage{say: f.say}}
	if err := r.run(ctx); err != nil && !errors.Is(err, errOutput) {
		f.say(fmt.Sprintf("some output may be missing: `sparkrun logs %s` tries again", f.spec.ID))
	}
}

// sentence is the last line: which rank, which host, why.
func sentence(o rendezvous.Outcome, spec launcher.Spec, world int) string {
	cause := o.Cause
	if cause == "" {
		cause = "no cause was recorded"
	}
	switch {
	case o.End == rendezvous.Stopped:
		return fmt.Sprintf("job %s was ended: %s", spec.ID, cause)
	case o.End == rendezvous.Rejected && !strings.Contains(cause, "no rank was started"):
		return cause + "; no rank was started"
	case o.End == rendezvous.Failed && world > 1 && spec.OnFailure == launcher.ContinueOnFailure && o.ExitCode != launcher.ExitTimedOut:
		return cause + "; the other ranks were left to end by themselves"
	case o.End == rendezvous.Failed && world > 1:
		return cause + "; the gang was ended"
	}
	return cause
}

// interrupts turns the user's signals into requests: end, kill, leave.
type interrupts struct {
	f      *follower
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
		in.f.say(fmt.Sprintf("stopping; the ranks have %s (again to kill)", in.f.spec.WithDefaults().Grace))
		in.stop(ctx, nil)
	case 2:
		in.f.say("killing (again to leave without waiting)")
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
		var again pause
		for {
			_, err := f.gangs.Stop(ctx, wire.StopRequest{Job: string(f.spec.ID), Grace: grace})
			switch {
			case err == nil, ctx.Err() != nil, errors.Is(err, rendezvous.ErrJobEnded):
				return
			case errors.Is(err, rendezvous.ErrNoJob) && !f.accepted.is(): // not yet
			case !passing(err):
				f.say(fmt.Sprintf("stop job %s: %v", f.spec.ID, err))
				return
			}
			if again.wait(ctx) != nil {
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
