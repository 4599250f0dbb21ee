// Package follow decides how one launch is followed to its end: its event log, its ranks'
// output, input and terminal, the user's signals, and the exit code.
//
// It must not make a job's spec or choose a cluster: both are given to it.
package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Bounds on waiting. Once a job is recorded there are none: it continues without us, and
// only its user may leave it.
const (
	LeaderlessWait   = time.Second      // of app.Patience, while there is no leader and waiting does not help
	quietAfterEnd    = 10 * time.Second // for output that arrives after the job's end
	goroutinesJoined = time.Second      // when leaving, for a write to a stuck terminal
	hangupWithin     = time.Second      // after a write to a terminal that was closed
)

// Follower follows one launch from its request to its exit code.
type Follower struct {
	Agent    *wire.Client
	In       io.Reader // the ranks' input; nil: none
	Terminal *Terminal // of In, where a rank has a terminal; nil: none
	Keys     []byte    // that detach from Terminal
	Only     []int     // ranks whose output is shown; none: all
	InputAt  int64     // offset of the first byte of In
	InputOf  []int     // only these of the ranks with an input; none: all

	// Others: the job is another user's, who alone may end it: a signal leaves it.
	Others bool
	// Attached: the job was launched earlier, and generation Heard of it is known; Runs:
	// all its ranks run. From is where its output begins.
	Attached, Runs bool
	From           launcher.From
	Spec           launcher.Spec
	Out            *Printer
	Say            func(string)
	Signals        <-chan os.Signal
	Standalone     bool // the job ends with this process
	Detach         bool // return when it runs
	Leader         string

	accepted, started, running Flagged
	reading                    Flagged // all ranks with an input run
	left                       Flagged // the user has typed Keys
	serves                     Flagged // the job is a service and answers
	passing                    sync.Mutex
	suspended                  bool // by a TSTP that was passed on; guarded by passing
	interrupted                atomic.Bool
	troubled                   atomic.Bool // some output may have been unreachable
	Outcome                    *rendezvous.Outcome
	Rejected                   bool                   // no rank was started or will be; for Run's caller
	OnlyOn                     atomic.Pointer[string] // the only host that recorded the job; empty: others too
	World                      int

	// First is the generation whose output is read first; later passes on those that
	// follow. Only events uses Heard and stage.
	First atomic.Uint64
	later chan launcher.Generation // buffer of one: the latest
	lost  chan struct{}            // buffer of one: a leader was lost, and perhaps what it was asked
	Heard launcher.Generation
	stage string
	head  string // rank 0's address, where the ranks meet

	machines int             // of the last plan
	begun    map[string]bool // machines that have started a rank; only for events
}

// Flagged is a fact that becomes true once. Its channel is closed then.
type Flagged struct {
	once sync.Once
	c    chan struct{}
}

// Set makes the fact true.
func (f *Flagged) Set() { f.once.Do(func() { close(f.c) }) }

// Is tells whether the fact is true.
func (f *Flagged) Is() bool { return closed(f.c) }

// NewFlagged makes a fact that is not true yet.
func NewFlagged() Flagged { return Flagged{c: make(chan struct{})} }

func closed[T any](c <-chan T) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Run returns the exit code, or an error of sparkrun itself.
func (f *Follower) Run(ctx context.Context) (int, error) {
	f.prepare()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() { cancel(); joined(&wg, goroutinesJoined) }()
	r := run{f: f, wg: &wg, in: interrupts{f: f, wg: &wg}, told: make(chan error, 1),
		output: outputs{f: f, wg: &wg, read: make(chan error, 1), stop: func() {}}}
	defer r.close()
	if f.Detach { // nobody reads the output
		r.running = f.running.c
	} else {
		r.started = f.started.c
	}
	if !f.Attached && !f.Detach {
		r.serves = f.serves.c
	}
	wg.Go(func() { r.told <- f.events(ctx) })
	for {
		if e := r.next(ctx); e != nil {
			return e.code, e.err
		}
	}
}

// prepare makes the facts that become true later; for an attached job some are true
// already.
func (f *Follower) prepare() {
	f.begun = map[string]bool{}
	for _, fact := range []*Flagged{&f.accepted, &f.started, &f.running, &f.reading, &f.left, &f.serves} {
		*fact = NewFlagged()
	}
	f.later, f.lost = make(chan launcher.Generation, 1), make(chan struct{}, 1)
	if !f.Attached {
		return
	}
	f.accepted.Set()
	if f.Heard > 0 {
		f.started.Set()
	}
	if f.Runs {
		f.running.Set()
		f.reading.Set()
	}
}

