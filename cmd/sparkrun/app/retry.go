package app

import (
	"context"
	"errors"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Passing tells errors that another try may not meet: the agent or the leader
// went away, and others will come. A call that the other side cancelled is one:
// that is how an agent that is being stopped ends its streams.
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

// How long to wait between tries. The first is short because most troubles are
// over at once; the last adds itself to the two seconds that a new leader takes,
// and bounds the load of many that wait.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 300 * time.Millisecond
)

// Pause is the wait between tries of one call, which grows.
type Pause struct{ next time.Duration }

// Reset begins with the shortest again.
func (p *Pause) Reset() { p.next = 0 }

// Wait sleeps longer each time, and returns early with ctx's error.
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

// Outage says what is wrong once it has lasted, and when it is over: a change
// of leaders takes a second, and nobody wants to read of every try.
type Outage struct {
	Say   func(string)
	since time.Time // of the first failure in a row
	said  bool
}

const outageSilence = 500 * time.Millisecond

// Failed takes one failure; an empty sentence is never said.
func (o *Outage) Failed(sentence string) {
	if o.since.IsZero() {
		o.since = time.Now()
	}
	if !o.said && sentence != "" && time.Since(o.since) >= outageSilence {
		o.said = true
		o.Say(sentence)
	}
}

// Over takes a success.
func (o *Outage) Over() {
	if o.said {
		o.Say("following again")
	}
	o.since, o.said = time.Time{}, false
}

// Lasted tells for how long it has failed.
func (o *Outage) Lasted() time.Duration {
	if o.since.IsZero() {
		return 0
	}
	return time.Since(o.since)
}

// Patience is for the cluster to take a job.
const Patience = 15 * time.Second

// Patiently asks until there is a leader, for as long as a person waits.
func Patiently[Res any](ctx context.Context, ask func() (Res, error)) (Res, error) {
	var again Pause
	for end := time.Now().Add(Patience); ; {
		res, err := ask()
		if !errors.Is(err, wire.ErrRetry) || time.Now().After(end) || again.Wait(ctx) != nil {
			return res, err
		}
	}
}
