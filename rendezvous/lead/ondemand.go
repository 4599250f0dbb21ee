package lead

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A service on demand sleeps between two generations, and before the first one. Asleep it holds no machine and is in no
// queue. The record has that its ranks are gone, so that a later leader need not ask machines that may be off by then.
// Who needs it is known to members' gateways, which tell the leader. Who gets no place makes those go that were used
// least recently, once their --min-up is over.

// demand is a run's part in that; guarded by l.mu, written by the run's own loop.
type demand struct {
	asleep bool
	woken  time.Time // when it was asked for; zero: it has been placed since, or never was
	up     time.Time // since when it has been ready in this generation, or under this leader; zero: it is not
	used   time.Time // by the last request that this leader knows of
	leaves bool      // it is being ended, to sleep
}

const (
	asleepText = "its first request at the gateway starts it"
	// wokenFor is how long a service stays in the queue after somebody has asked for it. Gateways ask each 2 s as long as
	// requests wait.
	wokenFor = time.Minute
)

// Use tells of a service's requests at a member. rendezvous.ErrAsleep: there is no place for a service that one waits for,
// and none that could be made, or it was refused just now.
func (l *Leader) Use(ctx context.Context, from launcher.NodeID, u rendezvous.ServiceUse) error {
	return l.ask(ctx, u.Job, func(r *run) error {
		if n := u.UnderWay; n != nil && r.moving != nil {
			if r.moving.busy[from] = *n > 0; *n == 0 {
				delete(r.moving.busy, from)
			}
		}
		if r.job.Spec.OnDemand() == nil {
			return nil
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if u.Ago != nil || u.Wake {
			var ago time.Duration
			if u.Ago != nil {
				ago = max(0, *u.Ago)
			}
			if at := time.Now().Add(-ago); at.After(r.used) {
				r.used = at
			}
		}
		if !r.idle() || !u.Wake || r.noMore {
			return nil
		}
		if r.asleep {
			if time.Now().Before(r.wait.from) {
				return fmt.Errorf("%w: %s", rendezvous.ErrAsleep, plain.Text(r.wait.done.Cause))
			}
			if _, _, err := l.placeJob(r.job.Spec, r); err != nil && time.Since(l.began) >= settle {
				if _, err := l.room(r, time.Time{}); err != nil {
					why := err.Error()
					if busy := new(busyError); errors.As(err, &busy) { // its remedy is for who launches
						why = busy.why
					}
					return fmt.Errorf("%w: no room: %s", rendezvous.ErrAsleep, plain.Text(why))
				}
			}
			r.asleep, r.queued, r.woken = false, true, time.Now()
		}
		r.wait.until = time.Now().Add(wokenFor)
		return nil
	})
}

// idle tells whether a run sleeps, or waits in the queue: it holds nothing, and what its plan says of nodes is past.
func (r *run) idle() bool { return r.asleep || r.queued }

// sleep has a run that waits between two generations do so until somebody asks for it.
func (r *run) sleep(why string) {
	r.l.mu.Lock()
	r.demand, r.queued, r.pending = demand{asleep: true}, false, nil
	r.l.poke() // others may have its place
	r.l.mu.Unlock()
	r.wait.until, r.wait.look, r.placements = time.Time{}, time.Time{}, nil
	r.viewMu.Lock()
	r.started, r.serving = nil, serving{}
	r.viewMu.Unlock()
	r.waits(why)
	r.publish()
}

// recordAsleep has later leaders know that a generation's ranks are gone. If that fails they find it out by themselves.
func (r *run) recordAsleep(out rendezvous.Outcome) {
	out.Asleep, out.Gone = true, true
	if err := r.l.cfg.Recorder.Verdict(r.l.ctx, rendezvous.JobEnd{Key: r.job.Key(), Outcome: out}); err != nil {
		r.l.cfg.Logger.Warn("record that a service sleeps", "job", r.job.Spec.ID, "error", err)
	}
}

// sleepsAfter tells whether a service sleeps once a generation has ended so. What was refused sleeps, too: it would hold
// its place for as long as it is, whoever wants that.
func sleepsAfter(spec launcher.Spec, out rendezvous.Outcome) bool {
	return spec.OnDemand() != nil && (out.Asleep || out.AllLost || out.End == rendezvous.Rejected)
}

// begunAsleep is what a run of a recorded job waits for if it sleeps; nil: it does not.
func begunAsleep(job rendezvous.Job) *waiting {
	switch v := job.Verdict; {
	case job.Spec.OnDemand() == nil:
	case job.Plan.Generation == 0:
		return &waiting{}
	case v != nil && v.Asleep && v.Gone:
		if next, more := job.Next(*v); more {
			return &waiting{next: next, done: *v}
		}
	}
	return nil
}

// becameReady notes since when a service on demand can be ended again.
func (r *run) becameReady() {
	if r.job.Spec.OnDemand() == nil || !r.wasReady() || !r.up.IsZero() {
		return
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	r.up = time.Now()
	r.l.poke() // somebody may wait for it to be ready, and then to go
}

// mayGoAt is when a service on demand may be ended to make room; zero: it is not ready, or is being ended.
func (r *run) mayGoAt() time.Time {
	if r.up.IsZero() || r.leaves {
		return time.Time{}
	}
	return r.up.Add(r.job.Spec.OnDemand().MinUp)
}

// idleAt is when a service on demand sleeps if no further request comes; zero: it does not.
func (r *run) idleAt() time.Time {
	at := r.mayGoAt()
	if at.IsZero() || r.beingMoved() {
		return time.Time{}
	}
	idle := r.up
	if r.used.After(idle) {
		idle = r.used
	}
	if idle = idle.Add(r.job.Spec.OnDemand().Idle); idle.After(at) {
		return idle
	}
	return at
}

// idles begins the end of a service that nobody needs.
func (r *run) idles(now time.Time) {
	if at := r.idleAt(); !at.IsZero() && !now.Before(at) {
		r.leave(fmt.Sprintf("no request came for %s (--idle)", r.job.Spec.OnDemand().Idle))
	}
}

// leave begins its end as for a move: requests under way may end.
func (r *run) leave(why string) {
	if r.beingMoved() || r.up.IsZero() {
		return
	}
	r.l.mu.Lock()
	r.leaves = true
	r.l.mu.Unlock()
	r.moveFor(rendezvous.Outcome{End: rendezvous.Failed, Cause: why, Asleep: true})
}

// makeRoom begins to end others for a run that has been asked for, and gives when to look again; zero: once something
// changes. l.mu is held.
func (l *Leader) makeRoom(r *run) (again time.Time) {
	now := time.Now()
	gone, err := l.room(r, now)
	if err != nil { // some may go later
		for _, other := range l.runs {
			if at := other.mayGoAt(); at.After(now) && (again.IsZero() || at.Before(again)) {
				again = at
			}
		}
		return again
	}
	for _, other := range gone {
		if !other.leaves {
			why := "it makes room for " + describe(r.job)
			other.post(func() { other.leave(why) })
		}
	}
	return time.Time{}
}

// room gives the services on demand without which a run has a place: as few as do, the least recently used first. They
// may go by now; zero: at any time. l.mu is held.
func (l *Leader) room(r *run, now time.Time) (gone []*run, err error) {
	var may []*run
	for _, other := range l.runs {
		at := other.mayGoAt()
		switch {
		case other == r || other.job.Spec.OnDemand() == nil || other.asleep:
		case other.leaves:
			gone = append(gone, other)
		case now.IsZero() || !at.IsZero() && !at.After(now):
			may = append(may, other)
		}
	}
	slices.SortFunc(may, func(a, b *run) int { return cmp.Or(a.used.Compare(b.used), cameBefore(a, b)) })
	_, _, err = l.placeJob(r.job.Spec, r, gone...)
	for i := 0; err != nil && i < len(may); i++ {
		gone = append(gone, may[i])
		_, _, err = l.placeJob(r.job.Spec, r, gone...)
	}
	if err != nil {
		return nil, err
	}
	for i := len(gone) - 1; i >= 0; i-- { // those that are not in the way stay
		without := slices.Delete(slices.Clone(gone), i, i+1)
		if _, _, err := l.placeJob(r.job.Spec, r, without...); err == nil {
			gone = without
		}
	}
	return gone, nil
}
