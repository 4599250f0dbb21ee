package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var serviceCut = flag.Duration("service-cut", 0, "for how long the management network of TestServiceOutlastsACut is cut")

// seenService is a job as ps --json shows it.
type seenService struct {
	JobID      string `json:"job_id"`
	State      string `json:"state"`
	Generation int    `json:"generation"`
	Service    struct {
		URL      string   `json:"url"`
		State    string   `json:"state"`
		Text     string   `json:"text"`
		Rate     *float64 `json:"tokens_per_s"`
		Failures int      `json:"failures"`
	} `json:"service"`
}

// service gives what ps on a host says of a service; the zero value where it says nothing.
func (l *lab) service(host, name string) (s seenService) {
	time.Sleep(300 * time.Millisecond) // it is asked again and again, for minutes
	r := l.on(host, "sparkrun", "ps", name, "--json")
	if r.code == 0 {
		if err := json.Unmarshal([]byte(r.out), &s); err != nil {
			l.t.Fatalf("%v: %s", err, r)
		}
	}
	return s
}

func (l *lab) serves(host, name string, generation int) seenService {
	l.t.Helper()
	var s seenService
	eventually(l.t, 3*time.Minute, fmt.Sprintf("%s ready in generation %d", name, generation), func() bool {
		s = l.service(host, name)
		return s.Service.State == "ready" && s.Generation >= generation
	})
	if s.Generation != generation {
		l.t.Errorf("%s is at generation %d, want %d", name, s.Generation, generation)
	}
	return s
}

// standIn is the command of the stand-in server.
func standIn(t *testing.T, args ...string) []string {
	script, err := filepath.Abs("testdata/standin_server.py")
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"--", "python3", script}, args...)
}

func (l *lab) get(host, url string) result {
	return l.on(host, "python3", "-c", "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).status)", url)
}

// A service on two hosts goes on without its launch, and through the restart of each agent
// and the loss of the leader; it comes back when a rank was killed, and when all hosts lost
// their power. Nothing but a stop ends it.
func TestService(t *testing.T) {
	t.Parallel()
	l := up(t, 3)
	launch := l.start("spark2", append([]string{"sparkrun", "launch", "exec", "--name", "llm", "--on", "spark2,spark3", "--serve", "8000", "--health", "/health", "--metrics", "/metrics", "--autostart", "--probe", "generate"},
		standIn(t, "8000")...)...)
	if end := launch.wait(); end.code != 0 || !strings.Contains(end.err, "the service answers at http://") || !strings.Contains(end.err, "goes on by itself") {
		t.Fatalf("launch of a service: %s", end)
	}
	first := l.serves("spark1", "llm", 1)
	if got := l.get("spark1", first.Service.URL+"/health"); strings.TrimSpace(got.out) != "200" { // a host that is none of the job's
		t.Errorf("the URL: %s", got)
	}

	for _, host := range []string{"spark3", "spark2", l.leader("spark1")} {
		l.do("kill", host, "--agent")
		l.do("start", host, "--agent")
		l.on(host, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "90s").must(t)
	}
	l.serves("spark1", "llm", 1)
	if got := l.get("spark1", first.Service.URL+"/health"); strings.TrimSpace(got.out) != "200" {
		t.Errorf("the URL after restarts: %s", got)
	}

	l.on("spark3", "pkill", "-KILL", "-f", "standin_server.py").must(t)
	l.serves("spark1", "llm", 2)
	if out := l.on("spark1", "sparkrun", "ps", "llm").must(t).out; !strings.Contains(out, "has failed 1 of 3/hour, and comes back after a power cut") {
		t.Errorf("ps after a failure:\n%s", out)
	}

	hosts := []string{"spark1", "spark2", "spark3"}
	for _, host := range hosts {
		l.do("kill", host)
	}
	for _, host := range hosts {
		l.do("start", host)
	}
	back := l.serves("spark3", "llm", 3)
	if back.Service.Failures != 1 {
		t.Errorf("a power cut counts: %d failures", back.Service.Failures)
	}
	if got := l.get("spark1", back.Service.URL+"/health"); strings.TrimSpace(got.out) != "200" {
		t.Errorf("the URL after a power cut: %s", got)
	}
	l.on("spark1", "sparkrun", "stop", "llm").must(t)
	l.assertNothingLeft(hosts...)
}

