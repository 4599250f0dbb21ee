package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// pair makes a pair, cabled, whose spark2 has a copy of the record.
func pair(t *testing.T) *lab {
	t.Helper()
	l := up(t, 2, "--topology", "pair")
	l.hasRole("spark1", "spark2", "standby")
	return l
}

// hasRole waits until a host sees another in this part.
func (l *lab) hasRole(on, host, role string) {
	l.t.Helper()
	eventually(l.t, time.Minute, host+" is "+role+" for "+on, func() bool {
		return regexp.MustCompile(`(?m)^` + host + ` +\S+ +ready +` + role + `\b`).MatchString(l.on(on, "sparkrun", "status").out)
	})
}

// quit ends an agent as systemd would, and waits for it.
func (l *lab) quit(host string) {
	l.t.Helper()
	l.on(host, "pkill", "-TERM", "-f", "sparkrun agent").must(l.t)
	eventually(l.t, time.Minute, "the agent of "+host+" has ended", func() bool {
		return l.on(host, "pgrep", "-f", "sparkrun agent").code == 1
	})
}

// startFile is what ranks append to by themselves, outside of sparkrun: job,
// generation, rank, host, and their process.
type startFile struct {
	t    *testing.T
	path string
}

func newStartFile(t *testing.T) startFile {
	return startFile{t, filepath.Join(scratch(t), "witness")}
}

// says is a shell line by which a rank notes that it was started.
func (w startFile) says() string {
	return `echo "$SPARKRUN_JOB $TORCHELASTIC_RESTART_COUNT $RANK $(hostname)" >>` + w.path + "; "
}

func (w startFile) lines() []string {
	b, err := os.ReadFile(w.path)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(string(b)), " ", "/"), "\n", " "))
}

// startedOnce checks that no rank of any try was started a second time, anywhere.
func (w startFile) startedOnce() {
	w.t.Helper()
	seen := map[string]string{}
	for _, line := range w.lines() {
		try, host := line[:strings.LastIndex(line, "/")], line[strings.LastIndex(line, "/")+1:]
		if first, twice := seen[try]; twice {
			w.t.Errorf("job/try/rank %s was started on %s and on %s", try, first, host)
		}
		seen[try] = host
	}
}

// Either agent of a pair is stopped cleanly under a job, in turn: the job does
// not notice, the other machine launches at once, who comes back stands by.
func TestPairStopsOneByOne(t *testing.T) {
	t.Parallel()
	l, w := pair(t), newStartFile(t)
	run := l.start("spark2", "sparkrun", "launch", "-d", "exec", "--nodes", "2", "--name", "goes-on", "--env", "N=100000", "--", "sh", "-c", w.says()+counted)
	run.wait().must(t)
	for _, goes := range []string{"spark1", "spark2", "spark1"} {
		stays := other(2, goes)[0]
		l.quit(goes)
		r := l.on(stays, "sparkrun", "launch", "exec", "--", "sh", "-c", w.says()).must(t)
		t.Logf("%s stopped: a launch on %s took %s", goes, stays, r.took.Round(time.Millisecond))
		if st := l.leader(stays); st != stays {
			t.Errorf("%s leads after %s was stopped", st, goes)
		}
		l.do("start", goes, "--agent")
		l.hasRole(stays, goes, "standby")
	}
	l.on("spark1", "sparkrun", "stop", "goes-on").must(t)
	w.startedOnce()
	l.assertNothingLeft("spark1", "spark2")
}

// A pair whose standby is gone goes on, and says what one machine alone knows.
func TestPairRecordsOnOneMachine(t *testing.T) {
	t.Parallel()
	const alone = "recorded on spark1 only"
	l := pair(t)
	if r := l.on("spark1", "sparkrun", "launch", "exec", "--", "true").must(t); strings.Contains(r.err, alone) {
		t.Errorf("the standby is there: %s", r)
	}
	l.do("kill", "spark2")
	r := l.on("spark1", "sparkrun", "launch", "-d", "--json", "exec", "--name", "lone", "--env", "N=100000", "--", "sh", "-c", counted).must(t)
	var id struct {
		Only string `json:"recorded_only_on"`
	}
	if err := json.Unmarshal([]byte(r.out), &id); err != nil || id.Only != "spark1" || !strings.Contains(r.err, alone) {
		t.Errorf("a launch just after the standby's loss (%v): %s", err, r)
	}
	for _, args := range [][]string{{"stop", "lone"}, {"token", "create"}, {"launch", "exec", "--", "true"}} {
		if r := l.on("spark1", append([]string{"sparkrun"}, args...)...).must(t); !strings.Contains(r.err, alone) {
			t.Errorf("%v: %s", args, r)
		}
	}
	eventually(t, time.Minute, "spark2 may be called dead: gossip gives it up after some seconds", func() bool {
		r = l.on("spark1", "sparkrun", "mark-dead", "spark2")
		return r.code == 0
	})
	if !strings.Contains(r.err, alone) {
		t.Errorf("mark-dead: %s", r)
	}
	l.do("start", "spark2")
	l.hasRole("spark1", "spark2", "standby")
	eventually(t, time.Minute, "the copy is there again", func() bool {
		return !strings.Contains(l.on("spark1", "sparkrun", "launch", "exec", "--", "true").must(t).err, alone)
	})
}

