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

// witness is what ranks append to by themselves, outside of sparkrun: job,
// generation, rank, host, and their process.
type witness struct {
	t    *testing.T
	path string
}

func newWitness(t *testing.T) witness {
	return witness{t, filepath.Join(scratch(t), "witness")}
}

// says is a shell line by which a rank notes that it was started.
func (w witness) says() string {
	return `echo "$SPARKRUN_JOB $TORCHELASTIC_RESTART_COUNT $RANK $(hostname)" >>` + w.path + "; "
}

func (w witness) lines() []string {
	b, err := os.ReadFile(w.path)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(string(b)), " ", "/"), "\n", " "))
}

// startedOnce checks that no rank of any try was started a second time, anywhere.
func (w witness) startedOnce() {
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
	l, w := pair(t), newWitness(t)
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
