package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Passing troubles: the request is made again.
var (
	errBroken  = errors.New("the connection broke")
	errBusy    = errors.New("the server is in trouble")
	errExpired = errors.New("the signed URL has expired")
)

// follow makes a request and goes where it is sent, ten times at most. The token goes to the endpoint's
// own origin: net/http would also send it to subdomains, and huggingface_hub (file_download.py,
// _is_same_or_hub_host) to other hosts of the Hub.
func (c *Client) follow(ctx context.Context, method, at string, header http.Header) (*http.Response, error) {
	for range 10 {
		resp, err := c.once(ctx, method, at, header)
		if err != nil {
			return nil, err
		}
		to, err := c.sent(resp)
		if err != nil || to == "" {
			return resp, err
		}
		resp.Body.Close()
		at = to
	}
	return nil, fmt.Errorf("%w: sent on more than ten times", ErrAnswer)
}

// once makes one request, and does not go where it is sent.
func (c *Client) once(ctx context.Context, method, at string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, at, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Accept-Encoding", "identity")
	if c.cfg.UserAgent != "" {
		req.Header.Set("User-Agent", c.cfg.UserAgent)
	}
	if c.cfg.Token != "" && sameOrigin(req.URL, c.base) {
		req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	}
	resp, err := c.http.Do(req)
	if err == nil {
		return resp, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	// A url.Error has the whole URL in it, and a signed one is as good as a token.
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrOffline, req.URL.Host, err)
}

// sent is where a response sends on to; empty: nowhere.
func (c *Client) sent(resp *http.Response) (string, error) {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
	default:
		return "", nil
	}
	to, err := resp.Location()
	if err != nil {
		resp.Body.Close()
		return "", fmt.Errorf("%w: sent on to nowhere", ErrAnswer)
	}
	if to.Scheme != "https" && (resp.Request.URL.Scheme == "https" || to.Scheme != "http") {
		resp.Body.Close()
		return "", fmt.Errorf("%w: sent on from %s to %s://%s", ErrAnswer, resp.Request.URL.Scheme, to.Scheme, to.Host)
	}
	return to.String(), nil
}

func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if p := u.Port(); p != "" {
			return p
		}
		return map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

// status makes an error of an answer (huggingface_hub/utils/_http.py, hf_raise_for_status).
func status(resp *http.Response) error {
	if resp.StatusCode < 300 {
		return nil
	}
	// So that the connection can be used again.
	defer func() { _, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16)) }()
	code, says := resp.Header.Get("X-Error-Code"), resp.Header.Get("X-Error-Message")
	switch code {
	case "GatedRepo":
		return ErrGated
	case "RepoNotFound":
		return ErrNoRepo
	case "RevisionNotFound":
		return ErrNoRevision
	case "EntryNotFound":
		return ErrNoFile
	}
	switch n := resp.StatusCode; {
	case n == http.StatusUnauthorized && (resp.Request.Header.Get("Authorization") != "" ||
		says == "Invalid credentials in Authorization header"):
		return ErrToken
	case n == http.StatusUnauthorized: // the Hub hides that a repository does not exist
		return ErrNoRepo
	case n == http.StatusTooManyRequests:
		return &RateError{After: retryAfter(resp.Header)}
	case n >= 500 || n == http.StatusRequestTimeout:
		return fmt.Errorf("%w: %s", errBusy, resp.Status)
	case says != "":
		return fmt.Errorf("the Hub answers %s: %q", resp.Status, says)
	}
	return fmt.Errorf("%w: %s answers %s", ErrAnswer, resp.Request.URL.Host, resp.Status)
}

// retryAfter reads Retry-After, else the seconds of RateLimit's t=
// (huggingface_hub/utils/_http.py, parse_ratelimit_headers); 0: not said.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	if text == "" {
		for _, f := range strings.FieldsFunc(h.Get("RateLimit"), func(r rune) bool { return r == ';' || r == ',' }) {
			if s, ok := strings.CutPrefix(strings.TrimSpace(f), "t="); ok {
				text = s
			}
		}
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// patiently repeats what failed for a passing reason. Each try may be silent for Idle.
func (c *Client) patiently(ctx context.Context, do func(context.Context) error) error {
	for try := 1; ; try++ {
		err := func() error {
			ctx, cancel := context.WithTimeoutCause(ctx, 3*c.cfg.Idle, ErrStalled)
			defer cancel()
			return do(ctx)
		}()
		again, after := passing(err, try)
		if !again || ctx.Err() != nil || try >= c.cfg.Tries || after > c.cfg.Patience {
			return err
		}
		if err := c.wait(ctx, after); err != nil {
			return err
		}
	}
}

// passing says whether an error may be gone the next time, and how long to wait for that.
func passing(err error, try int) (bool, time.Duration) {
	backoff := min(250*time.Millisecond<<min(try, 8), 8*time.Second)
	var rate *RateError
	switch {
	case err == nil:
		return false, 0
	case errors.As(err, &rate):
		return true, max(rate.After, backoff)
	case errors.Is(err, errBusy), errors.Is(err, errBroken), errors.Is(err, ErrStalled):
		return true, backoff
	case errors.Is(err, ErrOffline): // asked once more: a server may just have closed the connection
		return try == 1, backoff
	}
	return false, 0
}
