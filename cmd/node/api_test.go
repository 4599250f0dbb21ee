package node

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Each row of the table has its answer: on every node, or on the leader.
func TestEveryRowIsAnswered(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1).hosts[0].now()
	for _, row := range wire.Rows() {
		if !n.server.Answers(row) {
			t.Errorf("nobody answers %s", row.Path())
		}
	}
}

// Any HTTP client on the socket is answered as the commands are.
func TestPlainHTTPOnTheSocket(t *testing.T) {
	t.Parallel()
	h := newCluster(t, 2).hosts[1] // passes it on
	h.wait(2)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.cfg.Paths.Socket)
	}}
	defer tr.CloseIdleConnections()
	ask := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+wire.FaceHost+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: tr}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.ProtoMajor != 1 {
			t.Errorf("%s: %s, %v", path, res.Proto, err)
		}
		return res.StatusCode, string(b)
	}
	code, text := ask(http.MethodGet, "/v1/status", "")
	var st wire.Status
	if err := json.Unmarshal([]byte(text), &st); code != http.StatusOK || err != nil || len(st.Nodes) != 2 || st.Self != h.cfg.Host {
		t.Errorf("status: %d, %v: %s", code, err, text)
	}
	if code, text := ask(http.MethodGet, "/v1/jobs", ""); code != http.StatusOK || text != "[]\n" {
		t.Errorf("jobs: %d: %s", code, text)
	}
	if code, text := ask(http.MethodPost, "/v1/stop", `{"job": "none"}`); code != http.StatusNotFound || !strings.Contains(text, `"no-job"`) {
		t.Errorf("stop: %d: %s", code, text)
	}
	if code, _ := ask(http.MethodPost, "/members/be-removed", "{}"); code != http.StatusNotFound {
		t.Errorf("a call of members: %d", code)
	}
}
