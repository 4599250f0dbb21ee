// Package lead decides where a job goes, when its ranks may start, when they must end,
// and what is recorded of it. A leadership is one Leader: opened when it begins, closed
// when it ends. Its end leaves nothing in memory and changes nothing on a node.
//
// It must not talk to nodes itself (orders go out through Config.Send, facts come in by
// NodeUp, NodeDown and Event) and must not decide anything by gossip.
package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Recorder writes the replicated record. Its calls return once the entry is committed,
// with the record's own errors, or with an error if the outcome is unknown; in that case
// the leadership is over.
type Recorder interface {
	Plan(ctx context.Context, job rendezvous.Job) error
	Stop(ctx context.Context, stop rendezvous.JobStop) error
	Verdict(ctx context.Context, end rendezvous.JobEnd) error
	End(ctx context.Context, end rendezvous.JobEnd) error
}

// Others tells about the cluster's other machines what their control streams do not.
type Others interface {
	// Answers looks for any sign of life of a node whose control stream is down: in
	// gossip and on its fabric addresses. It takes a few seconds at most.
	Answers(ctx context.Context, members rendezvous.Roster, node rendezvous.Place) bool
	// Unheard names the hosts that may have taken the cluster over while this machine was
	// off: it has not heard them since, and nobody has marked them dead. While there are
	// any, a job that an earlier leader recorded begins no generation and does not give
	// up these hosts for their silence. It is called each second.
	Unheard() []string
	// OnlyHere waits at most a second until another machine has what was recorded, and
	// names this host if none has.
	OnlyHere(ctx context.Context) string
}

// Config of one leadership. All fields but Others, Fabric and Hold are needed.
type Config struct {
	Fence    launcher.Fence     // (epoch, term) of this leadership, in every order
	Record   *rendezvous.Record // read only here
	Recorder Recorder
	// Send queues an order on a node's control stream and never blocks; what is sent
	// while no stream is open is lost, and is sent again after NodeUp.
	Send func(launcher.NodeID, launcher.Order)
	// Others nil: only streams tell about other machines, none of them can have taken over, and all have what is
	// recorded.
	Others Others
	// Fabric chooses the nodes of a job and checks their links; nil: there is no
	// fabric, and every job meets on management.
	Fabric Fabric
	// Hold says why no generation can begin now, because every node would refuse it
	// (their addresses are being changed); empty if one can. It is called each second.
	// Nil holds nothing back.
	Hold   func() string
	Logger *slog.Logger
}

// ErrOver tells a caller that this leadership ended during its request. What it asked for
// may or may not have been done: ask the next leader with the same id.
var ErrOver = errors.New("the leader changed")

// ErrUnknownRetry refuses a job whose id was made before a forced recovery, which may
// have lost the job: starting it could start it twice.
var ErrUnknownRetry = errors.New("the cluster was recovered since this job was submitted and does not know it")

// Up is what a node says of itself when its control stream opens.
type Up struct {
	Boot      string
	Version   string
	Protocol  int // rendezvous.Protocol of its build
	Inventory envgen.Inventory
	GPUs      int   // NVIDIA's; 0 where none is known
	Memory    int64 // that jobs may take, in bytes; 0: it is not known
	Ledger    []launcher.LedgerEntry
	Leases    bool // it ends ranks whose lease runs out
	Blank     bool // see rendezvous.Member
}

type member struct {
	ready     bool
	since     time.Time
	boot      string
	version   string
	protocol  int
	inventory envgen.Inventory
	gpus      int
	memory    int64                   // for jobs, in bytes; 0: not known
	ahead     time.Duration           // how far its clock is ahead of ours; 0 until it was measured
	retired   bool                    // gets no ranks any more
	stuck     map[launcher.Key]string // what was killed there and does not exit
	leases    bool
	echo      echo                  // the last one that it was given
	strays    map[launcher.Key]bool // attempts that run there and are not in the record
	blank     bool                  // it has lost its copy of the record, and its vote
}

// Leader is one leadership. Its methods may be called from any goroutine and
// at any time; after its context has ended they return ErrOver.
type Leader struct {
	cfg   Config
	ctx   context.Context
	began time.Time
	index uint64 // of the record then: whoever joined after it did so under this leadership

	mu      sync.Mutex
	members map[launcher.NodeID]*member
	runs    map[launcher.JobID]*run
	derived derived // the last topology
	swept   map[sweeping]bool
	changed chan struct{}  // closed and replaced when a member's state changes
	over    bool           // no run may start any more
	running sync.WaitGroup // counts the loops of runs
	counts  Counts

	backends backends
}

// Counts are of this leadership.
type Counts struct {
	Ended map[rendezvous.End]int64 // jobs and services, by how
	Again int64                    // attempts that followed one that had failed
}