// run is a Run in progress: the channels that it still waits for. A nil channel is not
// waited for.
type run struct {
	f      *Follower
	wg     *sync.WaitGroup
	in     interrupts
	output outputs

	started, running, serves <-chan struct{}
	told                     chan error // events has returned
	ended                    bool       // f.Outcome may be read now
	late                     *time.Ticker
	tick                     <-chan time.Time // of late: for output that comes after the end
	taken                    int64            // how much of it, so far
	moved                    time.Time
}

// exit is the result of a Run.
type exit struct {
	code int
	err  error
}

func (r *run) close() {
	r.output.stop()
	if r.late != nil {
		r.late.Stop()
	}
}

// next handles the next event; nil: following continues.
func (r *run) next(ctx context.Context) *exit {
	f := r.f
	select {
	case <-r.running:
		if r.running = nil; r.in.count == 0 {
			return &exit{}
		}
	case <-r.started:
		r.begin(ctx)
	case <-r.serves:
		if r.serves = nil; r.in.count > 0 { // it answers although it was asked to end: the end must come first
			return nil
		}
		if also := f.atGateway(ctx); also != "" {
			f.Say(also)
		}
		f.Say(fmt.Sprintf("job %[1]s goes on by itself: `sparkrun logs -f %[1]s` follows it, "+
			"`sparkrun stop %[1]s` ends it", f.Spec.ID))
		return &exit{}
	case <-f.left.c:
		f.Say(fmt.Sprintf("detached: job %[1]s goes on; `sparkrun attach %[1]s` comes back to it, "+
			"`sparkrun stop %[1]s` ends it", f.Spec.ID))
		return &exit{}
	case gen := <-f.later:
		r.goOn(ctx, gen)
	case <-f.lost:
		r.in.askAgain(ctx)
	case err := <-r.output.read:
		return r.readingEnded(ctx, err)
	case err := <-r.told:
		return r.eventsEnded(ctx, err)
	case now := <-r.tick:
		r.lateOutput(now)
	case sig := <-f.Signals:
		return r.signalled(ctx, sig)
	}
	return nil
}

// begin starts reading the output of the first generation and sending the input.
func (r *run) begin(ctx context.Context) {
	r.started = nil
	r.output.begin(ctx, launcher.Generation(r.f.First.Load()))
	if r.f.In != nil {
		go r.f.feed(ctx) // not joined: a read of a terminal ends only with the process
	}
}

// goOn reads the output of a later generation, if anybody reads.
func (r *run) goOn(ctx context.Context, gen launcher.Generation) {
	if !r.f.Detach {
		r.output.goOn(ctx, gen)
	}
}

// readingEnded handles the end of the reading, or its failure.
func (r *run) readingEnded(ctx context.Context, err error) *exit {
	f, o := r.f, &r.output
	o.reading = false
	switch broken := errors.Is(err, ErrOutput); {
	case o.next != 0 && !broken:
		f.Out.restart()
		o.begin(ctx, o.next)
		return nil
	case broken:
		return r.broken(ctx, err)
	case err != nil && !o.stopped:
		f.Say(fmt.Sprintf("the output cannot be read: %v; `sparkrun logs %s` tries again", err, f.Spec.ID))
	}
	if r.ended {
		return &exit{code: f.finish(ctx, r.in.signal)}
	}
	return nil
}

// broken handles an output that cannot be written. A terminal that was closed fails writes with EIO just before the
// kernel sends SIGHUP (__tty_hangup in drivers/tty/tty_io.c).
func (r *run) broken(ctx context.Context, err error) *exit {
	if errors.Is(err, syscall.EIO) {
		select {
		case sig := <-r.f.Signals:
			if e := r.signalled(ctx, sig); e != nil {
				return e
			}
		case <-time.After(hangupWithin):
		}
	}
	return &exit{code: r.f.readerGone(ctx, err, r.ended)}
}

