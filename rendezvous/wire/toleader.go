package wire

import (
	"context"
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// ToLeaderConfig of what gets calls to the leader.
type ToLeaderConfig struct {
	Host string // this node's name, for people
	// Leader gives who leads, or the error that says why there is none. Nil: nothing is passed on.
	Leader func() (Leader, error)
	// Over turns an error of the leader's answer that means the end of its leadership into ErrRetry. Nil: no error
	// does.
	Over func(error) error
}

// Leader is another node that leads.
type Leader struct {
	Host   string
	Client *Client
	// Gone returns when another leader is known, or with ctx. That may be before the connection of a dead leader
	// breaks.
	Gone func(ctx context.Context)
}

// ToLeader gets calls to the leader: this node, while it leads, or another.
type ToLeader struct {
	cfg ToLeaderConfig
	led rendezvous.Latest[map[*Row]Call] // nil while this node does not lead
}

// NewToLeader makes one.
func NewToLeader(cfg ToLeaderConfig) *ToLeader { return &ToLeader{cfg: cfg} }

// Lead has this node answer what goes to the leader, until end.
func (t *ToLeader) Lead(calls ...Call) (end func()) {
	led := byRow(calls)
	for row := range led {
		if row.To != leader {
			panic(row.Path() + " is not the leader's")
		}
	}
	t.led.Store(led)
	return func() { t.led.Store(nil) }
}

// Leads tells whether this node leads, and when that has changed.
func (t *ToLeader) Leads() (leads bool, changed <-chan struct{}) {
	led, changed := t.led.Watch()
	return led != nil, changed
}

// As makes calls of c's that go to the leader, without this node's own part in them.
func (t *ToLeader) As(c Caller) *Client { return &Client{local: t, on: &c} }

// answerHere is for calls from this process.
func (t *ToLeader) answerHere(ctx context.Context, row *Row, c Caller, req any, send sender) error {
	if err := row.Who.allows(c); err != nil {
		return err
	}
	return t.ask(ctx, row, c, req, send)
}

// ask has the leader answer.
func (t *ToLeader) ask(ctx context.Context, row *Row, c Caller, req any, send sender) error {
	if led := t.led.Load(); led != nil {
		call, ok := led[row]
		if !ok {
			return &remoteError{text: ErrOlder.Error(), sentinel: ErrOlder}
		}
		err := call.answer(ctx, c, req, send)
		if err != nil && t.cfg.Over != nil {
			err = t.cfg.Over(err)
		}
		return err
	}
	if c.Node != "" || t.cfg.Leader == nil { // it was passed on already
		return fmt.Errorf("%s does not lead: %w", t.cfg.Host, ErrRetry)
	}
	to, err := t.cfg.Leader()
	if err != nil {
		return err
	}
	return to.Ask(ctx, c, func(ctx context.Context, to *Client) error { return to.do(ctx, row, req, send) })
}

// Ask makes ask call the leader on behalf of c. If the leader is lost during the call the error is ErrRetry: the
// caller asks again with the same id and finds the next leader.
func (to Leader) Ask(ctx context.Context, c Caller, ask func(ctx context.Context, leader *Client) error) error {
	way, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with way
		to.Gone(way)
		cancel()
	}()
	switch err := ask(way, to.Client.OnBehalfOf(c)); {
	case err == nil:
		return nil
	case way.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("%s no longer leads: %w", to.Host, ErrRetry)
	case errors.Is(err, ErrUnreachable):
		return fmt.Errorf("the leader %s %w: %w", to.Host, ErrUnreachable, ErrRetry)
	default:
		return err
	}
}