// Counts are those until now.
func (l *Leader) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Counts{maps.Clone(l.counts.Ended), l.counts.Again}
}

// Open begins a leadership and adopts every unfinished job of the record. It ends with
// ctx; Close then waits for what it started.
func Open(ctx context.Context, cfg Config) *Leader {
	l := &Leader{
		cfg: cfg, ctx: ctx, began: time.Now(),
		members: map[launcher.NodeID]*member{},
		runs:    map[launcher.JobID]*run{},
		swept:   map[sweeping]bool{},
		counts:  Counts{Ended: map[rendezvous.End]int64{}},
		changed: make(chan struct{}),
	}
	_, _, l.index = cfg.Record.Cluster()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, job := range cfg.Record.Jobs() {
		if job.Outcome == nil {
			l.adopt(job)
		} else {
			l.offerFailed(job)
		}
	}
	return l
}

// Close waits until every loop of this leadership has returned. The context of Open must
// have ended.
func (l *Leader) Close() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.running.Wait()
}

// drive starts the loop of a run. l.mu is held.
func (l *Leader) drive(r *run) {
	l.runs[r.job.Spec.ID] = r
	l.running.Add(1)
	go func() {
		defer l.running.Done()
		r.loop(l.ctx)
	}()
}

// Launch places, records and starts a job; a job that is known already is not started
// again. It returns once the job is recorded: from then on any leader drives it. Follow
// it with Watch.
func (l *Leader) Launch(ctx context.Context, spec launcher.Spec) error {
	spec = spec.WithDefaults()
	if err := spec.Validate(); err != nil {
		return err
	}
	r, err := l.admitSettled(ctx, spec)
	if err != nil || r == nil {
		return err
	}
	select {
	case <-r.planned:
		if r.planErr != nil && l.ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ErrOver, r.planErr)
		}
		return r.planErr
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return ErrOver
	}
}

const (
	// settle is how long members have to open their control streams to a new leader before
	// one of them counts as away.
	settle = 3 * time.Second
	// heardWithin is how long two cable probes take at most to hear each other, once frames
	// pass: after a cable is back its ends may have had a link all along, as behind switches.
	heardWithin = 4500 * time.Millisecond
)

// admitSettled admits a job; where it would be refused for what may be about to change, it
// waits for that change first.
func (l *Leader) admitSettled(ctx context.Context, spec launcher.Spec) (*run, error) {
	asked := time.Now()
	settled := time.NewTimer(settle)
	defer settled.Stop()
	for {
		_, changed := l.Roster()
		r, err := l.admit(spec)
		left := time.Until(l.settled(err, asked))
		if left <= 0 {
			return r, err
		}
		settled.Reset(left)
		select {
		case <-changed:
		case <-settled.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.ctx.Done():
			return nil, ErrOver
		}
	}
}

// settled is when a refusal is final: members have come to a new leader, and ports have
// heard their neighbours.
func (l *Leader) settled(refusal error, asked time.Time) time.Time {
	switch {
	case errors.Is(refusal, rendezvous.ErrUnheard):
		return asked.Add(heardWithin)
	case errors.Is(refusal, rendezvous.ErrCannotPlace) || errors.Is(refusal, rendezvous.ErrFabricUnfit):
		if !l.complete() {
			return l.began.Add(settle)
		}
	}
	return time.Time{}
}

// complete tells whether every member is there.
func (l *Leader) complete() bool {
	roster, _ := l.Roster()
	return !slices.ContainsFunc(roster, func(m rendezvous.Member) bool { return !m.Ready })
}

