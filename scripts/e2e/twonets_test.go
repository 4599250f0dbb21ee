package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var sixteen = flag.Bool("sixteen", false, "restart the agents of sixteen hosts (about a minute)")

// view is what `status --json` of a host says.
type view struct {
	Leader string
	Term   uint64
	Nodes  []struct {
		Host, State string
		FabricOnly  bool `json:"fabric_only"`
	}
}

func (l *lab) view(host string) (v view) {
	l.t.Helper()
	out := l.on(host, "sparkrun", "status", "--json").must(l.t).out
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		l.t.Fatalf("status --json: %v\n%s", err, out)
	}
	return v
}

// overFabric lists who is ready over the fabric only; ok = all are ready.
func (v view) overFabric() (hosts string, ok bool) {
	ok = v.Leader != ""
	for _, n := range v.Nodes {
		if n.FabricOnly {
			hosts += n.Host + " "
		}
		ok = ok && n.State == "ready"
	}
	return strings.TrimSpace(hosts), ok
}

// The management network dies under a running job, of one host and then of all,
// with a link that goes and without: nothing is lost, nobody is elected anew,
// every command works, and all goes back to management by itself.
func TestManagementSwitchDies(t *testing.T) {
	l := up(t, 3)
	stop := filepath.Join(scratch(t), "stop")
	before := l.view("spark1")
	victim := other(3, before.Leader)[0]
	run := l.start(victim, "sparkrun", "launch", "exec", "--nodes", "3", "--name", "goes-on", "--", "sh", "-c",
		"i=0; while [ ! -e "+stop+" ]; do i=$((i+1)); echo $i; sleep 0.05; done")
	eventually(t, 30*time.Second, "the job runs", func() bool { return l.jobs("spark1")["goes-on"].State == "running" })
	is := func(within time.Duration, what, over string) {
		t.Helper()
		took := eventually(t, within, what, func() bool {
			hosts, ok := l.view(before.Leader).overFabric()
			return ok && hosts == over
		})
		t.Logf("%s after %s", what, took.Round(10*time.Millisecond))
	}
	works := func(when string) {
		t.Helper()
		for _, h := range other(3) {
			l.on(h, "sparkrun", "launch", "exec", "--nodes", "3", "--", "true").must(t)
			if j := l.jobs(h)["goes-on"]; j.State != "running" {
				t.Errorf("%s: %s says of the job %+v", when, h, j)
			}
			if r := l.on(h, "sparkrun", "logs", "goes-on", "--tail", "1").must(t); !strings.Contains(r.out, "[0] ") || !strings.Contains(r.out, "[1] ") || !strings.Contains(r.out, "[2] ") {
				t.Errorf("%s: the last line of each of three ranks from %s: %s", when, h, r)
			}
		}
		l.on(victim, "sparkrun", "launch", "exec", "-d", "--name", "to-stop", "--nodes", "3", "--", "sleep", "300").must(t)
		l.on(before.Leader, "sparkrun", "stop", "to-stop").must(t)
	}

	eventually(t, 15*time.Second, victim+" has heard where the others listen on the fabric", func() bool {
		return strings.Count(l.log(victim), "msg=gossip kind=joined") == 2
	})
	l.do("cut", victim, "mgmt")
	is(30*time.Second, victim+" is reached over the fabric", victim)
	if r := l.on(before.Leader, "sparkrun", "status").must(t); !strings.Contains(r.err+r.out, "enP7s7 of "+victim+" has no link") {
		t.Errorf("what to look at: %s", r)
	}
	works("one host's cable is out")
	l.do("heal", victim)
	is(45*time.Second, victim+" is back on management", "")

	// A switch that hangs: no link goes, nothing comes through.
	l.do("exec", "switch", "--", "ip", "link", "set", "br-mgmt", "down")
	is(30*time.Second, "all are reached over the fabric", strings.Join(other(3, before.Leader), " "))
	works("the switch hangs")
	l.do("kill", victim, "--agent")
	l.do("start", victim, "--agent")
	l.on(victim, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	works("an agent was started without management")
	l.do("exec", "switch", "--", "ip", "link", "set", "br-mgmt", "up")
	is(45*time.Second, "all are back on management", "")
	if now := l.view("spark1"); now.Term > before.Term+1 {
		t.Errorf("the term was %d and is %d: want at most one election", before.Term, now.Term)
	} else {
		t.Logf("elections: %d", now.Term-before.Term)
	}

	// Now the host is cut off altogether, and comes back.
	l.do("cut", victim, "all")
	eventually(t, 30*time.Second, victim+" is away", func() bool { _, ok := l.view(before.Leader).overFabric(); return !ok })
	l.do("heal", victim)
	l.on(before.Leader, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)

	if out, err := exec.Command("touch", stop).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := run.wait().must(t)
	for rank := range 3 {
		assertCounted(t, r, rank, strings.Count(r.out, fmt.Sprintf("[%d] ", rank)))
	}
	whole := l.on("spark1", "sparkrun", "logs", "goes-on").must(t)
	if a, b := strings.Count(r.out, "\n"), strings.Count(whole.out, "\n"); a != b || a < 300 {
		t.Errorf("launch showed %d lines, logs %d", a, b)
	}
	l.assertNothingLeft("spark1", "spark2", "spark3")
}

// A machine that has a member's name, or its whole state, is refused by words
// that help; the member does not notice.
func TestSecondOfAKindIsRefused(t *testing.T) {
	l := up(t, 3)
	l.on("spark3", "sparkrun", "leave", "--yes").must(t)
	l.on("spark1", "sparkrun", "launch", "exec", "-d", "--on", "spark2", "--name", "goes-on", "--", "sleep", "300").must(t)

	token := strings.TrimSpace(l.on("spark1", "sparkrun", "token", "create").must(t).out)
	r := l.on("spark3", "sh", "-c", "hostname spark2 && echo "+token+" | sparkrun join 172.30.0.11 --token-file -; code=$?; hostname spark3; exit $code")
	if r.code == 0 || !strings.Contains(r.err, "spark2") || !strings.Contains(r.err, "172.30.0.12") {
		t.Errorf("a second spark2: %s", r)
	}

	hosts := "/var/tmp/sparkrun-lab/" + l.name + "/hosts/"
	if out, err := exec.Command("cp", "-a", hosts+"spark2/lib/.", hosts+"spark3/lib/").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, when := range []string{"at once", "when nobody remembers the address"} {
		r = l.on("spark3", "sparkrun", "agent")
		for _, want := range []string{"spark3 at 172.30.0.13", "spark2, which runs at 172.30.0.12", "remove /var/lib/sparkrun", "sparkrun join"} {
			if r.code == 0 || !strings.Contains(r.err, want) {
				t.Errorf("a copy of spark2, %s: want %q, got %s", when, want, r)
			}
		}
		// Then members are asked where they see it.
		l.on("spark3", "sed", "-i", `/"addr"/d`, "/var/lib/sparkrun/addresses.json").must(t)
	}
	if hosts, ok := l.view("spark1").overFabric(); !ok || hosts != "" {
		t.Errorf("spark2 took harm: %+v", l.view("spark1"))
	}
	if j := l.jobs("spark2")["goes-on"]; j.State != "running" {
		t.Errorf("the member's job is %+v", j)
	}
	l.on("spark1", "sparkrun", "stop", "goes-on").must(t)
	l.on("spark3", "sh", "-c", "rm -r /var/lib/sparkrun/*; echo "+token+" | sparkrun join 172.30.0.11 --token-file -").must(t)
}

// Sixteen agents are killed and started at once: within a minute all are there.
func TestSixteenAgentsRestart(t *testing.T) {
	if !*sixteen {
		t.Skip("takes a minute: go test ./scripts/e2e -run Sixteen -sixteen")
	}
	l := up(t, 16)
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "16", "--timeout", "100s").must(t)
	for _, h := range other(16) {
		l.do("kill", h, "--agent")
	}
	began := time.Now()
	for _, h := range other(16) {
		l.do("start", h, "--agent")
	}
	for {
		if r := l.on("spark9", "sparkrun", "status", "--wait-nodes", "16", "--timeout", "100s"); r.code == 0 {
			break
		}
		if time.Since(began) > 3*time.Minute {
			t.Fatal("sixteen agents do not find together")
		}
	}
	took := time.Since(began)
	t.Logf("all sixteen are ready %s after the first was started", took.Round(100*time.Millisecond))
	if took > time.Minute {
		t.Errorf("it took %s, want at most a minute", took)
	}
	l.on("spark5", "sparkrun", "launch", "exec", "--nodes", "16", "--", "true").must(t)
}
