package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// gatewayView is what gateway ls --json says.
type gatewayView struct {
	Keys      int                          `json:"keys"`
	Addresses []struct{ Host, URL string } `json:"addresses"`
	Backends  []struct {
		Name  string `json:"name"`
		State string `json:"state"`
		Ready bool   `json:"ready"`
	} `json:"backends"`
}

func (l *lab) gateway(host string) (g gatewayView) {
	l.t.Helper()
	if err := json.Unmarshal([]byte(l.on(host, "sparkrun", "gateway", "ls", "--json").must(l.t).out), &g); err != nil {
		l.t.Fatal(err)
	}
	return g
}

const loopback = "http://127.0.0.1:7942/v1"

// chat asks a model by curl, and gives what is answered after the status.
func (l *lab) chat(host, url, model, key string, more ...string) *running {
	l.t.Helper()
	body := fmt.Sprintf(`{"model": %q, "messages": [{"role": "user", "content": "Hello"}]%s}`, model, strings.Join(more, ""))
	args := []string{"curl", "-sN", "-m", "100", "-w", "\n%{http_code}\n", "-H", "Content-Type: application/json", "-d", body}
	if key != "" {
		args = append(args, "-H", "Authorization: Bearer "+key)
	}
	return l.start(host, append(args, url+"/chat/completions")...)
}

// says checks that a request is answered so.
func (l *lab) says(r *running, status int, want string) {
	l.t.Helper()
	got := r.wait()
	if !strings.HasSuffix(strings.TrimSpace(got.out), fmt.Sprint("\n", status)) || !strings.Contains(got.out, want) {
		l.t.Errorf("want status %d and %q; %s", status, want, got)
	}
}

// One address on each host leads to the model, wherever it runs: with a key and by an alias from elsewhere, through the
// end of its server and of the leader.
func TestGateway(t *testing.T) {
	t.Parallel()
	hosts := []string{"spark1", "spark2", "spark3"}
	l := up(t, len(hosts))
	script, err := filepath.Abs("testdata/standin_chat.py")
	if err != nil {
		t.Fatal(err)
	}
	l.on("spark1", "sparkrun", "launch", "exec", "--name", "llm", "--on", "spark2", "--serve", "8000", "--health", "/health",
		"--model", "qwen", "--", "python3", script, "8000").must(t)
	ready := func() {
		t.Helper()
		for _, host := range hosts {
			eventually(t, 30*time.Second, "the model at "+host, func() bool {
				return strings.Contains(l.on(host, "curl", "-s", "-m", "5", loopback+"/models").out, `"qwen"`)
			})
		}
	}
	ready()
	for _, host := range hosts {
		l.says(l.chat(host, loopback, "qwen", ""), 200, "qwen of spark2 by nobody")
	}
	l.says(l.chat("spark1", loopback, "qwem", ""), 404, "did you mean qwen?")

	key := strings.TrimSpace(l.on("spark3", "sparkrun", "gateway", "key", "create", "webui").must(t).out)
	l.on("spark1", "sparkrun", "gateway", "alias", "set", "gpt-4o", "qwen").must(t)
	at := l.gateway("spark2").Addresses
	if len(at) != len(hosts) {
		t.Fatalf("addresses: %v", at)
	}
	for i, a := range at {
		from := hosts[(i+1)%len(hosts)]
		eventually(t, 30*time.Second, "the gateway of "+a.Host+" for others", func() bool {
			return l.on(from, "curl", "-s", "-m", "5", "-o", "/dev/null", a.URL+"/models").code == 0
		})
		l.says(l.chat(from, a.URL, "qwen", ""), 401, "a key is needed")
		l.says(l.chat(from, a.URL, "qwen", key), 200, "qwen of spark2 by nobody") // the key stays here
		l.says(l.chat(from, a.URL, "gpt-4o", key), 200, "of spark2")
	}

	// A request waits while the server starts anew.
	l.on("spark2", "pkill", "-KILL", "-f", "standin_chat.py").must(t)
	eventually(t, 30*time.Second, "the end of the server is known", func() bool { return !l.gateway("spark1").Backends[0].Ready })
	l.says(l.chat("spark3", loopback, "qwen", key), 200, "qwen of spark2")
	if s := l.service("spark1", "llm"); s.Generation != 2 {
		t.Errorf("it answers in generation %d", s.Generation)
	}

	// The leader's agent ends: what goes through others goes on, and they answer all the time.
	leader := l.leader("spark1")
	through := other(len(hosts), leader)[0]
	stream := l.chat(through, loopback, "qwen", key, `, "stream": true, "max_tokens": 20`)
	time.Sleep(2 * time.Second) // until it is under way
	l.do("kill", leader, "--agent")
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		for _, host := range other(len(hosts), leader) {
			l.says(l.chat(host, loopback, "qwen", key), 200, "qwen of spark2")
		}
	}
	l.says(stream, 200, "word19")
	l.do("start", leader, "--agent")
	l.on(leader, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "90s").must(t)
	eventually(t, 30*time.Second, "it answers again", func() bool {
		got := l.chat(leader, loopback, "qwen", key).wait()
		return strings.Contains(got.out, "qwen of spark2")
	})

	// After the last key only its own machine reaches a gateway.
	if out := l.on("spark2", "sparkrun", "gateway", "key", "revoke", "webui").must(t); !strings.Contains(out.err, "alone") {
		t.Errorf("revoked: %s", out)
	}
	eventually(t, 30*time.Second, "nobody else reaches it", func() bool {
		return l.on("spark1", "curl", "-s", "-m", "5", "-o", "/dev/null", at[2].URL+"/models").code == 7
	})
	l.says(l.chat("spark3", loopback, "gpt-4o", ""), 200, "qwen of spark2")
	if r := l.on("spark1", "sparkrun", "gateway", "stats").must(t); !strings.Contains(r.out, "qwen    webui") {
		t.Errorf("what was asked for: %s", r)
	}
	l.on("spark1", "sparkrun", "stop", "llm").must(t)
	eventually(t, 30*time.Second, "the model is gone", func() bool {
		return strings.HasSuffix(strings.TrimSpace(l.chat("spark3", loopback, "qwen", "").wait().out), "\n404")
	})
	l.assertNothingLeft(hosts...)
}
