package wire

import (
	"context"
	"errors"
	"net/url"

	"connectrpc.com/connect"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Errors of the road itself. Across the wire an error keeps its text and its
// code, and the client gets the sentinel back for errors.Is.
var (
	// ErrRetry: the leader changed or went away under the request. Whether it
	// was done is not known; ask again with the same job id.
	ErrRetry = errors.New("try again")
	// ErrNoLeader: no leader is known. The text says why and what helps.
	ErrNoLeader = errors.New("no leader")
	// ErrDenied: the caller may not do this.
	ErrDenied = errors.New("not allowed")
	// ErrNotYet: what was waited for has not come in the time given.
	ErrNotYet = errors.New("not yet")
	// ErrUnknownRetry: the cluster was taken over since the job was submitted, and
	// does not know it. It is not started: it might be for the second time.
	ErrUnknownRetry = errors.New("unknown")
	// ErrUnreachable: the other side does not answer.
	ErrUnreachable = errors.New("does not answer")
	// ErrOlder: the other side does not know the request.
	ErrOlder = errors.New("its agent is of an older version, which cannot do this: bring all machines to one version")
)

// codes maps sentinels to what travels. The order matters where an error wraps
// several: the first match is sent.
var codes = []struct {
	code     string
	sentinel error
	connect  connect.Code
}{
	{"retry", ErrRetry, connect.CodeUnavailable},
	{"no-leader", ErrNoLeader, connect.CodeUnavailable},
	{"not-yet", ErrNotYet, connect.CodeFailedPrecondition},
	{"denied", ErrDenied, connect.CodePermissionDenied},
	{"token-used", rendezvous.ErrTokenUsed, connect.CodePermissionDenied},
	{"token-expired", rendezvous.ErrTokenExpired, connect.CodePermissionDenied},
	{"token-unknown", rendezvous.ErrTokenUnknown, connect.CodePermissionDenied},
	{"apart", rendezvous.ErrApart, connect.CodeFailedPrecondition},
	{"token-role", rendezvous.ErrTokenRole, connect.CodePermissionDenied},
	{"host-taken", rendezvous.ErrHostTaken, connect.CodeAlreadyExists},
	{"no-client", rendezvous.ErrNoClient, connect.CodeNotFound},
	{"no-job", rendezvous.ErrNoJob, connect.CodeNotFound},
	{"job-ended", rendezvous.ErrJobEnded, connect.CodeFailedPrecondition},
	{"no-service", rendezvous.ErrNoService, connect.CodeFailedPrecondition},
	{"no-node", rendezvous.ErrNoNode, connect.CodeNotFound},
	{"cannot-place", rendezvous.ErrCannotPlace, connect.CodeFailedPrecondition},
	{"fabric-unfit", rendezvous.ErrFabricUnfit, connect.CodeFailedPrecondition},
	{"too-many-jobs", rendezvous.ErrTooManyJobs, connect.CodeResourceExhausted},
	{"invalid", launcher.ErrInvalid, connect.CodeInvalidArgument},
	{"unknown-retry", ErrUnknownRetry, connect.CodeFailedPrecondition},
	{"no-reader", ErrNoReader, connect.CodeFailedPrecondition},
	{"stale-fence", launcher.ErrStaleFence, connect.CodeAborted},
	{"no-fence", launcher.ErrNoFence, connect.CodeFailedPrecondition},
}

const codeHeader = "Sparkrun-Code"

// outbound dresses a handler's error for the wire.
func outbound(err error) error {
	if err == nil {
		return nil
	}
	for _, c := range codes {
		if errors.Is(err, c.sentinel) {
			ce := connect.NewError(c.connect, errors.New(err.Error()))
			ce.Meta().Set(codeHeader, c.code)
			return ce
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	}
	return connect.NewError(connect.CodeUnknown, errors.New(err.Error()))
}

// remoteError is an error that came over the wire, its sentinel restored, or
// one of the transport, as ErrUnreachable and with its own cause.
type remoteError struct {
	text     string
	sentinel error
	cause    error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.sentinel}
	}
	return []error{e.sentinel, e.cause}
}

// inbound restores what outbound sent. Errors of the transport become
// ErrUnreachable; so does a cancellation that is not the caller's own (ctx): the
// other side, or the connection, was cut down.
func inbound(ctx context.Context, err error) error {
	var ce *connect.Error
	if err == nil || !errors.As(err, &ce) {
		return err
	}
	code := ce.Meta().Get(codeHeader)
	for _, c := range codes {
		if c.code == code {
			return &remoteError{text: ce.Message(), sentinel: c.sentinel, cause: err}
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case ce.Code() == connect.CodeUnimplemented:
		return &remoteError{text: ErrOlder.Error(), sentinel: ErrOlder, cause: err}
	case !connect.IsWireError(err), ce.Code() == connect.CodeUnavailable, ce.Code() == connect.CodeCanceled:
		// A dial that ran out of time has a deadline of its own: that is the
		// other side's silence, not the end of the caller's patience.
		return unreachable(ce.Unwrap())
	case ce.Code() == connect.CodeDeadlineExceeded:
		return context.DeadlineExceeded
	}
	return &remoteError{text: ce.Message(), sentinel: err, cause: err}
}

func unreachable(cause error) error {
	if u, ok := errors.AsType[*url.Error](cause); ok {
		cause = u.Err // "Post "https://<uuid>/...": " helps nobody
	}
	text := cause.Error()
	if errors.Is(cause, context.Canceled) || text == context.Canceled.Error() {
		text, cause = "the connection was cut", nil // it is not the caller who gave up
	}
	return &remoteError{text: text, sentinel: ErrUnreachable, cause: cause}
}
