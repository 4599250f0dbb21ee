package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// Tokens that are no good let nobody in, say why, and leave the machine as it
// was.
func TestTokens(t *testing.T) {
	l := up(t, 2, "--no-agent")
	l.on("spark1", "sparkrun", "init").must(t)
	l.do("start", "spark1", "--agent")
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "1", "--timeout", "45s").must(t)

	join := func(token string) result {
		t.Helper()
		return l.on("spark2", "sh", "-c", "echo '"+token+"' | sparkrun join 172.30.0.11 --token-file -")
	}
	create := func(flags ...string) string {
		t.Helper()
		return strings.TrimSpace(l.on("spark1", append([]string{"sparkrun", "token", "create"}, flags...)...).must(t).out)
	}
	refused := func(what, token string, says ...string) {
		t.Helper()
		r := join(token)
		if r.code == 0 {
			t.Errorf("a token that is %s lets in: %s", what, r)
		}
		for _, want := range says {
			if !strings.Contains(r.err, want) {
				t.Errorf("a token that is %s: want %q in %s", what, want, r)
			}
		}
		if strings.Contains(r.err+r.out, token) && len(token) > 20 {
			t.Errorf("a token that is %s is shown: %s", what, r)
		}
		if r := l.on("spark2", "sparkrun", "agent"); r.code == 0 || !strings.Contains(r.err, "in no cluster") {
			t.Errorf("after a token that is %s, spark2's agent: %s", what, r)
		}
	}

	good := create()
	refused("malformed", "spk1.abc", "not a sparkrun token")
	// The right cluster, another secret.
	forged := good[:strings.LastIndex(good, ".")+1] + "AAAAAAAAAAAAAAAAAAAAAA"
	refused("forged", forged, "not known")
	expired := create("--ttl", "1s")
	time.Sleep(1200 * time.Millisecond) // until it has
	refused("expired", expired, "expired")
	if r := join(good); r.code != 0 {
		t.Fatalf("a good token: %s", r)
	}
	l.do("start", "spark2", "--agent")
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "2", "--timeout", "45s").must(t)
	// The same token again, from a machine that has left.
	l.on("spark2", "sparkrun", "leave", "--yes").must(t)
	refused("used up", good, "used up")
	// A token of another cluster never reaches this one.
	other := up(t, 1)
	foreign := strings.TrimSpace(other.on("spark1", "sparkrun", "token", "create").must(t).out)
	refused("another cluster's", foreign, "check the address and the token")
	// The secret went into no file that outlives it, log or record.
	for _, h := range []string{"spark1", "spark2"} {
		secret := good[strings.LastIndex(good, ".")+1:]
		if r := l.on(h, "grep", "-rl", secret, "/var/lib/sparkrun", "/run/sparkrun"); r.out != "" {
			t.Errorf("the token's secret is in %s of %s", r.out, h)
		}
	}
}

// Members leave, the leader among them; the others go on, and who left can join
// again.
func TestLeave(t *testing.T) {
	l := up(t, 3)
	leader := l.leader("spark1")
	l.on("spark3", "sparkrun", "launch", "exec", "-d", "--on", leader, "--name", "busy", "--", "sleep", "300").must(t)
	if r := l.on(leader, "sparkrun", "leave", "--yes"); r.code == 0 || !strings.Contains(r.err, "stop it first") {
		t.Errorf("leaving with ranks: %s", r)
	}
	l.on("spark3", "sparkrun", "stop", "busy").must(t)

	l.on(leader, "sparkrun", "leave", "--yes").must(t)
	rest := other(3, leader)
	eventually(t, 30*time.Second, "two members are left", func() bool {
		var st struct {
			Leader string
			Nodes  []struct{ Host, State string }
		}
		r := l.on(rest[0], "sparkrun", "status", "--json")
		return r.code == 0 && json.Unmarshal([]byte(r.out), &st) == nil && len(st.Nodes) == 2 && st.Leader != leader && st.Leader != ""
	})
	l.on(rest[1], "sparkrun", "launch", "exec", "--nodes", "2", "--", "true").must(t)
	if r := l.on(leader, "sparkrun", "agent"); r.code == 0 || !strings.Contains(r.err, "in no cluster") {
		t.Errorf("the agent of who left: %s", r)
	}

	token := strings.TrimSpace(l.on(rest[0], "sparkrun", "token", "create").must(t).out)
	addr := map[string]string{"spark1": "172.30.0.11", "spark2": "172.30.0.12", "spark3": "172.30.0.13"}[rest[0]]
	l.on(leader, "sh", "-c", "echo "+token+" | sparkrun join "+addr+" --token-file -").must(t)
	l.do("start", leader, "--agent")
	l.on(rest[1], "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	l.on(leader, "sparkrun", "launch", "exec", "--nodes", "3", "--", "true").must(t)

	// One after the other goes, the leader each time: of three, of a pair.
	for n := 3; n > 1; n-- {
		members := other(3)
		var st struct {
			Leader string
			Nodes  []struct{ Host string }
		}
		for _, h := range members {
			if r := l.on(h, "sparkrun", "status", "--json"); r.code == 0 && json.Unmarshal([]byte(r.out), &st) == nil {
				break
			}
		}
		l.on(st.Leader, "sparkrun", "leave", "--yes").must(t)
		for _, m := range st.Nodes {
			if m.Host != st.Leader {
				l.on(m.Host, "sparkrun", "launch", "exec", "--nodes", "1", "--", "true").must(t)
			}
		}
	}
}
