package wire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Errors of the transport itself. Across the wire an error keeps its text and its
// code, and the client gets the sentinel back for errors.Is.
var (
	// ErrRetry: the leader changed or went away during the request. Whether it was done
	// is not known; ask again with the same job id.
	ErrRetry = errors.New("try again")
	// ErrNoLeader: no leader is known. The text says why and what helps.
	ErrNoLeader = errors.New("no leader")
	// ErrDenied: the caller may not do this.
	ErrDenied = errors.New("not allowed")
	// ErrConflict: anybody's request would be refused while things are as they are.
	ErrConflict = errors.New("cannot be done now")
	// ErrNotYet: what was waited for has not come within the given time.
	ErrNotYet = errors.New("not yet")
	// ErrUnknownRetry: the cluster was taken over since the job was submitted, and does
	// not know it. It is not started, because it might be the second time.
	ErrUnknownRetry = errors.New("unknown")
	// ErrUnreachable: the other side does not answer.
	ErrUnreachable = errors.New("does not answer")
	// ErrOlder: the other side does not know the request.
	ErrOlder = errors.New("its agent is of an older version, which cannot do this: bring all machines to one version")
	// ErrNoModel: neither a machine nor the Hub has it.
	ErrNoModel = errors.New("no model found")
	// ErrNoImage: neither a machine nor the registry has it.
	ErrNoImage = errors.New("no such image")
	// ErrNoCall: the JSON face has no such path.
	ErrNoCall = errors.New("no such call")
)

// codes maps sentinels to what travels. The order matters where an error wraps
// several: the first match is sent.
var codes = []struct {
	code     string
	sentinel error
	status   int // of HTTP
}{
	{"retry", ErrRetry, http.StatusServiceUnavailable},
	{"no-leader", ErrNoLeader, http.StatusServiceUnavailable},
	{"not-yet", ErrNotYet, http.StatusConflict},
	{"removed", rendezvous.ErrRemoved, http.StatusForbidden},
	{"denied", ErrDenied, http.StatusForbidden},
	{"conflict", ErrConflict, http.StatusConflict},
	{"token-used", rendezvous.ErrTokenUsed, http.StatusForbidden},
	{"token-expired", rendezvous.ErrTokenExpired, http.StatusForbidden},
	{"token-unknown", rendezvous.ErrTokenUnknown, http.StatusForbidden},
	{"apart", rendezvous.ErrApart, http.StatusConflict},
	{"token-role", rendezvous.ErrTokenRole, http.StatusForbidden},
	{"host-taken", rendezvous.ErrHostTaken, http.StatusConflict},
	{"no-client", rendezvous.ErrNoClient, http.StatusNotFound},
	{"no-job", rendezvous.ErrNoJob, http.StatusNotFound},
	{"job-ended", rendezvous.ErrJobEnded, http.StatusConflict},
	{"no-service", rendezvous.ErrNoService, http.StatusConflict},
	{"no-restart", rendezvous.ErrNoRestart, http.StatusConflict},
	{"no-node", rendezvous.ErrNoNode, http.StatusNotFound},
	{"cannot-place", rendezvous.ErrCannotPlace, http.StatusConflict},
	{"fabric-unfit", rendezvous.ErrFabricUnfit, http.StatusConflict},
	{"too-many-jobs", rendezvous.ErrTooManyJobs, http.StatusTooManyRequests},
	{"no-key", rendezvous.ErrNoKey, http.StatusNotFound},
	{"key-exists", rendezvous.ErrKeyExists, http.StatusConflict},
	{"no-alias", rendezvous.ErrNoAlias, http.StatusNotFound},
	{"no-notify", rendezvous.ErrNoNotify, http.StatusNotFound},
	{"notify-exists", rendezvous.ErrNotifyExists, http.StatusConflict},
	{"no-gateway-ca", rendezvous.ErrNoGatewayCA, http.StatusNotFound},
	{"invalid", launcher.ErrInvalid, http.StatusBadRequest},
	{"unknown-retry", ErrUnknownRetry, http.StatusConflict},
	{"no-model", ErrNoModel, http.StatusNotFound},
	{"no-image", ErrNoImage, http.StatusNotFound},
	{"no-call", ErrNoCall, http.StatusNotFound},
	{"no-reader", ErrNoReader, http.StatusConflict},
	{"stale-fence", launcher.ErrStaleFence, http.StatusConflict},
	{"no-fence", launcher.ErrNoBarrier, http.StatusConflict},
}

// failure is an error as it travels.
type failure struct {
	Code    string `json:"code"` // failed: none of codes
	Message string `json:"message"`
}

func failureOf(err error) failure {
	for _, c := range codes {
		if errors.Is(err, c.sentinel) {
			return failure{c.code, err.Error()}
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return failure{"canceled", err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return failure{"deadline", err.Error()}
	}
	return failure{"failed", err.Error()}
}

func (f failure) status() int {
	for _, c := range codes {
		if c.code == f.Code {
			return c.status
		}
	}
	switch f.Code {
	case "canceled":
		return http.StatusServiceUnavailable
	case "deadline":
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// codeHeader marks a refusal as ours: something else on the way may refuse too.
const codeHeader = "Sparkrun-Code"

// Refuse answers a call with an error, before its first message.
func Refuse(w http.ResponseWriter, err error) { refuseAs(w, failureOf(err).status(), err) }

func refuseAs(w http.ResponseWriter, status int, err error) {
	f := failureOf(err)
	w.Header().Set(codeHeader, f.Code)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	b, _ := json.Marshal(f)
	_, _ = w.Write(append(b, '\n'))
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
	var out []error
	for _, err := range []error{e.sentinel, e.cause} {
		if err != nil {
			out = append(out, err)
		}
	}
	return out
}

// restored rebuilds the error that the other side sent.
func (f failure) restored() error {
	switch f.Code {
	case "canceled": // not the caller's own cancellation: the other side was ended
		return unreachable(context.Canceled)
	case "deadline":
		return context.DeadlineExceeded
	}
	for _, c := range codes {
		if c.code == f.Code {
			return &remoteError{text: f.Message, sentinel: c.sentinel}
		}
	}
	return &remoteError{text: f.Message}
}

// refusal reads the error in place of a reply.
func refusal(res *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(res.Body, maxUnauthenticated))
	var f failure
	switch {
	case err != nil:
		return cut(err)
	case res.Header.Get(codeHeader) != "" && json.Unmarshal(b, &f) == nil:
		return f.restored()
	case res.StatusCode == http.StatusNotFound:
		return &remoteError{text: ErrOlder.Error(), sentinel: ErrOlder}
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return unreachable(errors.New(cmp.Or(text, res.Status)))
}

// lost is the error of a call whose connection failed; ctx is the caller's own.
func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// A dial that ran out of time has a deadline of its own: that is the
	// other side's silence, not the end of the caller's patience.
	return unreachable(err)
}

func unreachable(cause error) error {
	if u, ok := errors.AsType[*url.Error](cause); ok {
		cause = u.Err // "Post "https://<uuid>/...": " helps nobody
	}
	text := cause.Error()
	const wasCut = "the connection was cut" // not by the caller
	switch {
	case errors.Is(cause, context.Canceled), errors.Is(cause, net.ErrClosed), text == context.Canceled.Error():
		text, cause = wasCut, nil
	case text == io.EOF.Error(), text == io.ErrUnexpectedEOF.Error():
		text = wasCut
	}
	return &remoteError{text: text, sentinel: ErrUnreachable, cause: cause}
}

// gone is the error for a handler whose caller takes no more replies.
func gone(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the caller has gone: %w: %w", context.Canceled, err)
}