// eventsEnded handles the end of the events: the job's end, or a failure.
func (r *run) eventsEnded(ctx context.Context, err error) *exit {
	f := r.f
	switch {
	case f.Detach && f.running.Is() && r.in.count == 0: // it ran: how it ends is not waited for
		return &exit{}
	case errors.Is(err, ErrOutput):
		return r.broken(ctx, err)
	case errors.Is(err, errInterrupted):
		return &exit{app.ExitOf(r.in.signal), err}
	case err != nil:
		if errors.Is(err, remote.ErrLoggedOut) && f.accepted.Is() {
			f.Say(f.goesOn())
		}
		return &exit{launcher.ExitOwnFailure, err}
	}
	// All events of a short job arrive together: handle those before the end first.
	if r.started != nil && f.started.Is() {
		r.begin(ctx)
	}
	select {
	case gen := <-f.later:
		r.goOn(ctx, gen)
	default:
	}
	r.ended, f.Rejected = true, f.Outcome.End == rendezvous.Rejected
	if !r.output.reading || f.Rejected {
		return &exit{code: f.finish(ctx, r.in.signal)}
	}
	// The output may be behind. Wait for it as long as it advances.
	r.late = time.NewTicker(time.Second)
	r.tick, r.taken, r.moved = r.late.C, f.Out.taken.Load(), time.Now()
	return nil
}

// lateOutput gives up on output that has not advanced for a while.
func (r *run) lateOutput(now time.Time) {
	f := r.f
	if n := f.Out.taken.Load(); n != r.taken || f.Out.busy.Load() {
		r.taken, r.moved = n, now
	}
	if now.Sub(r.moved) >= quietAfterEnd {
		r.tick, r.output.stopped = nil, true
		f.Say(fmt.Sprintf("some output is out of reach; `sparkrun logs %s` tries again", f.Spec.ID))
		r.output.stop()
	}
}

// signalled handles a signal from the user.
func (r *run) signalled(ctx context.Context, sig os.Signal) *exit {
	f := r.f
	switch {
	case slices.Contains(app.Forwarded, sig):
		r.wg.Go(func() { f.forward(ctx, sig.(syscall.Signal)) })
	case f.Attached && f.Spec.Service != nil:
		f.Say(fmt.Sprintf("left: job %[1]s goes on; `sparkrun stop %[1]s` ends it", f.Spec.ID))
		return &exit{code: app.ExitOf(sig)}
	case f.Others:
		f.Say(fmt.Sprintf("left: job %s of %s goes on", f.Spec.ID, f.Spec.User))
		return &exit{code: app.ExitOf(sig)}
	case r.ended: // only the reader of our output is slow
		return &exit{code: cmp.Or(f.Outcome.ExitCode, app.ExitOf(sig))}
	case sig == syscall.SIGHUP && !f.Standalone && r.in.count > 0:
		f.Say(fmt.Sprintf("hung up: job %s was asked to end; `sparkrun ps` shows whether it has", f.Spec.ID))
		return &exit{code: app.ExitOf(sig)}
	case sig == syscall.SIGHUP && !f.Standalone:
		f.resume(ctx)
		f.Say("hung up: " + f.goesOn())
		return &exit{code: app.ExitOf(sig)}
	case !r.in.take(ctx, sig):
		f.Say(fmt.Sprintf("not waiting any longer; `sparkrun ps` shows whether job %s has ended", f.Spec.ID))
		return &exit{code: app.ExitOf(r.in.signal)}
	}
	return nil
}

// outputs reads the output of one generation after the other.
type outputs struct {
	f       *Follower
	wg      *sync.WaitGroup
	read    chan error // a reading has ended
	reading bool
	stop    context.CancelFunc
	stopped bool
	next    launcher.Generation // to be read when the current reading has stopped
}

func (o *outputs) begin(ctx context.Context, gen launcher.Generation) {
	f := o.f
	ctx, o.stop = context.WithCancel(ctx)
	o.reading, o.stopped, o.next = true, false, 0
	// Outages are reported by events: one line is enough.
	trouble := app.Outage{Say: func(string) { f.troubled.Store(true) }}
	r := OutputReader{Agent: f.Agent, Out: f.Out, Job: string(f.Spec.ID), Ranks: f.Only, Generation: gen,
		Follow: true, launched: true, Outage: trouble}
	if gen == launcher.Generation(f.First.Load()) {
		r.From = f.From
	}
	o.wg.Go(func() { o.read <- r.Run(ctx) })
}

// goOn reads a later generation once the reading of the one before has stopped.
func (o *outputs) goOn(ctx context.Context, gen launcher.Generation) {
	o.next, o.stopped = gen, true
	o.stop() // its nodes have sent everything, or are away
	if !o.reading {
		o.f.Out.restart()
		o.begin(ctx, gen)
	}
}

// joined waits for goroutines, but at most limit: one may be stuck in a terminal, and the
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
