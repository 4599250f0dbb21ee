// Package hub decides how Hugging Face's Hub is asked: for the commit of a revision, for its
// files with their sizes and sums, for a range of a file's bytes. Each call names where it was
// read: Hugging Face's own client, huggingface_hub 2.4.0.
//
// It must not write to a disk, nor say where a file lies. A token goes to the endpoint's own
// origin and nowhere else. Repositories on Xet storage answer plain GETs as well.
package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Endpoint is where the Hub is, unless HF_ENDPOINT says otherwise (huggingface_hub/constants.py).
const Endpoint = "https://huggingface.co"

// Type says what a repository holds.
type Type string

// The types of repositories that are fetched.
const (
	Model   Type = "model"
	Dataset Type = "dataset"
)

// File is one file of a commit. One of its two sums is there.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`  // of the content, for files in LFS or Xet
	GitOID string `json:"git_oid,omitempty"` // git's: SHA-1 of "blob SIZE\0" and the content
}

// ETag is the name of a file's blob in huggingface_hub's cache: the Hub's ETag
// (file_download.py, get_hf_file_metadata).
func (f File) ETag() string { return cmp.Or(f.SHA256, f.GitOID) }

// Revision is what a branch, a tag or a commit stands for at this moment.
type Revision struct {
	Repo   string `json:"repo"`
	Type   Type   `json:"type"`
	Asked  string `json:"asked"`
	Commit string `json:"commit"` // 40 hex digits
	// Restricted says that the repository is gated or private: only whom the Hub lets in may have its files.
	Restricted bool `json:"restricted,omitempty"`
	// Accepted: of what is restricted, the Hub has said that this token's account may have it.
	Accepted bool   `json:"accepted,omitempty"`
	Files    []File `json:"files"`
}

// What the Hub may answer. An error also says what to do.
var (
	ErrNoRepo     = errors.New("no such repository on the Hub, or a private one: check the name, or give a token")
	ErrNoRevision = errors.New("no such revision: name a branch, a tag or a commit of the repository")
	ErrNoFile     = errors.New("no such file in this commit")
	ErrGated      = errors.New("it is gated: accept the licence on its page on the Hub, and give a token of that account")
	ErrToken      = errors.New("the Hub does not accept the token: make one at huggingface.co/settings/tokens")
	ErrOffline    = errors.New("the Hub cannot be reached from here")
	ErrLength     = errors.New("the server sends another length than the Hub promised")
	ErrNoRange    = errors.New("the server sends only whole files")
	ErrStalled    = errors.New("the server sends nothing more")
	ErrPath       = errors.New("a path that leads out of the repository's folder, or hides something")
	ErrAnswer     = errors.New("not an answer of the Hub: check HF_ENDPOINT, and proxies")
)

// RateError is the Hub's "too many requests".
type RateError struct{ After time.Duration }

// Error says when to ask again.
func (e *RateError) Error() string {
	return fmt.Sprintf("too many requests from here: ask the Hub again in %s; with a token it allows more", e.After)
}

// Config says where the Hub is, and how patient its client is.
type Config struct {
	// Endpoint is HF_ENDPOINT; empty: Endpoint.
	Endpoint string
	// Token is sent to Endpoint's origin; empty: none.
	Token string
	// Transport carries requests; nil: a clone of net/http's with its proxies.
	Transport http.RoundTripper
	// UserAgent names the program.
	UserAgent string
	// Idle is how long a server may be silent; 0: 10 s. Then the request is made again.
	Idle time.Duration
	// Tries is how often a request that gives nothing is made; 0: 5.
	Tries int
	// Patience is the longest wait that a "too many requests" is waited for; 0: 1 min. A longer
	// one is a RateError.
	Patience time.Duration
}

// Client asks one endpoint. It may be used by several goroutines.
type Client struct {
	cfg    Config
	base   *url.URL
	http   *http.Client
	wait   func(context.Context, time.Duration) error
	mu     sync.Mutex
	signed map[string]string // where a file's bytes are, until that URL expires
}

