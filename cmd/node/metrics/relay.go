package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

const (
	// relayMost is how long an engine has for its metrics: one that is busy takes seconds.
	relayMost = 30 * time.Second
	dialMost  = 3 * time.Second
	// idleFor is less than the 5 s after which engines close a connection.
	idleFor = 3 * time.Second
)

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:        (&net.Dialer{Timeout: dialMost}).DialContext,
		DisableCompression: true, // what Prometheus asks for goes on to the engine, and its answer back as it is
		IdleConnTimeout:    idleFor,
	}
}

// passedOn are the headers that an engine gets: in which form the answer may be.
var passedOn = []string{"Accept", "Accept-Encoding", "User-Agent"}

// relay answers with what a service's engine says at its path for metrics.
func (m *Metrics) relay(w http.ResponseWriter, r *http.Request, told gateway.Told, job launcher.JobID) {
	b, why, status := m.metered(told, job)
	if why != "" {
		http.Error(w, why, status)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), relayMost)
	defer cancel()
	(&httputil.ReverseProxy{
		Transport: m.transport,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL = &url.URL{Scheme: "http", Host: b.Addr.String(), Path: b.Metrics}
			pr.Out.Host, pr.Out.Header = "", http.Header{}
			pr.Out.Body, pr.Out.ContentLength, pr.Out.TransferEncoding = http.NoBody, 0, nil
			for _, name := range passedOn {
				if v := pr.In.Header[name]; v != nil {
					pr.Out.Header[name] = v
				}
			}
		},
		// Prometheus would follow a redirect with its key, to wherever the job's owner wants. And a browser must not run
		// what the owner wrote, nor keep a cookie of it for this machine's page.
		ModifyResponse: func(res *http.Response) error {
			res.Header.Del("Set-Cookie")
			res.Header.Set("Content-Security-Policy", "sandbox")
			res.Header.Set("X-Content-Type-Options", "nosniff")
			if res.StatusCode >= 300 && res.StatusCode < 400 {
				return fmt.Errorf("it answers %s", res.Status)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("it has not answered for %s", relayMost)
			}
			http.Error(w, fmt.Sprintf("read metrics of job %s at %s%s: %v", job, b.Addr, b.Metrics, err),
				http.StatusBadGateway)
		},
	}).ServeHTTP(w, r.WithContext(ctx))
}

// metered finds a service whose metrics can be read, or says why they cannot.
func (m *Metrics) metered(told gateway.Told, job launcher.JobID) (b rendezvous.Backend, why string, status int) {
	i := slices.IndexFunc(told.Backends, func(b rendezvous.Backend) bool { return b.Job == job })
	if i < 0 {
		return b, fmt.Sprintf("no service is job %.64q: `sparkrun service ls` lists them", job), http.StatusNotFound
	}
	switch b = told.Backends[i]; {
	case b.Metrics == "":
		return b, fmt.Sprintf("job %s has no metrics: launch exec takes --metrics PATH", job), http.StatusNotFound
	case b.Local && b.Host != m.cfg.Host:
		return b, fmt.Sprintf("job %s listens on loopback: ask %s", job, b.Host), http.StatusServiceUnavailable
	case !b.Addr.IsValid():
		return b, fmt.Sprintf("job %s does not answer now: it is %s", job, b.State), http.StatusServiceUnavailable
	}
	return b, "", 0
}
