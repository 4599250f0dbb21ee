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

// auditUser writes down what a user did, or tried: on the machine where they
// typed it, and on the one that decided.
func (n *node) auditUser(what string, c wire.Caller, on string, err error) {
	if c.User != nil && !passing(err) {
		n.audit.Of(n.userLine(what, c, on, err))
	}
}

// auditOften does so for what is done again and again.
func (n *node) auditOften(what string, c wire.Caller, on string, err error) {
	if c.User != nil && !passing(err) {
		n.audit.Often(n.userLine(what, c, on, err))
	}
}

func (n *node) userLine(what string, c wire.Caller, on string, err error) audit.Line {
	uid := c.User.UID
	l := audit.Line{What: what, Who: c.User.Name, UID: &uid, From: n.typedOn(c), On: on, Outcome: outcomeOf(err)}
	if c.Client != nil {
		l.UID, l.Client = nil, c.Client.ID
		l.From = c.Client.Host + " at " + c.Client.Addr
	}
	if err != nil {
		l.Why = err.Error()
	}
	return l
}

// auditNewcomer writes down a join or a login; one that is refused is a stranger's.
func (n *node) auditNewcomer(l audit.Line, c wire.Caller, err error) {
	if passing(err) {
		return
	}
	l.From, l.Outcome = c.Addr, outcomeOf(err)
	if c.Host != "" {
		l.From = c.Host // which passed it on, and knows the address
	}
	if err == nil {
		n.audit.Add(l)
		return
	}
	l.Why = err.Error()
	n.audit.Stranger(l)
}

// auditPrepared writes down that a leader had ranks prepared here.
func (n *node) auditPrepared(leader wire.Caller, spec launcher.Spec, err error) {
	n.auditMember("prepare ranks for "+spec.User, leader, string(spec.ID), err)
}

// auditMember writes down what a member had this node do.
func (n *node) auditMember(what string, c wire.Caller, on string, err error) {
	if passing(err) {
		return
	}
	l := audit.Line{What: what, Who: c.Host, From: string(c.Node), On: on, Outcome: outcomeOf(err)}
	if err != nil {
		l.Why = err.Error()
	}
	n.audit.Of(l)
}

// typedOn is the member whose user calls, or that a client has dialled.
func (n *node) typedOn(c wire.Caller) string {
	if c.Forwarded() {
		return c.Host
	}
	return n.m.Host
}