// New refuses an endpoint that is none.
func New(cfg Config) (*Client, error) {
	cfg.Endpoint = strings.TrimRight(cmp.Or(cfg.Endpoint, Endpoint), "/")
	cfg.Idle = cmp.Or(cfg.Idle, 10*time.Second)
	cfg.Tries = cmp.Or(cfg.Tries, 5)
	cfg.Patience = cmp.Or(cfg.Patience, time.Minute)
	base, err := url.Parse(cfg.Endpoint)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" || base.User != nil ||
		base.RawQuery != "" {
		return nil, fmt.Errorf("use Hub at %q: want http[s]://HOST[/PATH]", cfg.Endpoint)
	}
	if cfg.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DialContext = (&net.Dialer{Timeout: cfg.Idle}).DialContext // net/http has 30 s
		t.MaxIdleConnsPerHost, t.IdleConnTimeout = 16, 30*time.Second
		t.DisableCompression = true // a range of a compressed file is none of the file
		cfg.Transport = t
	}
	never := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{cfg: cfg, base: base, http: &http.Client{Transport: cfg.Transport, CheckRedirect: never},
		wait: wait, signed: map[string]string{}}, nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

var (
	commitForm = plain.Pattern(`^[0-9a-f]{40}$`)
	sha256Form = plain.Pattern(`^[0-9a-f]{64}$`)
	partForm   = plain.Pattern(`^[\w][\w.-]*$`)
)

// CheckRepo refuses what cannot be a repository's name (huggingface_hub/utils/_validators.py,
// validate_repo_id).
func CheckRepo(repo string, t Type) error {
	parts := strings.Split(repo, "/")
	bad := len(parts) > 2 || len(repo) > 96 || strings.Contains(repo, "--") || strings.Contains(repo, "..") ||
		strings.HasSuffix(repo, ".git")
	for _, p := range parts {
		bad = bad || !partForm().MatchString(p) || strings.HasSuffix(p, "-") || strings.HasSuffix(p, ".")
	}
	if bad {
		return fmt.Errorf("use repository %q: want ORG/NAME of letters, digits, '-', '_' and '.'", repo)
	}
	if t != Model && t != Dataset {
		return fmt.Errorf("use repository %s: type %q: want %s or %s", repo, t, Model, Dataset)
	}
	return nil
}

// CheckFiles refuses paths that lead out of a folder, and two that could not both be in one.
func CheckFiles(files []File) error {
	seen, folders := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		hidden := strings.ContainsFunc(f.Path, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' || r == 0xfffd })
		switch {
		case !fs.ValidPath(f.Path) || f.Path == "." || hidden || len(f.Path) > 1024:
			return fmt.Errorf("file %q: %w", f.Path, ErrPath)
		case seen[f.Path]:
			return fmt.Errorf("file %q: %w: it is there twice", f.Path, ErrPath)
		case f.Size < 0 || f.Size > maxFile:
			return fmt.Errorf("file %q: %w: %d bytes", f.Path, ErrAnswer, f.Size)
		case (f.SHA256 == "") == (f.GitOID == "") || f.SHA256 != "" && !sha256Form().MatchString(f.SHA256) ||
			f.GitOID != "" && !commitForm().MatchString(f.GitOID):
			return fmt.Errorf("file %q: %w: sum %q", f.Path, ErrAnswer, f.ETag())
		}
		seen[f.Path] = true
		for i, r := range f.Path {
			if r == '/' {
				folders[f.Path[:i]] = true
			}
		}
	}
	for f := range folders {
		if seen[f] {
			return fmt.Errorf("file %q: %w: a folder has its name", f, ErrPath)
		}
	}
	return nil
}

// maxFile is more than any file has: 1 PiB.
const maxFile = 1 << 50
