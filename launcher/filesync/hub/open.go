package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Open reads a file's bytes from an offset up to another (-1: to the end). A connection that breaks or
// stalls, and a signed URL that expires, are taken up again where they were, Tries times without a byte
// in between. Nothing is verified here but the length.
//
//	GET /REPO/resolve/COMMIT/PATH             file_download.py, hf_hub_url; datasets under /datasets/
//	302, X-Linked-ETag, X-Linked-Size, X-Repo-Commit, Location   get_hf_file_metadata
//	GET Location with Range, no token         http_get
func (c *Client) Open(ctx context.Context, r *Revision, f File, from, to int64) (io.ReadCloser, error) {
	if to < 0 {
		to = f.Size
	}
	if from < 0 || from > to || to > f.Size {
		return nil, fmt.Errorf("fetch %s: bytes %d to %d of %d", f.Path, from, to, f.Size)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stream{c: c, ctx: ctx, cancel: cancel, r: r, f: f, at: from, to: to}
	if from < to { // so that what the Hub refuses is told at once
		if err := s.connect(); err != nil {
			cancel(nil)
			return nil, s.wrap(err)
		}
	}
	return s, nil
}

type stream struct {
	c      *Client
	ctx    context.Context
	cancel context.CancelCauseFunc
	r      *Revision
	f      File
	at, to int64
	body   io.ReadCloser
	idle   *time.Timer // cuts the request under way
	stop   context.CancelCauseFunc
	empty  int // tries since the last byte
}

func (s *stream) wrap(err error) error {
	return fmt.Errorf("fetch %s of %s at byte %d: %w", s.f.Path, s.r.Repo, s.at, err)
}

// Read gives what comes next.
func (s *stream) Read(p []byte) (int, error) {
	for {
		if s.at == s.to {
			return 0, io.EOF
		}
		if err := s.connect(); err != nil {
			return 0, s.wrap(err)
		}
		s.idle.Reset(s.c.cfg.Idle)
		n, err := s.body.Read(p[:min(int64(len(p)), s.to-s.at)])
		if s.at += int64(n); n > 0 {
			s.empty = 0
		}
		if err != nil && s.at < s.to { // the end came too early, or the connection broke
			s.hangUp()
			if s.empty++; s.empty > 1 {
				_, after := passing(errBroken, s.empty)
				if werr := s.c.wait(s.ctx, after); werr != nil {
					return n, s.wrap(werr)
				}
			}
		}
		if n > 0 || len(p) == 0 {
			return n, nil
		}
	}
}

// Close gives up what is under way.
func (s *stream) Close() error {
	s.hangUp()
	s.cancel(nil)
	return nil
}

func (s *stream) hangUp() {
	if s.body != nil {
		s.idle.Stop()
		s.stop(nil)
		s.body.Close()
		s.body = nil
	}
}

// connect has s.body be at s.at.
func (s *stream) connect() error {
	for s.body == nil {
		if err := context.Cause(s.ctx); err != nil {
			return err
		}
		if s.empty >= s.c.cfg.Tries {
			return fmt.Errorf("%w: %w", ErrStalled, errBroken)
		}
		ctx, stop := context.WithCancelCause(s.ctx)
		idle := time.AfterFunc(s.c.cfg.Idle, func() { stop(ErrStalled) })
		body, err := s.c.get(ctx, s.r, s.f, s.at, s.to)
		if err == nil {
			s.body, s.idle, s.stop = body, idle, stop
			return nil
		}
		idle.Stop()
		stop(nil)
		s.empty++
		again, after := passing(err, s.empty)
		if errors.Is(err, errExpired) { // a URL that is signed anew is no try that failed, but once
			again, after = true, 0
		}
		if !again || s.empty >= s.c.cfg.Tries || after > s.c.cfg.Patience {
			return err
		}
		if err := s.c.wait(s.ctx, after); err != nil {
			return err
		}
	}
	return nil
}

// get is one request for a range: at the signed URL that is known, else at the endpoint.
func (c *Client) get(ctx context.Context, r *Revision, f File, from, to int64) (io.ReadCloser, error) {
	home := c.cfg.Endpoint + "/"
	if r.Type != Model {
		home += string(r.Type) + "s/"
	}
	home += r.Repo + "/resolve/" + r.Commit + "/" + quotePath(f.Path)
	c.mu.Lock()
	at, known := c.signed[home]
	c.mu.Unlock()
	header := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, to-1)}}
	if !known {
		at = home
	}
	for range 10 {
		resp, err := c.once(ctx, http.MethodGet, at, header)
		if err != nil {
			if known && !errors.Is(err, ErrStalled) {
				c.forget(home)
			}
			return nil, err
		}
		on, err := c.sent(resp)
		if err != nil {
			return nil, err
		}
		if sameOrigin(resp.Request.URL, c.base) { // what the Hub itself says of the file
			if err := linked(resp, r, f, on != ""); err != nil {
				resp.Body.Close()
				return nil, err
			}
		}
		if on == "" {
			return c.body(resp, f, from, home, at)
		}
		resp.Body.Close()
		at = on
	}
	return nil, fmt.Errorf("%w: sent on more than ten times", ErrAnswer)
}

