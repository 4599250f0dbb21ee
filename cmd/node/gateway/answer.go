package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// writePatience is how long a client may take to take the next piece of its answer.
const writePatience = 2 * time.Minute

// answer is what a client gets. Its header may go out before an engine has answered: then what else the engine says
// than a stream is told as a stream's last event.
type answer struct {
	http.ResponseWriter
	rc   *http.ResponseController
	form form

	early  bool // its header went out while the request waited
	status int  // the engine's, or ours; 0: none yet
	told   []byte
	opaque bool // early, and what the engine says is no stream
}

// toldMost is how much of an engine's error is kept to be told, in bytes.
const toldMost = 16 << 10

// WriteHeader sends the header, unless that is out.
func (a *answer) WriteHeader(status int) {
	if !a.early {
		if status >= http.StatusOK {
			a.status = status
		}
		a.rc.SetWriteDeadline(time.Now().Add(writePatience)) //nolint:errcheck // it is of the last request else
		a.ResponseWriter.WriteHeader(status)
		return
	}
	if status < http.StatusOK {
		return
	}
	a.status = status
	a.opaque = status != http.StatusOK || !isStream(a.Header())
}

func isStream(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
}

// Write sends a piece, or keeps it to be told.
func (a *answer) Write(p []byte) (int, error) {
	if a.opaque {
		a.told = append(a.told, p[:min(len(p), max(0, toldMost-len(a.told)))]...)
		return len(p), nil
	}
	if a.status == 0 && !a.early {
		a.status = http.StatusOK
	}
	a.rc.SetWriteDeadline(time.Now().Add(writePatience)) //nolint:errcheck // in tests there are none
	return a.ResponseWriter.Write(p)
}

// FlushError sends what is buffered.
func (a *answer) FlushError() error { return a.rc.Flush() }

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// comment tells a client that its request waits: its header is out from then on.
func (a *answer) comment(text string) error {
	if !a.early {
		h := a.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		a.ResponseWriter.WriteHeader(http.StatusOK)
		a.early = true
		h.Del("Content-Type") // what is put there from now on is the engine's, and only looked at
		h.Del("Cache-Control")
	}
	if _, err := a.Write([]byte(": " + plain.Line(text) + "\n\n")); err != nil {
		return err
	}
	return a.FlushError()
}

// fail ends the answer with an error: with a status if that is still to be sent, as an event else. After that event
// the connection is closed, so that nobody takes the stream for complete.
func (a *answer) fail(e *refusal) {
	a.status = e.status
	if !a.early {
		a.form.write(a, e)
		return
	}
	a.opaque = false
	if _, err := a.Write(a.form.event(e)); err == nil {
		a.FlushError() //nolint:errcheck // the connection is closed either way
	}
	panic(http.ErrAbortHandler)
}

// end tells of an engine's error for which it was too late to have a status.
func (a *answer) end() {
	if a.opaque {
		a.fail(&refusal{status: max(a.status, http.StatusBadRequest), text: engineSays(a.told, a.status)})
	}
}

// engineSays is what a client is told of an engine's error, whichever form that has.
func engineSays(body []byte, status int) string {
	if status == http.StatusOK {
		return "the engine answered without a stream: ask again"
	}
	return "the engine says: " + plain.Cut(errorText(body), 2000)
}

// errorText is the message in an engine's error.
func errorText(body []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	text := string(body)
	if json.Unmarshal(body, &e) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(e.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
		case e.Message != "":
			text = e.Message
		case json.Unmarshal(e.Detail, &text) == nil:
		case len(e.Detail) > 0:
			text = string(e.Detail)
		}
	}
	return strings.TrimSpace(text)
}
