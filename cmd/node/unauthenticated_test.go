package node

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
)

// Somebody who shows no certificate is told no while their request is still on its way, for every call that is not
// for newcomers; of those that are, few are under way at once. A request is kept in memory whole, and 64 connections of
// 250 calls of 4 MiB each would be 62 GB.
func TestUnauthenticatedMessagesAreNotRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	h := c.hosts[0]
	h.wait(1)
	unauthenticated := func() *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, Protocols: new(http.Protocols)} //nolint:gosec // who has no CA does so
		tr.Protocols.SetHTTP2(true)
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: 2 * time.Minute}
	}
	base := "https://" + net.JoinHostPort(h.addr, strconv.Itoa(membership.DefaultRPCPort))
	// begin sends the headers of a call, and nothing of what it says, until end.
	begin := func(ctx context.Context, hc *http.Client, path string) (status int, err error) {
		body, end := io.Pipe()
		defer end.Close()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/cbor")
		res, err := hc.Do(req)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	hc := unauthenticated()
	for _, path := range []string{"/v1/stop", "/v1/logs", "/members/keep-ca", "/members/control", "/"} {
		if status, err := begin(t.Context(), hc, path); status != http.StatusForbidden {
			t.Errorf("%s: status %d, %v", path, status, err)
		}
	}

	const atOnce = 4
	// Four wait for what they say; the others hear no at once.
	hc = unauthenticated()
	if status, err := begin(t.Context(), hc, "/"); status != http.StatusForbidden { // and there is one connection
		t.Fatalf("status %d, %v", status, err)
	}
	var refused atomic.Int32
	var all sync.WaitGroup
	enough := make(chan struct{})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for range atOnce + 6 {
		all.Go(func() {
			if status, _ := begin(ctx, hc, "/newcomers/join"); status == http.StatusTooManyRequests && refused.Add(1) == 6 {
				close(enough)
			}
		})
	}
	select {
	case <-enough:
	case <-time.After(time.Minute):
		t.Errorf("%d of %d calls were refused", refused.Load(), atOnce+6)
	}
	if out := h.run(command(1, 1, "true")); out.End != rendezvous.Completed {
		t.Errorf("a launch meanwhile: %+v", out)
	}
	leave()
	all.Wait()
	if n := refused.Load(); n != 6 {
		t.Errorf("%d calls were refused, want 6", n)
	}
}