// linked refuses another commit or another file than the one that was listed.
func linked(resp *http.Response, r *Revision, f File, away bool) error {
	if commit := resp.Header.Get("X-Repo-Commit"); commit != "" && commit != r.Commit {
		return fmt.Errorf("%w: commit %q, want %s", ErrAnswer, commit, r.Commit)
	}
	etag := resp.Header.Get("X-Linked-ETag")
	if etag = strings.Trim(strings.TrimPrefix(etag, "W/"), `"`); etag != "" && away && etag != f.ETag() {
		return fmt.Errorf("%w: sum %q, want %s", ErrAnswer, etag, f.ETag())
	}
	if size := resp.Header.Get("X-Linked-Size"); size != "" && size != strconv.FormatInt(f.Size, 10) {
		return fmt.Errorf("%w: %s bytes, want %d", ErrLength, size, f.Size)
	}
	return nil
}

var contentRange = plain.Pattern(`^bytes (\d+)-\d+/(\d+|\*)$`)

// skipped is the most that is read over, of a server that sends only whole files.
const skipped = 64 << 20

// mostSigned bounds the URLs that are remembered: each has a kilobyte.
const mostSigned = 256

func (c *Client) body(resp *http.Response, f File, from int64, home, at string) (io.ReadCloser, error) {
	bad := func(err error) (io.ReadCloser, error) {
		resp.Body.Close()
		c.forget(home)
		return nil, err
	}
	away := !sameOrigin(resp.Request.URL, c.base)
	switch resp.StatusCode {
	case http.StatusPartialContent:
		m := contentRange().FindStringSubmatch(resp.Header.Get("Content-Range"))
		if m == nil || m[1] != strconv.FormatInt(from, 10) {
			return bad(fmt.Errorf("%w: range %q", ErrAnswer, resp.Header.Get("Content-Range")))
		}
		if m[2] != "*" && m[2] != strconv.FormatInt(f.Size, 10) {
			return bad(fmt.Errorf("%w: %s bytes, want %d", ErrLength, m[2], f.Size))
		}
	case http.StatusOK:
		if resp.ContentLength >= 0 && resp.ContentLength != f.Size {
			return bad(fmt.Errorf("%w: %d bytes, want %d", ErrLength, resp.ContentLength, f.Size))
		}
		if from > skipped {
			return bad(ErrNoRange)
		}
		if _, err := io.CopyN(io.Discard, resp.Body, from); err != nil {
			return bad(fmt.Errorf("%w: %w", errBroken, err))
		}
	case http.StatusRequestedRangeNotSatisfiable:
		return bad(fmt.Errorf("%w: it has no byte %d", ErrLength, from))
	default:
		if n := resp.StatusCode; away && (n == 400 || n == 401 || n == 403 || n == 404 || n == 410) {
			return bad(errExpired)
		}
		return bad(status(resp))
	}
	if away {
		c.mu.Lock()
		if len(c.signed) >= mostSigned { // a data set's files are many, and each is read once
			clear(c.signed)
		}
		c.signed[home] = at
		c.mu.Unlock()
	}
	return resp.Body, nil
}

func (c *Client) forget(home string) {
	c.mu.Lock()
	delete(c.signed, home)
	c.mu.Unlock()
}
