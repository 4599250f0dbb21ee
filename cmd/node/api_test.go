package node

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
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

// A machine that answers is not marked dead, and nobody takes over beside a leader: for root as well.
func TestConflicts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	h := c.hosts[0]
	h.wait(2)
	cl := h.now().server.As(asRoot)
	for what, err := range map[string]error{
		"mark-dead": func() error {
			_, err := wire.MarkDead.Call(t.Context(), cl, wire.MarkDeadRequest{Host: c.hosts[1].cfg.Host})
			return err
		}(),
		"takeover": func() error {
			_, err := wire.Takeover.Call(t.Context(), cl, wire.TakeoverRequest{Dead: []string{c.hosts[1].cfg.Host}})
			return err
		}(),
	} {
		if !errors.Is(err, wire.ErrConflict) || errors.Is(err, wire.ErrDenied) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// chapterLaunch is the request of the launch in `sparkrun help api`.
func chapterLaunch(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../sparkrun/help/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "/v1/launch -N -d '")
	text, _, found := strings.Cut(text, "'")
	if !found {
		t.Fatal("the chapter has no launch")
	}
	return text
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
	launch := chapterLaunch(t)
	h.eventually("the launch has ended well", func() bool { // asked again while the leadership is on its way
		_, text := ask(http.MethodPost, "/v1/launch", launch)
		return strings.Contains(text, `"end":"completed"`)
	})
	if code, text := ask(http.MethodPost, "/v1/logs", `{"job": "hello"}`); code != http.StatusOK || strings.Count(text, `"data":"cmFuayA`) != 2 {
		t.Errorf("logs: %d: %s", code, text)
	}
	if code, _ := ask(http.MethodPost, "/members/be-removed", "{}"); code != http.StatusNotFound {
		t.Errorf("a call of members: %d", code)
	}
}