// takeover is typed until the dead machine shows no sign of life any more:
// gossip gives it up after some seconds.
func (l *lab) takeover(host, dead string) {
	l.t.Helper()
	began := time.Now()
	eventually(l.t, 90*time.Second, host+" takes over", func() bool {
		r := l.on(host, "sparkrun", "takeover", "--confirm-dead", dead, "--yes")
		if r.code != 0 && !strings.Contains(r.err, "not dead") && !strings.Contains(r.err, " leads") {
			l.t.Fatalf("takeover: %s", r)
		}
		return r.code == 0
	})
	l.t.Logf("%s has taken over %s after it was begun", host, time.Since(began).Round(10*time.Millisecond))
}

// The voter of a pair loses its power: a person says so on the other machine,
// which leads and launches. What ran there goes on; what ran on the dead machine
// is tried again, once. A machine that answers is not taken for dead.
func TestTakeover(t *testing.T) {
	t.Parallel()
	l, w := pair(t), newStartFile(t)
	eventually(t, time.Minute, "a take-over from a leader is refused", func() bool { // spark2 may be without the record yet
		r := l.on("spark2", "sparkrun", "takeover", "--confirm-dead", "spark1", "--yes")
		if r.code != 1 {
			t.Fatalf("a take-over from a leader: %s", r)
		}
		return strings.Contains(r.err, "spark1 leads")
	})
	job := func(name string, on string, flags ...string) {
		t.Helper()
		args := append([]string{"sparkrun", "launch", "-d", "exec", "--on", on, "--name", name, "--env", "N=100000"}, flags...)
		l.on("spark1", append(args, "--", "sh", "-c", w.says()+counted)...).must(t)
	}
	job("here", "spark2")
	job("again", "spark1", "--max-restarts", "2", "--node-timeout", "2s", "--nodes", "1")
	// Its agent is killed: the machine is there, and says so.
	l.do("kill", "spark1", "--agent")
	eventually(t, time.Minute, "a machine that is there is not taken for dead", func() bool {
		r := l.on("spark2", "sparkrun", "takeover", "--confirm-dead", "spark1", "--yes")
		if r.code == 0 {
			t.Fatalf("a take-over from a machine that answers: %s", r)
		}
		return strings.Contains(r.err, "the machine answers at")
	})
	if r := l.on("spark2", "sparkrun", "takeover", "--confirm-dead", "spark1"); r.code == 0 {
		t.Errorf("no terminal, no --yes: %s", r)
	}
	l.do("kill", "spark1")
	l.takeover("spark2", "spark1")
	began := time.Now()
	l.on("spark2", "sparkrun", "launch", "exec", "--", "sh", "-c", w.says()).must(t)
	t.Logf("launched %s later", time.Since(began).Round(10*time.Millisecond))
	eventually(t, time.Minute, "the job here goes on", func() bool { return l.jobs("spark2")["here"].State == "running" })

	// The dead machine comes back with the older record and gives way.
	l.do("start", "spark1")
	l.hasRole("spark2", "spark1", "standby")
	if got := l.leader("spark1"); got != "spark2" {
		t.Errorf("spark1 thinks that %q leads", got)
	}
	l.on("spark1", "sparkrun", "launch", "exec", "--nodes", "2", "--", "sh", "-c", w.says()).must(t)
	l.on("spark1", "sparkrun", "stop", "here").must(t)
	l.on("spark1", "sparkrun", "stop", "again").must(t)
	w.startedOnce()
	l.assertNothingLeft("spark1", "spark2")
}