// A wedge is reported within a minute, and a long prefill is none; what is wedged is
// started anew where that was asked for, and a health that does not answer ends nothing.
func TestServiceWedge(t *testing.T) {
	t.Parallel()
	l := up(t, 2)
	for i, s := range []struct{ name, mode string }{{"stuck", "wedge"}, {"again", "wedge"}, {"prefill", "prefill"}, {"works", "work"}, {"slow", "idle"}} {
		args := []string{"sparkrun", "launch", "-d", "exec", "--name", s.name, "--on", "spark2", "--serve", fmt.Sprint(8000 + i), "--health", "/health", "--metrics", "/metrics"}
		if s.name == "again" {
			args = append(args, "--on-wedge", "restart")
		}
		l.on("spark1", append(args, standIn(t, fmt.Sprint(8000+i), "", s.mode)...)...).must(t)
	}
	began := time.Now()
	slow := l.serves("spark1", "slow", 1)
	l.on("spark1", "python3", "-c", "import sys, urllib.request; urllib.request.urlopen(urllib.request.Request(sys.argv[1], method='POST'))", slow.Service.URL+"/mode?sick").must(t)
	eventually(t, 2*time.Minute, "a slow health is told", func() bool {
		s := l.service("spark1", "slow").Service
		return s.State == "unhealthy" && strings.Contains(s.Text, "no answer within")
	})
	took := eventually(t, 3*time.Minute, "the wedge is told", func() bool { return l.service("spark1", "stuck").Service.State == "wedged" })
	t.Logf("told %s after the last launch, %s after the slow one", time.Since(began).Round(time.Second), took)
	l.serves("spark1", "again", 2)
	for name, want := range map[string]string{"stuck": "wedged", "prefill": "ready", "works": "ready", "slow": "unhealthy"} {
		s := l.service("spark1", name)
		if s.Service.State != want || s.Generation != 1 || s.State != "running" {
			t.Errorf("%s: %+v", name, s)
		}
		if name == "works" && (s.Service.Rate == nil || *s.Service.Rate < 5 || *s.Service.Rate > 20) {
			t.Errorf("tokens a second: %v, want about 10", s.Service.Rate)
		}
	}
	if out := l.on("spark1", "sparkrun", "ps", "stuck").must(t).out; !strings.Contains(out, "wedged for ") || !strings.Contains(out, "1 request is running, and no token has come for ") {
		t.Errorf("ps of what is wedged:\n%s", out)
	}
	for _, name := range []string{"stuck", "again", "prefill", "works", "slow"} {
		l.on("spark1", "sparkrun", "stop", name).must(t)
	}
	l.assertNothingLeft("spark1", "spark2")
}

// The management network is cut for minutes while the fabric is up: who leads may change,
// and the service answers all the while.
func TestServiceOutlastsACut(t *testing.T) {
	if *serviceCut == 0 {
		t.Skip("takes as long as the cut: -service-cut 5m")
	}
	l := up(t, 3)
	l.on("spark1", append([]string{"sparkrun", "launch", "-d", "exec", "--name", "llm", "--on", "spark2,spark3", "--serve", "8000", "--health", "/health"}, standIn(t, "8000")...)...).must(t)
	l.serves("spark1", "llm", 1)
	pids := l.on("spark3", "pgrep", "-f", "standin_server.py").must(t).out
	for _, host := range []string{"spark1", "spark2", "spark3"} {
		l.do("cut", host, "mgmt")
	}
	for until := time.Now().Add(*serviceCut); time.Now().Before(until); time.Sleep(10 * time.Second) {
		if got := l.get("spark2", "http://127.0.0.1:8000/health"); strings.TrimSpace(got.out) != "200" {
			t.Fatalf("during the cut: %s", got)
		}
	}
	for _, host := range []string{"spark1", "spark2", "spark3"} {
		l.do("heal", host)
	}
	l.serves("spark1", "llm", 1)
	if now := l.on("spark3", "pgrep", "-f", "standin_server.py").must(t).out; now != pids {
		t.Errorf("processes %q, were %q", now, pids)
	}
	l.on("spark1", "sparkrun", "stop", "llm").must(t)
}
