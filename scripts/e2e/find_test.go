package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A bare host finds the cluster that it is told nothing of, and joins it by its token. A
// stranger who announces the same cluster gets nothing, whether with a CA of its own or
// with a copy of the true one.
func TestFindAndJoin(t *testing.T) {
	t.Parallel()
	l := up(t, 3, "--no-agent")
	found := func(host string) (id, ca, token string) {
		l.on(host, "sparkrun", "init").must(t)
		l.do("start", host, "--agent")
		var st struct{ Cluster string }
		if err := json.Unmarshal([]byte(l.on(host, "sparkrun", "status", "--json", "--wait-nodes", "1", "--timeout", "45s").must(t).out), &st); err != nil {
			t.Fatal(err)
		}
		token = strings.TrimSpace(l.on(host, "sparkrun", "token", "create").must(t).out)
		return st.Cluster, strings.Split(token, ".")[1], token
	}
	id, ca, token := found("spark1")

	// It follows an address that changes, and what it has said of the old one is taken back.
	listed := func(sees ...string) string {
		t.Helper()
		out := ""
		eventually(t, 2*time.Minute, strings.Join(sees, ", "), func() bool {
			r := l.on("spark2", "sparkrun", "join")
			if r.code != 2 {
				t.Fatalf("want exit 2, got %s", r)
			}
			for _, want := range sees {
				if !strings.Contains(r.out, want) {
					return false
				}
			}
			out = r.out
			return true
		})
		return out
	}
	listed("cluster  "+id, "CA       "+ca, "spark1 (172.30.0.11)", "sudo sparkrun join 172.30.0.11\n")
	l.on("spark1", "sh", "-c", "ip addr flush dev enP7s7 && ip addr add 172.30.0.99/24 dev enP7s7").must(t)
	if out := listed("spark1 (172.30.0.99)", "sudo sparkrun join 172.30.0.99\n"); strings.Contains(out, "172.30.0.11") {
		t.Errorf("the old address is still announced:\n%s", out)
	}

	_, strangersCA, _ := found("spark3")
	script, err := filepath.Abs("testdata/stranger.py")
	if err != nil {
		t.Fatal(err)
	}
	liar := l.start("spark3", python, script, "172.30.0.13", id+"="+strangersCA+"=spark1", id+"="+ca+"=aaa")
	defer func() { liar.cmd.Process.Kill(); liar.wait() }()
	out := listed("cluster  "+id+"\n     CA       "+strangersCA, "cluster  "+id+"\n     CA       "+ca, "beware", "aaa (172.30.0.13), spark1 (172.30.0.99)")

	number := func(ca string) string {
		t.Helper()
		m := regexp.MustCompile(`(\d+)  cluster  ` + id + "\n     CA       " + ca + "\n").FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("no cluster %s with CA %s in\n%s", id, ca, out)
		}
		return m[1]
	}
	choose := func(number string) result {
		t.Helper()
		return l.on("spark2", "sh", "-c", fmt.Sprintf(`umask 077; echo %s >/tmp/token; (echo %s; sleep 4) | script -qefc "sparkrun join --token-file /tmp/token" /dev/null`, token, number))
	}
	if r := choose(number(strangersCA)); r.code == 0 || !strings.Contains(r.out, "announces the CA "+strangersCA) || !strings.Contains(r.out, "with the CA "+ca) {
		t.Errorf("the stranger's cluster was chosen: %s", r)
	}
	// The copy is first in the list of the true one's hosts; it is asked to prove itself, and passed over.
	if r := choose(number(ca)); r.code != 0 || !strings.Contains(r.out, "spark2 is in cluster "+id+", which spark1 leads") {
		t.Fatalf("the true cluster was chosen: %s", r)
	}
	l.do("start", "spark2", "--agent")
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "2", "--timeout", "45s").must(t)
	if r := l.on("spark3", "grep", "-rE", `"what":"join"|`+token[strings.LastIndex(token, ".")+1:], "/var/lib/sparkrun"); r.code != 1 {
		t.Errorf("the stranger was asked to let somebody in: %s", r)
	}
	if r := l.on("spark1", "grep", "-c", `"what":"join"`, "/var/lib/sparkrun/audit.log"); strings.TrimSpace(r.out) != "1" {
		t.Errorf("the true cluster was asked to let somebody in %s", r)
	}
}
