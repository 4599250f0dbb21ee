package oci

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// Login is what a registry is told of a user.
type Login struct {
	Username     string `json:"username,omitempty"`
	Password     string `json:"password,omitempty"`
	RefreshToken string `json:"refresh_token,omitempty"` // docker's identity token
	AccessToken  string `json:"access_token,omitempty"`
}

// Config of a Source.
type Config struct {
	Ref   reference.Named
	Login Login
	// Insecure: its certificate is not looked at, and where it has none HTTP will do.
	Insecure bool
	// Certs is the folder with registries' own authorities, one folder each, as docker's; empty: none.
	Certs     string
	UserAgent string
}

// Source is an image's repository in its registry.
type Source struct {
	ref    reference.Named
	repo   *remote.Repository
	client *auth.Client
	base   string // URL of the repository
}

const (
	dialWithin   = 5 * time.Second
	answerWithin = 30 * time.Second
	probeWithin  = 3 * time.Second
)

// Open asks nothing yet, except where HTTP may have to do.
func Open(ctx context.Context, cfg Config) (*Source, error) {
	host, path := reference.Domain(cfg.Ref), reference.Path(cfg.Ref)
	tlsConf := &tls.Config{InsecureSkipVerify: cfg.Insecure} //nolint:gosec // docker's word, of this machine
	if cfg.Certs != "" {
		tlsConf.RootCAs = authorities(filepath.Join(cfg.Certs, host))
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConf, ForceAttemptHTTP2: true,
		DialContext:         (&net.Dialer{Timeout: dialWithin}).DialContext,
		TLSHandshakeTimeout: dialWithin, ResponseHeaderTimeout: answerWithin, IdleConnTimeout: answerWithin,
		MaxIdleConnsPerHost: 16}
	repo, err := remote.NewRepository(host + "/" + path)
	if err != nil {
		return nil, fmt.Errorf("use registry %s: %w", host, err)
	}
	s := &Source{ref: cfg.Ref, repo: repo}
	// A login is sent to its registry alone: the client drops it where a redirect leads elsewhere.
	s.client = &auth.Client{Client: &http.Client{Transport: transport}, Cache: auth.NewCache(),
		Credential: auth.StaticCredential(host, auth.Credential{Username: cfg.Login.Username,
			Password: cfg.Login.Password, RefreshToken: cfg.Login.RefreshToken, AccessToken: cfg.Login.AccessToken})}
	s.client.SetUserAgent(cfg.UserAgent)
	repo.Client = s.client
	scheme := "https"
	if cfg.Insecure && !speaksTLS(ctx, transport, repo.Reference.Host()) {
		scheme, repo.PlainHTTP = "http", true
	}
	s.base = scheme + "://" + repo.Reference.Host() + "/v2/" + path
	return s, nil
}

// URL is where it is read from.
func (s *Source) URL() string { return s.base }

// Close closes connections that wait.
func (s *Source) Close() { s.client.Client.CloseIdleConnections() }

func speaksTLS(ctx context.Context, t http.RoundTripper, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/v2/", nil)
	if err != nil {
		return true
	}
	res, err := t.RoundTrip(r)
	if err != nil {
		return false
	}
	res.Body.Close()
	return true
}

// authorities are the system's, and those of a folder; nil: the system's alone.
func authorities(dir string) *x509.CertPool {
	files, _ := filepath.Glob(filepath.Join(dir, "*.crt"))
	if len(files) == 0 {
		return nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil {
			pool.AppendCertsFromPEM(text)
		}
	}
	return pool
}

// Resolve looks the reference up.
func (s *Source) Resolve(ctx context.Context, arches []string) (Image, error) {
	what := "latest"
	switch ref := s.ref.(type) {
	case reference.Digested:
		what = ref.Digest().String()
	case reference.Tagged:
		what = ref.Tag()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*answerWithin)
	defer cancel()
	root, body, err := s.repo.Manifests().FetchReference(ctx, what)
	if err != nil {
		return Image{}, s.judge(err)
	}
	text, err := readAll(body, root)
	if err != nil {
		return Image{}, s.judge(err)
	}
	im, err := Resolve(ctx, root, arches, func(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
		if d.Digest == root.Digest {
			return text, nil
		}
		from := s.repo.Blobs()
		if isManifest(d.MediaType) {
			from = s.repo.Manifests()
		}
		body, err := from.Fetch(ctx, d)
		if err != nil {
			return nil, s.judge(err)
		}
		text, err := readAll(body, d)
		if err != nil {
			return nil, s.judge(err)
		}
		return text, nil
	})
	return im, err
}

func isManifest(kind string) bool {
	switch kind {
	case ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, dockerList, dockerManifest:
		return true
	}
	return false
}

func readAll(body io.ReadCloser, d ocispec.Descriptor) ([]byte, error) {
	defer body.Close()
	if d.Size > maxManifest {
		return nil, fmt.Errorf("read %s: %d bytes, want %d at most", d.Digest, d.Size, maxManifest)
	}
	return content.ReadAll(body, d)
}

// OpenBlob reads a part of a content.
func (s *Source) OpenBlob(ctx context.Context, b Blob, off, n int64) (io.ReadCloser, error) {
	if b.Type != "" { // registries give manifests whole
		d := ocispec.Descriptor{MediaType: b.Type, Digest: digest.Digest(b.Digest()), Size: b.Size}
		body, err := s.repo.Manifests().Fetch(ctx, d)
		if err != nil {
			return nil, s.judge(err)
		}
		text, err := readAll(body, d)
		if err != nil {
			return nil, s.judge(err)
		}
		return io.NopCloser(bytes.NewReader(text[off : off+n])), nil
	}
	ctx = auth.AppendRepositoryScope(ctx, s.repo.Reference, auth.ActionPull)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/blobs/"+b.Digest(), nil)
	if err != nil {
		return nil, err
	}
	whole := off == 0 && n == b.Size
	if !whole {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	}
	res, err := s.client.Do(r)
	if err != nil {
		return nil, s.judge(err)
	}
	switch {
	case res.StatusCode == http.StatusPartialContent && !whole, res.StatusCode == http.StatusOK && whole:
		return res.Body, nil
	case res.StatusCode == http.StatusOK && off == 0: // it is read no further than wanted
		return res.Body, nil
	}
	res.Body.Close()
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return nil, fmt.Errorf("read %s of %s: %w", b.Digest(), s.base, ErrNoRange)
	}
	return nil, s.judgeCode(res.StatusCode, fmt.Errorf("read %s: %s", b.Digest(), res.Status))
}

// judge says what an error of a registry means.
func (s *Source) judge(err error) error {
	var answer *errcode.ErrorResponse
	if errors.As(err, &answer) {
		return s.judgeCode(answer.StatusCode, err)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(err, auth.ErrBasicCredentialNotFound) {
		return s.judgeCode(http.StatusUnauthorized, err)
	}
	if errors.Is(err, errdef.ErrNotFound) {
		return s.judgeCode(http.StatusNotFound, err)
	}
	return fmt.Errorf("%w: %s: %v", ErrOffline, s.base, err) //nolint:errorlint // a time-out there is none of the caller's
}

func (s *Source) judgeCode(code int, err error) error {
	switch code {
	case http.StatusNotFound:
		return fmt.Errorf("%w in %s: %w", ErrNoImage, s.base, err)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: %s: %w: does the name exist, and may you have it: `docker login %s`", ErrLogin, s.base, err,
			reference.Domain(s.ref))
	}
	return fmt.Errorf("%w: %s: %w", ErrOffline, s.base, err)
}
