package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hookServer keeps what is posted to it, a line each, in a file.
const hookServer = `
import http.server, sys
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[1], "ab") as f:
            f.write(body + b"\n")
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("", 9001), Hook).serve_forever()
`

// A job's failure is told once, with its cause, though the webhook is off at first and the leader dies meanwhile; the
// job does not notice.
func TestNotify(t *testing.T) {
	t.Parallel()
	l := up(t, 3)
	leader := l.leader("spark1")
	others := other(3, leader)
	hook, fails := others[0], others[1]
	file := filepath.Join(scratch(t), "told")
	addr := strings.Fields(l.on(hook, "sh", "-c", "getent hosts "+hook+" || hostname -I").must(t).out)[0]
	l.on(fails, "sparkrun", "notify", "add", "webhook", "--name", "team", "http://"+addr+":9001/s3cret").must(t)
	if r := l.on(leader, "sparkrun", "notify", "test", "team"); r.code != 1 || !strings.Contains(r.err, "connection refused") {
		t.Errorf("a test of what is off: %s", r)
	}
	if r := l.on(leader, "sparkrun", "launch", "exec", "--name", "train", "--on", fails, "--", "sh", "-c",
		"echo it went boom >&2; exit 3"); r.code != 3 {
		t.Errorf("the job: %s", r)
	}
	eventually(t, 10*time.Second, "notify ls says what is wrong", func() bool {
		r := l.on(hook, "sparkrun", "notify", "ls").must(t)
		return strings.Contains(r.out, "connection refused") && !strings.Contains(r.out, "s3cret")
	})

	l.do("kill", leader, "--agent")
	server := l.start(hook, "python3", "-c", hookServer, file)
	told := func() (lines []string) {
		b, _ := os.ReadFile(file)
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	took := eventually(t, 20*time.Second, "it is told", func() bool { return told()[0] != "" })
	t.Logf("told %s after the leader's death", took.Round(100*time.Millisecond))
	l.do("start", leader, "--agent")
	l.on(leader, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(t)
	if r := l.on(leader, "sparkrun", "notify", "test", "team").must(t); !strings.Contains(r.out, "has got a test") {
		t.Errorf("test: %s", r)
	}
	var m struct {
		Event, Name, Host, State, Cause, Text string
		Rank                                  int
	}
	lines := told()
	if err := json.Unmarshal([]byte(lines[0]), &m); err != nil || len(lines) != 2 || !strings.Contains(lines[1], `"test"`) {
		t.Fatalf("%v: %s", err, strings.Join(lines, "\n"))
	}
	if m.Event != "job-failed" || m.Name != "train" || m.Host != fails || m.Rank != 0 || m.State != "failed" ||
		m.Cause != "rank 0 on "+fails+": exit 3 (its last line: it went boom)" || !strings.Contains(m.Text, m.Cause) {
		t.Errorf("%+v", m)
	}
	l.on(hook, "pkill", "-TERM", "-f", "do_POST")
	server.within(10 * time.Second)
}
