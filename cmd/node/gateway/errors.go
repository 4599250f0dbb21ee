package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// form is whose API a request is made in: errors are told in the same.
type form uint8

const (
	openAI form = iota
	anthropic
)

// refusal is why a request was not answered by an engine, as its client is told.
type refusal struct {
	status int
	// code is OpenAI's; most have none.
	code string
	text string
	// retry is after how long it is worth asking again; 0: not said.
	retry time.Duration
}

func (e *refusal) Error() string { return e.text }

func refuse(status int, code, format string, args ...any) *refusal {
	return &refusal{status: status, code: code, text: fmt.Sprintf(format, args...)}
}

// maxRetryAfter is the longest Retry-After that OpenAI's and Anthropic's clients follow.
const maxRetryAfter = 60 * time.Second

func (e *refusal) after(d time.Duration) *refusal {
	e.retry = min(d, maxRetryAfter)
	return e
}

// kind is the error's type in each form: programs decide by it.
func (f form) kind(status int) string {
	names := openAIKinds
	if f == anthropic {
		names = anthropicKinds
	}
	if name := names[status]; name != "" {
		return name
	}
	switch {
	case status < http.StatusInternalServerError:
		return "invalid_request_error"
	case f == anthropic:
		return "api_error"
	}
	return "server_error"
}

var (
	openAIKinds = map[int]string{
		http.StatusForbidden: "permission_error", http.StatusTooManyRequests: "rate_limit_error",
	}
	anthropicKinds = map[int]string{
		http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error",
		http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large",
		http.StatusTooManyRequests: "rate_limit_error", http.StatusServiceUnavailable: "overloaded_error",
	}
)

type openAIError struct {
	Error openAIDetail `json:"error"`
}

type openAIDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

type anthropicError struct {
	Type  string          `json:"type"`
	Error anthropicDetail `json:"error"`
}

type anthropicDetail struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

func (f form) body(e *refusal) []byte {
	var v any
	if f == anthropic {
		v = anthropicError{"error", anthropicDetail{f.kind(e.status), e.text}}
	} else {
		d := openAIDetail{Message: e.text, Type: f.kind(e.status)}
		if e.code != "" {
			d.Code = &e.code
		}
		v = openAIError{d}
	}
	b, err := json.Marshal(v)
	if err != nil { // of strings alone: it cannot
		panic(err)
	}
	return b
}

// event is the error as the last event of a stream, which clients raise.
func (f form) event(e *refusal) []byte {
	b := f.body(e)
	if f == anthropic {
		return fmt.Appendf(nil, "event: error\ndata: %s\n\n", b)
	}
	return fmt.Appendf(nil, "data: %s\n\n", b)
}

// write answers with the error.
func (f form) write(w http.ResponseWriter, e *refusal) {
	b := append(f.body(e), '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	if e.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int((e.retry+time.Second-1)/time.Second)))
	}
	if e.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(e.status)
	w.Write(b) //nolint:errcheck // the client is gone
}
