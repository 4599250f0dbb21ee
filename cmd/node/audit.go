package node

import (
	"context"
	"errors"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// trail writes the audit log of a node.
type trail struct {
	*audit.Log
	host string // this node's
}

// outcomeOf tells a no of ours from what merely did not work.
func outcomeOf(err error) audit.Outcome {
	if err == nil {
		return audit.OK
	}
	for _, no := range []error{
		wire.ErrDenied, rendezvous.ErrTokenUnknown, rendezvous.ErrTokenUsed, rendezvous.ErrTokenExpired, rendezvous.ErrTokenRole,
		rendezvous.ErrHostTaken, rendezvous.ErrTooManyClients, rendezvous.ErrTooManyJobs, launcher.ErrInvalid, launcher.ErrStaleFence,
	} {
		if errors.Is(err, no) {
			return audit.Refused
		}
	}
	return audit.Failed
}

// passing tells that whoever asked will ask again, or somebody else: that is
// no outcome, and gets no line.
func passing(err error) bool {
	return errors.Is(err, wire.ErrRetry) || errors.Is(err, lead.ErrOver) || errors.Is(err, context.Canceled)
}

// user writes down what a user did, or tried: on the machine where they
// typed it, and on the one that decided.
func (t trail) user(what string, c wire.Caller, on string, err error) {
	if c.User != nil && !passing(err) {
		t.Of(t.userLine(what, c, on, err))
	}
}

// often does so for what is done again and again.
func (t trail) often(what string, c wire.Caller, on string, err error) {
	if c.User != nil && !passing(err) {
		t.Often(t.userLine(what, c, on, err))
	}
}

func (t trail) userLine(what string, c wire.Caller, on string, err error) audit.Line {
	uid := c.User.UID
	l := audit.Line{What: what, Who: c.User.Name, UID: &uid, From: t.typedOn(c), On: on, Outcome: outcomeOf(err)}
	if c.Client != nil {
		l.UID, l.Client = nil, c.Client.ID
		l.From = c.Client.Host + " at " + c.Client.Addr
	}
	if err != nil {
		l.Why = err.Error()
	}
	return l
}

// newcomer writes down a join or a login; one that is refused is a stranger's.
func (t trail) newcomer(l audit.Line, c wire.Caller, err error) {
	if passing(err) {
		return
	}
	l.From, l.Outcome = c.Addr, outcomeOf(err)
	if c.Host != "" {
		l.From = c.Host // which passed it on, and knows the address
	}
	if err == nil {
		t.Add(l)
		return
	}
	l.Why = err.Error()
	t.Unauthenticated(l)
}

// prepared writes down that a leader had ranks prepared here.
func (t trail) prepared(leader wire.Caller, spec launcher.Spec, err error) {
	t.member("prepare ranks for "+spec.User, leader, string(spec.ID), err)
}

// member writes down what a member had this node do.
func (t trail) member(what string, c wire.Caller, on string, err error) {
	if passing(err) {
		return
	}
	l := audit.Line{What: what, Who: c.Host, From: string(c.Node), On: on, Outcome: outcomeOf(err)}
	if err != nil {
		l.Why = err.Error()
	}
	t.Of(l)
}

// typedOn is the member whose user calls, or that a client has dialled.
func (t trail) typedOn(c wire.Caller) string {
	if c.Forwarded() {
		return c.Host
	}
	return t.host
}
