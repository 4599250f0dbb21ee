package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Between members a file is read by HTTP/1.1, so that a connection carries one piece at a
// time and several of them use several cores:
//
//	GET /state?file=KEY&from=N&wait=MS   a State, as JSON
//	GET /bytes?file=KEY, Range           the bytes, once they are verified
const (
	statePath = "/state"
	bytesPath = "/bytes"
	// slowest is how long a reader may take for one buffer before it is given up.
	slowest = time.Minute
)

// ErrUnknown: the member has nothing of this file, or does not know of it yet.
var ErrUnknown = errors.New("has no such file")

type wireState struct {
	Sums    []byte `json:"sums,omitempty"` // one after the other
	Outside bool   `json:"outside,omitempty"`
	Stuck   bool   `json:"stuck,omitempty"`
	Word    Word   `json:"word,omitempty"`
	Root    []byte `json:"root,omitempty"`
	Failed  string `json:"failed,omitempty"`
}

// Handler answers other members. find gives a file by its key, which only the caller
// understands; an error means that there is none, or that this request may not have it.
func Handler(find func(r *http.Request, key string) (Source, error)) http.Handler {
	buffers := sync.Pool{New: func() any { b := make([]byte, readBytes); return &b }}
	mux := http.NewServeMux()
	with := func(answer func(http.ResponseWriter, *http.Request, Source)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			src, err := find(r, r.FormValue("file"))
			if err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			}
			answer(w, r, src)
		}
	}
	mux.HandleFunc("GET "+statePath, with(answerState))
	mux.HandleFunc("GET "+bytesPath, with(func(w http.ResponseWriter, r *http.Request, src Source) {
		off, n, ok := parseRange(r.Header.Get("Range"))
		if !ok {
			http.Error(w, "want a Range of bytes=FIRST-LAST", http.StatusBadRequest)
			return
		}
		body, err := src.Open(r.Context(), off, n)
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestedRangeNotSatisfiable)
			return
		}
		defer body.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/*", off, off+n-1))
		w.WriteHeader(http.StatusPartialContent)
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		if err := send(w, body, *buf); err != nil {
			panic(http.ErrAbortHandler) // the reader sees that it is short
		}
	}))
	return mux
}

func answerState(w http.ResponseWriter, r *http.Request, src Source) {
	from, err := strconv.Atoi(r.FormValue("from"))
	ms, err2 := strconv.Atoi(r.FormValue("wait"))
	if err != nil || err2 != nil || from < 0 {
		http.Error(w, "want from=CHUNK&wait=MILLISECONDS", http.StatusBadRequest)
		return
	}
	s, err := src.State(r.Context(), from, min(time.Duration(ms)*time.Millisecond, stall))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	out := wireState{Outside: s.Outside, Stuck: s.Stuck, Word: s.Word, Failed: s.Failed}
	for _, sum := range s.Sums {
		out.Sums = append(out.Sums, sum[:]...)
	}
	if s.Word != "" {
		out.Root = s.Root[:]
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the reader has gone
}

// send copies in large writes, each of which the other end has to take within a time.
func send(w http.ResponseWriter, body io.Reader, buf []byte) error {
	c := http.NewResponseController(w)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			_ = c.SetWriteDeadline(time.Now().Add(slowest)) // a test's recorder has none
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

func parseRange(text string) (off, n int64, ok bool) {
	spec, is := strings.CutPrefix(text, "bytes=")
	first, last, two := strings.Cut(spec, "-")
	off, err := strconv.ParseInt(first, 10, 64)
	end, err2 := strconv.ParseInt(last, 10, 64)
	return off, end - off + 1, is && two && err == nil && err2 == nil && off >= 0 && end >= off && end < math.MaxInt64
}

// Remote is a member's file, read over HTTP.
type Remote struct {
	Client *http.Client
	Base   string // https://MEMBER
	Key    string
}

// State is a Source's.
func (m Remote) State(ctx context.Context, from int, wait time.Duration) (State, error) {
	q := url.Values{"file": {m.Key}, "from": {strconv.Itoa(from)}, "wait": {strconv.FormatInt(wait.Milliseconds(), 10)}}
	body, err := m.get(ctx, statePath, q, "", http.StatusOK)
	if err != nil {
		return State{}, err
	}
	defer body.Close()
	var got wireState
	if err := json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&got); err != nil {
		return State{}, fmt.Errorf("ask for a file's state: %w", err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 1)) // so that the connection is used again
	s := State{Outside: got.Outside, Stuck: got.Stuck, Word: got.Word, Failed: got.Failed}
	if s.Word != "" && s.Word != Right && s.Word != Wrong {
		return State{}, fmt.Errorf("ask for a file's state: word %.16q", s.Word)
	}
	if len(got.Sums)%32 != 0 || s.Word != "" && len(got.Root) != 32 {
		return State{}, errors.New("ask for a file's state: sums of a wrong length")
	}
	for b := range slices.Chunk(got.Sums, 32) {
		s.Sums = append(s.Sums, Sum(b))
	}
	if s.Word != "" {
		s.Root = Sum(got.Root)
	}
	return s, nil
}

// Open is a Source's.
func (m Remote) Open(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	return m.get(ctx, bytesPath, url.Values{"file": {m.Key}}, fmt.Sprintf("bytes=%d-%d", off, off+n-1),
		http.StatusPartialContent)
}

func (m Remote) get(ctx context.Context, path string, q url.Values, span string, want int) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.Base+path+"?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if span != "" {
		r.Header.Set("Range", span)
	}
	resp, err := m.Client.Do(r)
	if err != nil {
		if ue, is := errors.AsType[*url.Error](err); is { // its text has the whole URL, which tells a reader nothing
			err = ue.Err
		}
		return nil, err
	}
	if resp.StatusCode == want {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	why, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	if resp.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%w: %s", ErrUnknown, strings.TrimSpace(string(why)))
	}
	return nil, fmt.Errorf("read a member's file: %s: %s", resp.Status, strings.TrimSpace(string(why)))
}

// NewClient makes the client for one member. dial opens its k-th connection; the caller
// spreads them over the routes that there are.
func NewClient(dial func(ctx context.Context, k int) (net.Conn, error)) *http.Client {
	var k atomic.Int64
	t := &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, int(k.Add(1)-1))
		},
		DisableCompression: true,
		// Of a few files at once.
		MaxIdleConnsPerHost: 4 * memberConns,
		IdleConnTimeout:     30 * time.Second,
		ReadBufferSize:      64 << 10,
	}
	return &http.Client{Transport: t}
}
