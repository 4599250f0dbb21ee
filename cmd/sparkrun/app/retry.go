package app

import (
	"context"
	"errors"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Passing tells errors that another attempt may not meet: the agent or the leader went
// away, and another will come. A call cancelled by the other side is one too, since an
// agent that is being stopped ends its streams that way.
func Passing(err error) bool {
	if errors.Is(err, remote.ErrLoggedOut) {
		return false
	}
	for _, is := range []error{
		wire.ErrRetry, wire.ErrNoLeader, wire.ErrUnreachable, node.ErrNoAgent, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// Bounds of the wait between attempts. The first wait is short since most failures pass
// at once; the last adds to the two seconds that a new leader takes, and bounds the load
// when many wait.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 300 * time.Millisecond
)

// Pause is the growing wait between the attempts of one call.
type Pause struct{ next time.Duration }

// Reset starts again with the shortest wait.
func (p *Pause) Reset() { p.next = 0 }

// Wait sleeps longer each time; it returns early with ctx's error.
func (p *Pause) Wait(ctx context.Context) error {
	p.next = min(max(2*p.next, firstPause), lastPause)
	t := time.NewTimer(p.next)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Outage prints what is wrong once it has lasted, and when it is over. A change of
// leaders takes a second, and a line for every attempt would be noise.
type Outage struct {
	Say   func(string)
	since time.Time // of the first failure in a row
	said  bool
}

const outageSilence = 500 * time.Millisecond

// Failed notes a failure; an empty sentence is never printed.
func (o *Outage) Failed(sentence string) {
	if o.since.IsZero() {
		o.since = time.Now()
	}
	if !o.said && sentence != "" && time.Since(o.since) >= outageSilence {
		o.said = true
		o.Say(sentence)
	}
}

// Over notes a success.
func (o *Outage) Over() {
	if o.said {
		o.Say("following again")
	}
	o.since, o.said = time.Time{}, false
}

// Lasted tells how long it has been failing.
func (o *Outage) Lasted() time.Duration {
	if o.since.IsZero() {
		return 0
	}
	return time.Since(o.since)
}

// Patience is how long the cluster may take to accept a job.
const Patience = 15 * time.Second

// Patiently asks until there is a leader, at most for Patience.
func Patiently[Res any](ctx context.Context, ask func() (Res, error)) (Res, error) {
	var again Pause
	for end := time.Now().Add(Patience); ; {
		res, err := ask()
		if !errors.Is(err, wire.ErrRetry) || time.Now().After(end) || again.Wait(ctx) != nil {
			return res, err
		}
	}
}
