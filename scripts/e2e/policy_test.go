package e2e

import (
	"strings"
	"testing"
)

// A machine's policy file holds for ranks there, wherever they were launched, and
// for launches typed there. It is read anew for each job; one that cannot be
// understood lets nobody in, and no agent start.
func TestPolicy(t *testing.T) {
	l := up(t, 2)
	policy := func(text string) {
		t.Helper()
		l.on("spark2", "sh", "-c", "umask 022; mkdir -p /etc/sparkrun; printf '"+text+"' > /etc/sparkrun/policy.yaml").must(t)
	}
	launch := func(from string, args ...string) result {
		t.Helper()
		return l.on(from, append([]string{"sparkrun", "launch", "--workdir", "/"}, args...)...)
	}
	refused := func(what string, r result, says ...string) {
		t.Helper()
		for _, want := range says {
			if r.code != 125 || !strings.Contains(r.out+r.err, want) {
				t.Errorf("%s: want exit 125 and %q, got %s", what, want, r)
			}
		}
	}
	both := []string{"--on", "spark1,spark2", "exec", "--", "true"}
	launch("spark1", both...).must(t)

	policy(`# ours\nlaunch:\n  users: [alice]\n  groups: [nogroup]\n`)
	refused("root, not named", launch("spark1", both...), "root may not launch on spark2", "rule launch, line 2 of /etc/sparkrun/policy.yaml", "users alice; groups nogroup")
	refused("typed there", launch("spark2", "--on", "spark1", "exec", "--", "true"), "root may not launch on spark2")
	if r := l.on("spark2", "grep", "-c", `"what":"run ranks","who":"root",.*"outcome":"refused","why":".*rule launch`, "/var/lib/sparkrun/audit.log"); strings.TrimSpace(r.out) != "1" {
		t.Errorf("spark2's audit.log: want one line of the refused ranks, got %s", r)
	}
	if r := launch("spark1", append([]string{"--dry-run"}, both...)...); !strings.Contains(r.out+r.err, "root may not launch on spark2") {
		t.Errorf("a dry run: %s", r)
	}
	launch("spark1", append([]string{"--user", "nobody"}, both...)...).must(t) // whose group is nogroup
	launch("spark1", "--on", "spark1", "exec", "--", "true").must(t)

	policy(`launch:\n  users: [root]\nports: [80]\n`)
	refused("a rule that nobody enforces", launch("spark1", both...), "line 3", `unknown rule "ports"`)
	l.do("kill", "spark2", "--agent")
	if r := l.on("spark2", "sparkrun", "agent"); r.code == 0 || !strings.Contains(r.err, "/etc/sparkrun/policy.yaml: line 3") || !strings.Contains(r.err, "want launch, containers, images, mounts, elevate, model_cache or model_readers") {
		t.Errorf("an agent with a bad policy: %s", r)
	}
	policy(`launch:\n  users: [root]\n`)
	l.do("start", "spark2", "--agent")
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "2", "--timeout", "45s").must(t)
	launch("spark1", both...).must(t)
}
