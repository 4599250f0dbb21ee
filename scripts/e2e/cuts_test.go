package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var allCuts = flag.Bool("cuts", false, "TestPairIsCut: every order, not only those of CI")

// ways of taking a network from a pair, and of giving it back. A cable that is
// out shows as a link that is gone; a switch that hangs, or a line that carries
// one way only, shows as nothing but silence.
var cutWays = map[string]struct{ cut, heal func(*lab) }{
	"management": {
		func(l *lab) { l.do("cut", "spark1", "mgmt") },
		func(l *lab) { l.do("heal", "spark1") }},
	"fabric": {
		func(l *lab) { l.do("cut", "spark2", "fabric") },
		func(l *lab) { l.do("heal", "spark2") }},
	"both": {
		func(l *lab) { l.do("cut", "spark1", "all") },
		func(l *lab) { l.do("heal", "spark1") }},
	"silent management": {
		func(l *lab) { l.inSwitch("ip", "link", "set", "br-mgmt", "down") },
		func(l *lab) { l.inSwitch("ip", "link", "set", "br-mgmt", "up") }},
	"silent fabric": {
		func(l *lab) { l.inSwitch("ip", "link", "set", "c.spark1.p0", "down") },
		func(l *lab) { l.inSwitch("ip", "link", "set", "c.spark1.p0", "up") }},
	"deaf spark1": {func(l *lab) { l.deafen("spark1") }, func(l *lab) { l.hear("spark1") }},
	"deaf spark2": {func(l *lab) { l.deafen("spark2") }, func(l *lab) { l.hear("spark2") }},
}

func (l *lab) inSwitch(args ...string) {
	l.t.Helper()
	l.do(append([]string{"exec", "switch", "--"}, args...)...)
}

// ends are the far ends of a pair's NICs.
func ends(host string) []string { return []string{host + ".mgmt", host + ".p0", host + ".p0t"} }

// deafen has nothing reach a host any more, over either network; what it sends
// arrives.
func (l *lab) deafen(host string) {
	for _, end := range ends(host) { // no frame fits into one byte
		l.inSwitch("tc", "qdisc", "replace", "dev", end, "root", "tbf", "rate", "8bit", "burst", "1", "latency", "1ms")
	}
}

func (l *lab) hear(host string) {
	for _, end := range ends(host) {
		l.inSwitch("tc", "qdisc", "del", "dev", end, "root")
	}
}

