package rollout

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// member is one node's part of a change.
type member struct {
	host  string
	calls *wire.Client
	order wire.NetplanOrder
}

// change is one change on all nodes. All try it at the same time, since a peer answers
// only once it has applied too. It stays when all have reached their peers; when one has
// not, all go back.
type change struct {
	members []member
	tell    func(wire.NetplanProgress)
	at      []progress // by member
	stage   stage
	// why is the reason for which a change goes back.
	why string
}

// stage is how far a change got as a whole. It only rises.
type stage int

const (
	stageApplying   stage = iota // until every node has applied
	stageReaching                // until every node has reached its peers
	stageCommitting              // it stays
	stageGoingBack
)

// progress is how far one member has got.
type progress struct {
	state   netplan.State
	applied bool // its peers may now reach it
	over    bool
	lost    bool   // its node no longer answers
	cause   string // why it failed
	// root marks a failure from before the decision; a later one is its consequence.
	root bool
}

// event is a step of a member, or its end.
type event struct {
	member int
	step   *wire.NetplanStep // nil: the end
	err    error
}

// run returns nil once every node has the change. Ending ctx does not end run: it calls
// the change off, and run waits until the nodes have gone back.
func (c *change) run(ctx context.Context) error {
	c.at = make([]progress, len(c.members))
	events := make(chan event)
	hangUp := make([]context.CancelFunc, len(c.members))
	for i, p := range c.members {
		var call context.Context
		call, hangUp[i] = context.WithCancel(context.WithoutCancel(ctx))
		defer hangUp[i]()
		go func() { // joined by its last event
			err := wire.NetplanTry.Call(call, p.calls, p.order, func(s wire.NetplanStep) error {
				events <- event{member: i, step: &s}
				return nil
			})
			events <- event{member: i, err: err}
		}()
	}
	var told sync.WaitGroup
	defer told.Wait()
	said := stageApplying
	for left, off := len(c.members), ctx.Done(); left > 0; {
		select {
		case e := <-events:
			c.take(e)
			if e.step == nil {
				left--
			}
		case <-off:
			off = nil
			c.advance(stageGoingBack, "it was called off")
		}
		c.evaluate()
		if c.stage == said {
			continue
		}
		said = c.stage
		for i, p := range c.members {
			if d := c.decision(p.order.Change); !c.at[i].over {
				told.Go(func() {
					if wire.NetplanDecide.Call(context.WithoutCancel(ctx), p.calls, d) != nil && d.All == "" {
						hangUp[i]() // a closed call also means to go back
					}
				})
			}
		}
	}
	return c.verdict()
}

// decision is what the nodes are told about a stage.
func (c *change) decision(change string) wire.NetplanDecision {
	d := wire.NetplanDecision{Change: change, Why: c.why}
	switch c.stage {
	case stageReaching:
		d.All = string(netplan.StateApplied)
	case stageCommitting:
		d.All = string(netplan.StateReached)
	}
	return d
}

// take notes an event of a member.
func (c *change) take(e event) {
	p := &c.at[e.member]
	fail := func(cause string) {
		if p.cause == "" {
			p.cause, p.root = cause, c.stage < stageCommitting
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
	c.tell(wire.NetplanProgress{Host: c.members[e.member].host, NetplanStep: *e.step})
}

// evaluate moves the change on as far as possible. It goes back at once where a member
// failed before it had applied, or is lost, since its peers cannot reach it; otherwise
// when each node has reached its peers or given up, so that all can say whom they miss.
func (c *change) evaluate() {
	applying, reaching, failed := false, false, ""
	for i, p := range c.at {
		if p.cause != "" {
			failed = c.members[i].host + " failed"
			if !p.applied || p.lost {
				c.advance(stageGoingBack, failed)
			}
		}
		applying = applying || !p.over && !p.applied
		reaching = reaching || !p.over && p.state != netplan.StateReached
	}
	switch {
	case applying:
	case reaching:
		c.advance(stageReaching, "")
	case failed != "":
		c.advance(stageGoingBack, failed)
	default:
		c.advance(stageCommitting, "")
	}
}

// advance is the only place where the stage changes: whether a change stays or goes back
// is decided once.
func (c *change) advance(to stage, why string) {
	if c.stage < stageCommitting && to > c.stage {
		c.stage, c.why = to, why
	}
}

// verdict is the result for all nodes: the first failure, and each node that is not as it
// was before.
func (c *change) verdict() error {
	var causes, apart []string
	for i, p := range c.at {
		host := c.members[i].host
		switch {
		case p.cause == "":
			continue
		case p.root || c.stage == stageCommitting:
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
	case c.stage == stageCommitting && len(causes) == 0:
		return nil
	case c.stage == stageCommitting:
		return fmt.Errorf("apply netplan: the others have it, but %s; see `sparkrun netplan diff` and apply again",
			strings.Join(causes, "; "))
	}
	if len(causes) == 0 {
		causes = []string{c.why}
	}
	if len(apart) > 0 {
		return fmt.Errorf("apply netplan: %s; the change was undone, but %s",
			strings.Join(causes, "; "), strings.Join(apart, "; "))
	}
	return fmt.Errorf("apply netplan: %s; everything is as it was, on all nodes", strings.Join(causes, "; "))
}
