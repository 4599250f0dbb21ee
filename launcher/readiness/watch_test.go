package readiness

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// answers has whoever connects told the same, and gives the address.
func answers(t *testing.T, text string) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = c.Write([]byte(text))
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// Who answers may be anybody: what is told of it goes to terminals and into the cluster's events.
func TestAnswersAreToldInOurWords(t *testing.T) {
	w := &Watcher{Assignment: launcher.Assignment{Spec: launcher.Spec{Service: &launcher.Service{Health: "/health"}}}}
	for name, tt := range map[string]struct{ answer, want string }{
		"a terminal's codes": {"HTTP/1.1 500 \x1b[2J\x1b]0;owned\x07\r\n\r\n", "500 Internal Server Error"},
		"a megabyte":         {"HTTP/1.1 503 " + strings.Repeat("x", 1<<20) + "\r\n\r\n", "503 Service Unavailable"},
		"no such code":       {"HTTP/1.1 599 \xff\r\n\r\n", "599"},
	} {
		addr := answers(t, tt.answer)
		for what, err := range map[string]error{
			"probe":    get(t.Context(), "http://"+addr+"/health"),
			"look":     w.healthAt(t.Context(), addr),
			"question": askJSON(t.Context(), http.MethodGet, "http://"+addr+"/v1/models", nil, nil),
		} {
			if got := fmt.Sprint(err); !strings.HasSuffix(got, "it answers "+tt.want) {
				t.Errorf("%s: %s: %.200q", name, what, got)
			}
		}
	}
	addr := answers(t, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\r\n\r\n")
	var into struct{}
	if err := askJSON(t.Context(), http.MethodPost, "http://"+addr+"/v1/completions", nil, &into); err == nil ||
		err.Error() != "its answer is not valid JSON" {
		t.Errorf("a stream: %v", err)
	}
}

// Where a server may be found: "::" is IPv6 alone for a server of Python's asyncio.
func TestWhereAServerListens(t *testing.T) {
	for listen, want := range map[string][]string{
		"":          {"10.0.0.1", "192.168.1.1", "127.0.0.1"},
		"0.0.0.0":   {"10.0.0.1", "192.168.1.1", "127.0.0.1"},
		"::":        {"10.0.0.1", "192.168.1.1", "127.0.0.1", "::1"},
		"::1":       {"::1", "10.0.0.1", "192.168.1.1", "127.0.0.1"},
		"10.9.9.9":  {"10.9.9.9", "10.0.0.1", "192.168.1.1", "127.0.0.1"},
		"spark1":    {"10.0.0.1", "192.168.1.1", "127.0.0.1"},
		"127.0.0.1": {"127.0.0.1", "10.0.0.1", "192.168.1.1"},
	} {
		as := launcher.Assignment{Spec: launcher.Spec{Service: &launcher.Service{Listen: listen}}}
		if d := cmp.Diff(want, hereAt(as, launcher.Placement{Management: "10.0.0.1", Addr: "192.168.1.1"})); d != "" {
			t.Errorf("%q:\n%s", listen, d)
		}
	}
}

// A server that begins to listen on all addresses while it is looked for is found at the best one.
func TestAServerBeginsToListen(t *testing.T) {
	for round := range 400 {
		free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":0")
		must(t, err)
		_, port, err := net.SplitHostPort(free.Addr().String())
		must(t, err)
		free.Close()
		w := &Watcher{Port: port, Assignment: launcher.Assignment{Management: netip.MustParseAddr("127.0.0.2"),
			Addr: netip.MustParseAddr("127.0.0.3"), Spec: launcher.Spec{Service: &launcher.Service{}}}}
		begun := make(chan net.Listener)
		go func() {
			for end := time.Now().Add(time.Duration(round) * time.Microsecond); time.Now().Before(end); {
			}
			l, _ := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":"+port)
			begun <- l
		}()
		for w.health(t.Context()) != nil {
		}
		l := <-begun
		if l == nil {
			continue // another program has taken the port
		}
		l.Close()
		if want := "127.0.0.2:" + port; w.addr != want {
			t.Fatalf("round %d: it is found at %s, want %s", round, w.addr, want)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
