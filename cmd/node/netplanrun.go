package node

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// netplanCalls is what a change asks of a node: wire.Client has them for
// another's, ownNetplan for this one's.
type netplanCalls interface {
	NetplanRead(context.Context) (wire.NetplanFacts, error)
	NetplanCheck(context.Context, wire.NetplanOrder) (wire.NetplanVerdict, error)
	NetplanTry(context.Context, wire.NetplanOrder, func(wire.NetplanStep) error) error
	NetplanDecide(context.Context, wire.NetplanDecision) error
}

// ownNetplan asks this node without a network.
type ownNetplan struct {
	side *netplanSide
	as   wire.Caller
}

func (o ownNetplan) NetplanRead(ctx context.Context) (wire.NetplanFacts, error) {
	return o.side.read(ctx, o.as, wire.Empty{})
}
func (o ownNetplan) NetplanCheck(ctx context.Context, r wire.NetplanOrder) (wire.NetplanVerdict, error) {
	return o.side.check(ctx, o.as, r)
}
func (o ownNetplan) NetplanTry(ctx context.Context, r wire.NetplanOrder, fn func(wire.NetplanStep) error) error {
	return o.side.try(ctx, o.as, r, fn)
}
func (o ownNetplan) NetplanDecide(ctx context.Context, d wire.NetplanDecision) error {
	_, err := o.side.decide(ctx, o.as, d)
	return err
}

// netplanPart is one node's part of a change.
type netplanPart struct {
	host  string
	calls netplanCalls
	order wire.NetplanOrder
}

// netplanRun is one change on all nodes: all try at the same time, for a peer
// answers only once it has applied too; it stays when all have reached their
// peers, and everybody goes back when one has not.
type netplanRun struct {
	parts []netplanPart
	tell  func(wire.NetplanProgress)
	at    []netplanProgress // by part
	stage netplanStage
	// why says what a change that goes back failed of.
	why string
}

// netplanStage is how far a change got as a whole. It only rises.
type netplanStage int

const (
	stageApplying   netplanStage = iota // until every node has applied
	stageReaching                       // until every node has reached its peers
	stageCommitting                     // it stays
	stageGoingBack
)

// netplanProgress is how far one part got.
type netplanProgress struct {
	state   netplan.State
	applied bool // its peers have a chance to reach it
	over    bool
	lost    bool   // its node no longer answers
	cause   string // why it failed
	// root: it failed before anything was decided. What came later is a
	// consequence.
	root bool
}

// netplanEvent is a step of a part, or its end.
type netplanEvent struct {
	part int
	step *wire.NetplanStep // nil: the end
	err  error
}

// run returns nil once every node has the change. It does not end with ctx: that
// calls the change off, and run waits until the nodes have gone back.
func (r *netplanRun) run(ctx context.Context) error {
	r.at = make([]netplanProgress, len(r.parts))
	events := make(chan netplanEvent)
	hangUp := make([]context.CancelFunc, len(r.parts))
	for i, p := range r.parts {
		var call context.Context
		call, hangUp[i] = context.WithCancel(context.WithoutCancel(ctx))
		defer hangUp[i]()
		go func() { // joined by its last event
			err := p.calls.NetplanTry(call, p.order, func(s wire.NetplanStep) error {
				events <- netplanEvent{part: i, step: &s}
				return nil
			})
			events <- netplanEvent{part: i, err: err}
		}()
	}
	var told sync.WaitGroup
	defer told.Wait()
	said := stageApplying
	for left, off := len(r.parts), ctx.Done(); left > 0; {
		select {
		case e := <-events:
			r.take(e)
			if e.step == nil {
				left--
			}
		case <-off:
			off = nil
			r.advance(stageGoingBack, "it was called off")
		}
		r.judge()
		if r.stage == said {
			continue
		}
		said = r.stage
		for i, p := range r.parts {
			if d := r.decision(p.order.Change); !r.at[i].over {
				told.Go(func() {
					if p.calls.NetplanDecide(context.WithoutCancel(ctx), d) != nil && d.All == "" {
						hangUp[i]() // which says the same
					}
				})
			}
		}
	}
	return r.verdict()
}

// decision is what the nodes are told of a stage.
func (r *netplanRun) decision(change string) wire.NetplanDecision {
	d := wire.NetplanDecision{Change: change, Why: r.why}
	switch r.stage {
	case stageReaching:
		d.All = string(netplan.StateApplied)
	case stageCommitting:
		d.All = string(netplan.StateReached)
	}
	return d
}

// take notes what a part says.
func (r *netplanRun) take(e netplanEvent) {
	p := &r.at[e.part]
	fail := func(cause string) {
		if p.cause == "" {
			p.cause, p.root = cause, r.stage < stageCommitting
		}
	}
	if e.step == nil {
		p.over = true
		if e.err != nil {
			p.lost = true
			fail(e.err.Error())
		}
		return
	}
	if e.step.State != "" {
		p.state = netplan.State(e.step.State)
	}
	p.applied = p.applied || p.state == netplan.StateApplied || p.state == netplan.StateReached
	if e.step.Error != "" {
		fail(e.step.Error)
	}
	r.tell(wire.NetplanProgress{Host: r.parts[e.part].host, NetplanStep: *e.step})
}

// judge moves the change on once that is possible. It goes back at once where a
// node cannot be reached by its peers, else when each has reached its own or
// given up, so that all say whom they miss.
func (r *netplanRun) judge() {
	applying, reaching, failed := false, false, ""
	for i, p := range r.at {
		if p.cause != "" {
			failed = r.parts[i].host + " failed"
			if !p.applied || p.lost {
				r.advance(stageGoingBack, failed)
			}
		}
		applying = applying || !p.over && !p.applied
		reaching = reaching || !p.over && p.state != netplan.StateReached
	}
	switch {
	case applying:
	case reaching:
		r.advance(stageReaching, "")
	case failed != "":
		r.advance(stageGoingBack, failed)
	default:
		r.advance(stageCommitting, "")
	}
}

// advance is the only place where the stage moves; what stays or goes back is
// decided once.
func (r *netplanRun) advance(to netplanStage, why string) {
	if r.stage < stageCommitting && to > r.stage {
		r.stage, r.why = to, why
	}
}

// verdict is how it ended for all: of failures the first, and of nodes that are
// not as before each.
func (r *netplanRun) verdict() error {
	var causes, apart []string
	for i, p := range r.at {
		host := r.parts[i].host
		switch {
		case p.cause == "":
			continue
		case p.root || r.stage == stageCommitting:
			causes = append(causes, host+": "+p.cause)
		}
		switch {
		case p.lost:
			apart = append(apart, host+" went silent and goes back by itself, at the latest when its agent starts")
		case p.applied && p.state != netplan.StateRolledBack:
			apart = append(apart, host+" could not go back: "+p.cause)
		}
	}
	switch {
	case r.stage == stageCommitting && len(causes) == 0:
		return nil
	case r.stage == stageCommitting:
		return fmt.Errorf("apply netplan: the others have it, but %s; see `sparkrun netplan diff` and apply again", strings.Join(causes, "; "))
	}
	if len(causes) == 0 {
		causes = []string{r.why}
	}
	if len(apart) > 0 {
		return fmt.Errorf("apply netplan: %s; the change was undone, but %s", strings.Join(causes, "; "), strings.Join(apart, "; "))
	}
	return fmt.Errorf("apply netplan: %s; everything is as it was, on all nodes", strings.Join(causes, "; "))
}