// The two networks of a pair are cut in every order, and healed in every order.
// With one left nothing is noticed. With none ranks go on on both machines; the
// one that votes starts new jobs on itself, and nothing anew that may run on the
// other; the other says that there is no leader, and what to do. Afterwards
// everything is as it was, in the same term.
func TestPairIsCut(t *testing.T) {
	t.Parallel() // it mostly waits
	l, w := pair(t), newStartFile(t)
	lock := filepath.Join(scratch(t), "lock")
	l.on("spark2", "sparkrun", "launch", "-d", "exec", "--nodes", "2", "--name", "goes-on", "--env", "N=100000", "--", "sh", "-c", w.says()+counted).must(t)
	eventually(t, time.Minute, "spark2's control stream has lived for a second: a younger one that breaks is a lost node", func() bool {
		var st struct{ Nodes []struct{ Since time.Time } }
		if err := json.Unmarshal([]byte(l.on("spark1", "sparkrun", "status", "--json").must(t).out), &st); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(st.Nodes, func(n struct{ Since time.Time }) bool { return time.Since(n.Since) < 2*time.Second })
	})
	for _, c := range []struct {
		name      string
		out, back []string
		ci        bool
	}{
		{"management then fabric, back in that order", []string{"management", "fabric"}, []string{"management", "fabric"}, true},
		{"management then fabric, the last is back first", []string{"management", "fabric"}, []string{"fabric", "management"}, false},
		{"fabric then management, back in that order", []string{"fabric", "management"}, []string{"fabric", "management"}, false},
		{"fabric then management, the last is back first", []string{"fabric", "management"}, []string{"management", "fabric"}, false},
		{"both at once", []string{"both"}, []string{"both"}, false},
		{"a switch hangs, then the cable", []string{"silent management", "silent fabric"}, []string{"silent fabric", "silent management"}, false},
		{"the cable hangs, then a switch", []string{"silent fabric", "silent management"}, []string{"silent management", "silent fabric"}, false},
		{"spark1 hears nothing", []string{"deaf spark1"}, []string{"deaf spark1"}, true},
		{"spark2 hears nothing", []string{"deaf spark2"}, []string{"deaf spark2"}, false},
	} {
		if !c.ci && !*allCuts {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			p := &cutPair{lab: &lab{t: t, name: l.name}, starts: w, lock: lock, before: l.view("spark1")}
			began := time.Now()
			p.begin()
			for i, what := range c.out {
				cutWays[what].cut(p.lab)
				if i < len(c.out)-1 {
					p.oneLeft(what)
				}
			}
			t.Logf("apart after %s", p.apart().Round(10*time.Millisecond))
			for i, what := range c.back {
				cutWays[what].heal(p.lab)
				if i == 0 {
					t.Logf("together again after %s", p.together().Round(10*time.Millisecond))
				}
			}
			p.whole()
			t.Logf("the case took %s", time.Since(began).Round(100*time.Millisecond))
		})
		if t.Failed() {
			return // the next case would begin with what this one has left
		}
	}
	l.on("spark1", "sparkrun", "stop", "goes-on").must(t)
	whole := l.on("spark2", "sparkrun", "logs", "goes-on").must(t)
	for rank, host := range []string{"spark1", "spark2"} {
		assertCounted(t, whole, rank, strings.Count(whole.out, "["+string(rune('0'+rank))+"] "))
		if !slices.ContainsFunc(w.lines(), func(s string) bool { return strings.HasSuffix(s, "/0/"+string(rune('0'+rank))+"/"+host) }) {
			t.Errorf("rank %d was not started on %s: %v", rank, host, w.lines())
		}
	}
	w.startedOnce()
	l.assertNothingLeft("spark1", "spark2")
}

// cutPair is one case of TestPairIsCut.
type cutPair struct {
	*lab
	starts startFile
	lock   string // what the rank of `again` holds, whichever try it is of
	before view
	said   int // bytes of spark1's log before the case
}

