package audit

import (
	"context"
	"errors"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Trail makes the audit lines of one node's calls.
type Trail struct {
	*Log
	Host string // this node's
}

// OutcomeOf distinguishes a refusal from a failure.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return OK
	}
	for _, no := range []error{
		wire.ErrDenied, launcher.ErrInvalid, launcher.ErrStaleFence,
		rendezvous.ErrTokenUnknown, rendezvous.ErrTokenUsed, rendezvous.ErrTokenExpired, rendezvous.ErrTokenRole,
		rendezvous.ErrHostTaken, rendezvous.ErrTooManyClients, rendezvous.ErrTooManyJobs,
	} {
		if errors.Is(err, no) {
			return Refused
		}
	}
	return Failed
}

// passing tells whether the caller will ask again, or ask another node: that is not an
// outcome and gets no line.
func passing(err error) bool {
	return errors.Is(err, wire.ErrRetry) || errors.Is(err, lead.ErrOver) || errors.Is(err, context.Canceled)
}

// User records what a user did, or attempted: on the machine where the command was typed,
// and on the one that decided.
func (t Trail) User(what string, c wire.Caller, on string, err error) {
	if c.User != nil && !passing(err) {
		t.Of(t.userLine(what, c, on, err))
	}
}

// UserOften is User for what is done again and again.
func (t Trail) UserOften(what string, c wire.Caller, on string, err error) {
	if c.User != nil && !passing(err) {
		t.Often(t.userLine(what, c, on, err))
	}
}

func (t Trail) userLine(what string, c wire.Caller, on string, err error) Line {
	uid := c.User.UID
	l := Line{What: what, Who: c.User.Name, UID: &uid, From: t.typedOn(c), On: on, Outcome: OutcomeOf(err)}
	if c.Client != nil {
		l.UID, l.Client = nil, c.Client.ID
		l.From = c.Client.Host + " at " + c.Client.Addr
	}
	if err != nil {
		l.Why = err.Error()
	}
	return l
}

// Newcomer records a join or a login; a refused caller counts as unauthenticated.
func (t Trail) Newcomer(l Line, c wire.Caller, err error) {
	if passing(err) {
		return
	}
	l.From = c.Addr
	if c.Host != "" {
		l.From = c.Host // the member that passed it on, and knows the address
	}
	t.WithoutCertificate(l, err)
}

// WithoutCertificate records how a call without a certificate ended; a refused caller gets only as many lines as
// unauthenticated callers may have.
func (t Trail) WithoutCertificate(l Line, err error) {
	if l.Outcome = OutcomeOf(err); err == nil {
		t.Add(l)
		return
	}
	l.Why = err.Error()
	t.Unauthenticated(l)
}

// Prepared records that a leader had ranks prepared here.
func (t Trail) Prepared(leader wire.Caller, spec launcher.Spec, err error) {
	t.Member("prepare ranks for "+spec.User, leader, string(spec.ID), err)
}

// Member records what a member had this node do.
func (t Trail) Member(what string, c wire.Caller, on string, err error) {
	if passing(err) {
		return
	}
	l := Line{What: what, Who: c.Host, From: string(c.Node), On: on, Outcome: OutcomeOf(err)}
	if err != nil {
		l.Why = err.Error()
	}
	t.Of(l)
}

// typedOn is the member whose user calls, or to which a client connected.
func (t Trail) typedOn(c wire.Caller) string {
	if c.Forwarded() {
		return c.Host
	}
	return t.Host
}