// Both halves of a pair were led: what each has recorded is there afterwards,
// what each runs goes on, and what both know was started once.
func TestReunion(t *testing.T) {
	t.Parallel()
	l, w := pair(t), newStartFile(t)
	l.on("spark1", "sparkrun", "launch", "-d", "exec", "--name", "both", "--max-restarts", "5", "--node-timeout", "2s", "--env", "N=100000", "--", "sh", "-c", w.says()+counted).must(t)
	l.do("kill", "spark1")
	l.takeover("spark2", "spark1")
	eventually(t, time.Minute, "its job is tried again here", func() bool { return l.jobs("spark2")["both"].State == "running" })
	l.on("spark2", "sparkrun", "launch", "exec", "--name", "new-two", "--", "sh", "-c", w.says()).must(t)
	l.do("cut", "spark2", "all")

	// The old voter is back, alone: it leads its own half. What it finds in its
	// record may be running elsewhere, so nothing of that begins anew.
	l.do("start", "spark1")
	eventually(t, time.Minute, "spark1 leads its half", func() bool { return l.leader("spark1") == "spark1" })
	l.on("spark1", "sparkrun", "launch", "exec", "--name", "new-one", "--", "sh", "-c", w.says()).must(t)
	l.on("spark1", "sparkrun", "launch", "-d", "exec", "--name", "runs-on", "--env", "N=100000", "--", "sh", "-c", w.says()+counted).must(t)
	eventually(t, time.Minute, "the old job waits", func() bool {
		r := l.on("spark1", "sparkrun", "ps", "--json")
		return strings.Contains(r.out, "has not been heard since this machine started")
	})
	before := l.processes("spark1")

	l.do("heal", "spark2")
	l.hasRole("spark2", "spark1", "standby")
	jobs := l.jobs("spark1")
	for _, name := range []string{"both", "new-one", "new-two", "runs-on"} {
		if _, ok := jobs[name]; !ok {
			t.Errorf("job %s is lost: %v", name, jobs)
		}
	}
	eventually(t, time.Minute, "the job of the older half goes on under the other leader", func() bool { return l.jobs("spark2")["runs-on"].State == "running" })
	if a, b := pidsOf(before), pidsOf(l.processes("spark1")); len(a) != 2 || strings.Join(a, " ") != strings.Join(b[:min(2, len(b))], " ") {
		t.Errorf("its shim and rank were %v, and are %v", a, b)
	}
	l.on("spark2", "sparkrun", "stop", "runs-on").must(t)
	l.on("spark2", "sparkrun", "stop", "both").must(t)
	w.startedOnce()
	l.assertNothingLeft("spark1", "spark2")
}

// A pair with a witness loses the machine that leads: the other one launches by
// itself, within seconds. The witness gets no ranks.
func TestPairWithWitness(t *testing.T) {
	t.Parallel()
	l, w := up(t, 3, "--no-agent"), newStartFile(t)
	for _, nic := range []string{"enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"} {
		l.do("fault", "spark3", "missing-twin", nic) // a small machine: no ConnectX at all
	}
	l.on("spark1", "sparkrun", "init").must(t)
	l.do("start", "spark1", "--agent")
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "1", "--timeout", "45s").must(t)
	token := filepath.Join(scratch(t), "token")
	for host, flags := range map[string][]string{"spark2": nil, "spark3": {"--witness"}} {
		role := map[bool]string{true: "node", false: "witness"}[flags == nil]
		l.on("spark1", "sh", "-c", "sparkrun token create --role "+role+" >"+token).must(t)
		l.on(host, append([]string{"sparkrun", "join", "172.30.0.11", "--token-file", token}, flags...)...).must(t)
		l.do("start", host, "--agent")
	}
	l.hasRole("spark1", "spark2", "voter")
	l.hasRole("spark1", "spark3", "voter, witness")
	if r := l.on("spark2", "sparkrun", "status").must(t); !regexp.MustCompile(`(?m)^spark3 .* voter, witness .* -$`).MatchString(r.out) {
		t.Errorf("a witness in status: %s", r)
	}
	if r := l.on("spark2", "sparkrun", "fabric").must(t); !strings.Contains(r.out, "a witness: it votes, gets no ranks") || !strings.Contains(r.out, "pair: spark1 and spark2") {
		t.Errorf("a witness in fabric: %s", r)
	}
	if r := l.on("spark2", "sparkrun", "doctor", "--node", "spark3"); strings.Contains(r.out, "rdma") || strings.Contains(r.out, "docker") || strings.Contains(r.out, "memlock") {
		t.Errorf("a witness is told what it lacks: %s", r)
	}
	if r := l.on("spark3", "sparkrun", "launch", "exec", "--nodes", "3", "--", "true"); r.code != 125 || !strings.Contains(r.err, "2 ready") {
		t.Errorf("three machines wanted: %s", r)
	}
	if r := l.on("spark1", "sparkrun", "launch", "exec", "--on", "spark3", "--", "true"); r.code != 125 || !strings.Contains(r.err, "spark3 is a witness") {
		t.Errorf("a launch on the witness: %s", r)
	}
	l.on("spark3", "sparkrun", "launch", "exec", "--nodes", "2", "--", "sh", "-c", w.says()).must(t)
	l.on("spark1", "sparkrun", "launch", "-d", "exec", "--on", "spark2", "--name", "goes-on", "--env", "N=100000", "--", "sh", "-c", w.says()+counted).must(t)

	l.do("kill", "spark1")
	r := l.on("spark2", "sparkrun", "launch", "exec", "--", "sh", "-c", w.says()).must(t)
	t.Logf("launched %s after the power went", r.took.Round(10*time.Millisecond))
	if got := l.leader("spark2"); got == "" || got == "spark1" {
		t.Errorf("leader is %q", got)
	}
	l.do("start", "spark1")
	l.do("start", "spark1", "--agent") // the lab starts those that it has joined itself
	l.on("spark2", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	l.on("spark1", "sparkrun", "stop", "goes-on").must(t)
	for _, line := range w.lines() {
		if strings.HasSuffix(line, "/spark3") {
			t.Errorf("the witness ran %s", line)
		}
	}
	w.startedOnce()
	l.assertNothingLeft("spark1", "spark2", "spark3")
}