func (p *cutPair) leaderLog() string {
	p.t.Helper()
	b, err := os.ReadFile("/var/tmp/sparkrun-lab/" + p.name + "/hosts/spark1/agent.log")
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

func (p *cutPair) launch(host string, args ...string) result {
	p.t.Helper()
	return p.on(host, append(append([]string{"sparkrun", "launch"}, args...), "--", "sh", "-c", p.starts.says())...)
}

// begin starts a job on spark2 that is tried again when that machine falls
// silent. Two tries of it at once would meet at the lock.
func (p *cutPair) begin() {
	p.said = len(p.leaderLog())
	p.on("spark1", "sparkrun", "launch", "-d", "exec", "--on", "spark2", "--name", "again", "--max-restarts", "2", "--node-timeout", "1s", "--",
		"sh", "-c", p.starts.says()+"exec 9>>"+p.lock+"; flock -n 9 || echo two tries at once >>"+p.lock+"; sleep 1000").must(p.t)
}

// oneLeft looks at a pair with one network: nothing is noticed, nobody flaps.
func (p *cutPair) oneLeft(gone string) {
	p.t.Helper()
	over := ""
	if strings.Contains(gone, "management") {
		over = "spark2"
	}
	eventually(p.t, 30*time.Second, "spark2 is ready, with "+gone+" gone", func() bool {
		hosts, ok := p.view("spark1").overFabric()
		return ok && hosts == over
	})
	p.launch("spark2", "exec", "--nodes", "2", "--force").must(p.t) // without a fabric a job needs to be told so
	p.noFlap()
}

func (p *cutPair) noFlap() {
	p.t.Helper()
	if text := p.leaderLog()[p.said:]; strings.Contains(text, "node down") || strings.Contains(text, "stop leading") {
		p.t.Errorf("with one network left:\n%s", text)
	}
}

// apart looks at a pair of which neither reaches the other, and gives the time
// until that was known.
func (p *cutPair) apart() time.Duration {
	p.t.Helper()
	took := eventually(p.t, 30*time.Second, "spark2 is away for spark1", func() bool {
		return regexp.MustCompile(`(?m)^spark2 +\S+ +away`).MatchString(p.on("spark1", "sparkrun", "status").out)
	})
	const says, remedy = "spark1, the only voter of this cluster, does not answer", "sudo sparkrun takeover --confirm-dead spark1"
	eventually(p.t, 30*time.Second, "spark2 has no leader", func() bool { return strings.Contains(p.on("spark2", "sparkrun", "status").err, says) })

	p.launch("spark1", "exec").must(p.t)
	if r := p.launch("spark1", "exec", "--nodes", "2"); r.code != 125 || !strings.Contains(r.err, "spark2") {
		p.t.Errorf("a job on two: %s", r)
	}
	for _, args := range [][]string{{"status"}, {"ps"}, {"launch", "exec", "--", "true"}, {"stop", "goes-on"}} {
		r := p.on("spark2", append([]string{"sparkrun"}, args...)...)
		reads := args[0] == "status" || args[0] == "ps"
		if r.code == 0 != reads || !strings.Contains(r.err, "no leader: "+says) || !strings.Contains(r.err, remedy) {
			p.t.Errorf("%v without a leader: %s", args, r)
		}
	}
	if st := p.jobs("spark2")["goes-on"].State; st != "running" {
		p.t.Errorf("spark2 says that its job is %s", st)
	}
	if r := p.on("spark2", "sparkrun", "logs", "goes-on", "--tail", "1"); !strings.Contains(r.out, "[1] ") {
		p.t.Errorf("the output of its own rank: %s", r)
	}
	eventually(p.t, 45*time.Second, "no try follows without proof", func() bool {
		return strings.Contains(p.on("spark1", "sparkrun", "ps", "--json").out, "it waits for spark2, then starts again: whether ranks still run there is not known")
	})
	if st := p.jobs("spark1")["goes-on"].State; st != "running" {
		p.t.Errorf("spark1 says that the job on both is %s", st)
	}
	return took
}

// together waits until the first network carries again.
func (p *cutPair) together() time.Duration {
	p.t.Helper()
	return eventually(p.t, 45*time.Second, "spark2 is back", func() bool {
		_, ok := p.view("spark1").overFabric()
		return ok && p.leader("spark2") == "spark1"
	})
}

// whole looks at a pair that has both networks again.
func (p *cutPair) whole() {
	p.t.Helper()
	eventually(p.t, 45*time.Second, "spark2 is reached over management", func() bool {
		hosts, ok := p.view("spark1").overFabric()
		return ok && hosts == ""
	})
	p.hasRole("spark2", "spark2", "standby")
	eventually(p.t, 45*time.Second, "a job on both", func() bool { return p.launch("spark2", "exec", "--nodes", "2").code == 0 }) // a port's RDMA comes up after its link
	if now := p.view("spark1"); now.Leader != "spark1" || now.Term != p.before.Term {
		p.t.Errorf("spark1 led in term %d; now %s leads in term %d", p.before.Term, now.Leader, now.Term)
	}
	eventually(p.t, 45*time.Second, "the job on spark2 runs", func() bool { return p.jobs("spark1")["again"].State == "running" })
	p.on("spark1", "sparkrun", "stop", "again").must(p.t)
	if b, err := os.ReadFile(p.lock); err != nil || len(b) > 0 {
		p.t.Errorf("%v: %s", err, b)
	}
}