// admit finds the run of a job or places a new one; no run and no error means that the
// job has ended already.
func (l *Leader) admit(spec launcher.Spec) (*run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.ctx.Err() != nil {
		return nil, ErrOver
	}
	if r := l.runs[spec.ID]; r != nil {
		return r, nil
	}
	if job, known := l.cfg.Record.Job(spec.ID); known {
		if job.Outcome == nil {
			return nil, ErrOver // it has no run here: recording its plan seemed to have failed
		}
		return nil, nil
	}
	minted := launcher.Epoch{N: spec.Epoch, By: spec.EpochBy}
	switch c := minted.Compare(l.cfg.Fence.Epoch); {
	case spec.Epoch == 0 || c == 0:
	case c < 0:
		return nil, fmt.Errorf("job %s: %w: see `sparkrun ps --all` before launching it anew", spec.ID, ErrUnknownRetry)
	default: // the cluster was taken over, and this leader does not know yet
		return nil, fmt.Errorf("job %s was submitted to a later epoch of the cluster than this leader's: %w", spec.ID,
			ErrOver)
	}
	var unfinished []launcher.Spec
	for _, r := range l.runs {
		unfinished = append(unfinished, r.job.Spec)
	}
	if err := rendezvous.MayLaunch(spec, unfinished); err != nil {
		return nil, err
	}
	plan, findings, err := l.placeJob(spec, nil)
	busy := errors.As(err, new(*busyError))
	if busy && spec.Wait || (busy || err == nil) && spec.OnDemand() != nil {
		r := newRun(l, rendezvous.Job{Spec: spec, Planned: time.Now()})
		r.fresh = true
		l.drive(r)
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	if spec.Stage(launcher.StageBefore) != nil {
		plan = plan.Single(launcher.StageBefore, plan.Generation)
	}
	r := freshRun(l, rendezvous.Job{Spec: spec, Plan: plan, Planned: time.Now()})
	r.findings = findings
	l.drive(r)
	return r, nil
}

// Stop ends a job: TERM, grace, KILL. Called again, it may shorten the grace. It returns once that is recorded: no
// leader begins another generation then. Watch reports the end.
func (l *Leader) Stop(ctx context.Context, id launcher.JobID, grace time.Duration, reason string) error {
	return l.StopBy(ctx, id, rendezvous.Stop{Grace: grace, Reason: reason})
}

// StopBy is Stop, with INT first where the request is an interrupt.
func (l *Leader) StopBy(ctx context.Context, id launcher.JobID, asked rendezvous.Stop) error {
	for {
		l.mu.Lock()
		r := l.runs[id]
		over := l.over || l.ctx.Err() != nil
		l.mu.Unlock()
		if over {
			return fmt.Errorf("stop job %s: %w", id, ErrOver)
		}
		if r == nil {
			switch job, known := l.cfg.Record.Job(id); {
			case !known:
				return fmt.Errorf("stop job %s: %w", id, rendezvous.ErrNoJob)
			case job.Outcome != nil:
				return fmt.Errorf("stop job %s: %w", id, rendezvous.ErrJobEnded)
			}
			return fmt.Errorf("stop job %s: %w", id, ErrOver) // as in admit
		}
		answer := make(chan error, 1)
		r.post(func() { answer <- r.stop(asked) })
		select {
		case err := <-answer:
			return err
		case <-r.gone: // before or after it read this: look again
		case <-ctx.Done():
			return fmt.Errorf("stop job %s: %w", id, ctx.Err())
		case <-l.ctx.Done():
			return fmt.Errorf("stop job %s: %w", id, ErrOver)
		}
	}
}

// Watch passes the events of a job to fn from the beginning, as far as this leadership
// knows them, until the job or ctx has ended, or fn fails.
func (l *Leader) Watch(ctx context.Context, id launcher.JobID, fn func(rendezvous.Progress) error) error {
	l.mu.Lock()
	r := l.runs[id]
	l.mu.Unlock()
	if r != nil {
		return r.events.follow(ctx, l.ctx, fn)
	}
	job, known := l.cfg.Record.Job(id)
	switch {
	case !known && l.ctx.Err() == nil:
		return fmt.Errorf("job %s: %w", id, rendezvous.ErrNoJob)
	case !known || job.Outcome == nil:
		return ErrOver // an unfinished job has a run unless this leadership has ended
	}
	if err := fn(rendezvous.Progress{Step: rendezvous.StepPlanned, Time: job.Planned, Job: id,
		Plan: &job.Plan}); err != nil {
		return err
	}
	return fn(rendezvous.Progress{Step: rendezvous.StepEnded, Time: job.Outcome.At, Job: id, Outcome: job.Outcome})
}

// Jobs gives every job of the record with its state.
func (l *Leader) Jobs() []rendezvous.JobStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	jobs := l.cfg.Record.Jobs() // never older than the runs, which begin a generation once it is recorded
	out := make([]rendezvous.JobStatus, len(jobs))
	line := l.queue()
	for i, j := range jobs {
		out[i] = rendezvous.StatusOf(j)
		r := l.runs[j.Spec.ID]
		switch {
		case r == nil, j.Outcome != nil:
		case r.job.Plan.Generation == j.Plan.Generation:
			r.status(&out[i])
			out[i].Line = slices.Index(line, r) + 1
		case out[i].State == rendezvous.StatePlanned:
			// This generation was just recorded; its run still shows the one before.
			out[i].State = rendezvous.StateStarts
		}
	}
	return out
}

// letGo counts and forgets a run whose outcome is recorded, and tells the nodes to forget it. Both
// happen under one lock: a node that comes back is told here, or its attempt is swept.
func (l *Leader) letGo(r *run, end rendezvous.End) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.forgetAll()
	l.counts.Ended[end]++
	l.drop(r)
}

// drop forgets a run. l.mu is held.
func (l *Leader) drop(r *run) {
	if l.runs[r.job.Spec.ID] == r {
		delete(l.runs, r.job.Spec.ID)
		l.backends.remove(r.job.Spec.ID)
	}
	l.poke()
}
