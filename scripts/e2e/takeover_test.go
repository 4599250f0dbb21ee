package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var takeoverRounds = flag.Int("takeover-rounds", 1, "how often TestTakeoversInTurn kills agents in the middle; 0 = at each step there is")

// The tests here wait for machines to be given up most of their time, so they
// run side by side.

// refusesTakeover is a take-over that must not be made, for a reason. What only
// time brings about is waited for.
func (l *lab) refusesTakeover(host, why string, dead ...string) {
	l.t.Helper()
	var r result
	defer func() {
		if l.t.Failed() {
			l.t.Logf("the last answer: %s", r)
		}
	}()
	eventually(l.t, time.Minute, fmt.Sprintf("a take-over by %s from %v is refused: %s", host, dead, why), func() bool {
		r = l.on(host, "sparkrun", "takeover", "--confirm-dead", strings.Join(dead, ","), "--yes")
		if r.code == 0 {
			l.t.Fatalf("%s took over from %v: %s", host, dead, r)
		}
		return strings.Contains(r.err, why)
	})
}

// epochOf is what a host says of its cluster's epoch.
func (l *lab) epochOf(host string) (e struct {
	Epoch  uint64
	Leader string
}) {
	l.t.Helper()
	if err := json.Unmarshal([]byte(l.on(host, "sparkrun", "status", "--json").out), &e); err != nil {
		e.Leader = "" // its agent is on its way
	}
	return e
}

// A pair whose management switch is dead: a machine that answers over the fabric
// is not taken for dead, whatever is said; one that is off is, and what it comes
// back to reaches it over the fabric.
func TestTakeoverOverFabric(t *testing.T) {
	t.Parallel()
	l, w := pair(t), newStartFile(t)
	l.inSwitch("ip", "link", "set", "br-mgmt", "down")
	eventually(t, time.Minute, "the fabric alone is left", func() bool {
		hosts, ok := l.view("spark1").overFabric()
		return ok && hosts == "spark2"
	})
	l.refusesTakeover("spark2", "spark1 leads", "spark1")
	l.do("kill", "spark1", "--agent")
	l.refusesTakeover("spark2", "spark1 is not dead: ", "spark1")
	l.refusesTakeover("spark2", "the machine answers at 192.168.", "spark1") // gossip and probe have given it up

	l.do("kill", "spark1")
	l.takeover("spark2", "spark1")
	l.on("spark2", "sparkrun", "launch", "exec", "--name", "alone", "--", "sh", "-c", w.says()).must(t)
	l.do("start", "spark1")
	eventually(t, time.Minute, "spark1 has given way, over the fabric", func() bool {
		hosts, ok := l.view("spark2").overFabric()
		return ok && hosts == "spark1" && l.epochOf("spark1").Epoch == 2
	})
	l.on("spark1", "sparkrun", "launch", "exec", "--nodes", "2", "--", "sh", "-c", w.says()).must(t)
	l.inSwitch("ip", "link", "set", "br-mgmt", "up")
	eventually(t, time.Minute, "all is on management again", func() bool {
		hosts, ok := l.view("spark2").overFabric()
		return ok && hosts == ""
	})
	w.startedOnce()
	l.assertNothingLeft("spark1", "spark2")
}

// Three machines vote and a fourth has a copy; two voters are lost. Who goes on
// is a person's word and the consent of all that answer. Two who take over
// without a word from each other meet again: the higher one stands, nothing is
// lost, and both say so.
func TestVotersLost(t *testing.T) {
	t.Parallel()
	l, w := up(t, 4), newStartFile(t)
	first := l.leader("spark1")
	var voters []string
	copyist := ""
	eventually(t, time.Minute, "three vote and one stands by", func() bool {
		voters, copyist = nil, ""
		for _, n := range l.roles(first) {
			switch {
			case n.Role == "voter":
				voters = append(voters, n.Host)
			case n.Role == "standby":
				copyist = n.Host
			}
		}
		return len(voters) == 2 && copyist != ""
	})
	second, third := voters[0], voters[1]
	eventually(t, time.Minute, "the copy has come to it", func() bool {
		return strings.Contains(l.reads(copyist, "/metrics").out, "\nsparkrun_record_index ")
	})

	l.do("cut", copyist, "all")
	l.on(third, "sparkrun", "launch", "exec", "--name", "news", "--on", third, "--", "sh", "-c", w.says()).must(t)
	l.do("kill", first)
	l.do("kill", second)
	l.do("heal", copyist)
	gone := []string{first, second}
	slices.Sort(gone)
	eventually(t, time.Minute, "what can be done is said", func() bool {
		said := l.on(third, "sparkrun", "status").err
		return strings.Contains(said, "no leader") && strings.Contains(said, "takeover --confirm-dead ") && strings.Contains(said, gone[0]) && strings.Contains(said, gone[1])
	})
	l.refusesTakeover(copyist, third+" has a newer copy of the record than "+copyist+": type it there", gone...)
	l.refusesTakeover(copyist, third+" is not dead: ", append(gone, third)...)
	l.refusesTakeover(third, second+" may be leading: each other voter has to answer or be confirmed dead", first)

	// In the dark both go on.
	l.do("cut", copyist, "all")
	l.takeover(third, strings.Join(gone, ","))
	l.takeover(copyist, strings.Join(append(gone, third), ","))
	for _, h := range []string{third, copyist} {
		if e := l.epochOf(h); e.Epoch != 2 || e.Leader != h {
			t.Errorf("%s says that %s leads epoch %d", h, e.Leader, e.Epoch)
		}
		l.on(h, "sparkrun", "launch", "exec", "--name", "of-"+h, "--", "sh", "-c", w.says()).must(t)
	}
	l.refusesTakeover(third, third+" leads already", copyist)
	ids := map[string]string{}
	for _, n := range l.roles(third) {
		ids[n.Host] = n.ID
	}
	stands, yields := third, copyist
	if ids[copyist] > ids[third] {
		stands, yields = copyist, third
	}
	l.do("heal", copyist)
	l.hasRole(stands, yields, "standby")
	for _, h := range []string{stands, yields} {
		if e := l.epochOf(h); e.Epoch != 2 || e.Leader != stands {
			t.Errorf("%s says that %s leads epoch %d, want %s", h, e.Leader, e.Epoch, stands)
		}
		jobs := l.jobs(h)
		for _, name := range []string{"news", "of-" + third, "of-" + copyist} {
			if jobs[name].State != "completed" {
				t.Errorf("%s says of job %s %+v", h, name, jobs[name])
			}
		}
	}
	if text := l.log(yields); !strings.Contains(text, `msg="a later epoch leads"`) || !strings.Contains(text, `msg="give way to a later epoch"`) {
		t.Errorf("%s says nothing of its giving way:\n%s", yields, text)
	}
	if text := l.log(stands); !strings.Contains(text, "msg=reunited") {
		t.Errorf("%s says nothing of the reunion:\n%s", stands, text)
	}

	// The old majority is back, as one: it gives way as well.
	l.do("start", first)
	l.do("start", second)
	l.on(yields, "sparkrun", "status", "--wait-nodes", "4", "--timeout", "90s").must(t)
	l.on(first, "sparkrun", "launch", "exec", "--nodes", "4", "--", "sh", "-c", w.says()).must(t)
	w.startedOnce()
	l.assertNothingLeft(other(4)...)
}

// Two voters of three are lost, and what ran there is tried again on the third, which
// took over. They come back together. Within its reach they give way; out of it they
// lead, and let what they find wait for a time: it may be running elsewhere.
func TestOldMajorityReturns(t *testing.T) {
	t.Parallel()
	l, w := up(t, 3), newStartFile(t)
	eventually(t, time.Minute, "three vote", func() bool {
		voters := 0
		for _, n := range l.roles("spark1") {
			if n.Role == "leader" || n.Role == "voter" {
				voters++
			}
		}
		return voters == 3
	})
	const was, stays = "spark1", "spark3"
	gone := []string{was, "spark2"}
	for try, within := range []bool{true, false} {
		name := fmt.Sprintf("job%d", try)
		l.on(stays, "sparkrun", "launch", "-d", "exec", "--name", name, "--nodes", "1", "--on", was+","+stays, "--max-restarts", "5", "--node-timeout", "2s", "--env", "N=100000",
			"--", "sh", "-c", w.says()+counted).must(t)
		tries := func() (hosts []string) {
			for _, line := range w.lines() {
				if strings.HasPrefix(line, l.jobs(stays)[name].ID+"/") {
					hosts = append(hosts, line[strings.LastIndex(line, "/")+1:])
				}
			}
			return hosts
		}
		eventually(t, time.Minute, "it runs on "+was, func() bool { return slices.Equal(tries(), []string{was}) })
		for _, h := range gone {
			l.do("kill", h)
		}
		l.takeover(stays, strings.Join(gone, ","))
		eventually(t, time.Minute, "it is tried again on "+stays, func() bool { return slices.Equal(tries(), []string{was, stays}) })
		if !within {
			l.do("cut", stays, "all")
		}
		for _, h := range gone {
			l.do("start", h)
		}
		if !within {
			eventually(t, time.Minute, "they lead, and it waits", func() bool {
				return strings.Contains(l.on(was, "sparkrun", "ps", "--json").out, stays+" has not been heard since this machine started")
			})
			l.on(was, "sparkrun", "launch", "exec", "--nodes", "2", "--", "true").must(t)
			l.do("heal", stays)
		}
		for _, h := range gone {
			l.hasRole(stays, h, "voter")
		}
		if e := l.epochOf(was); e.Epoch != uint64(try+2) || e.Leader != stays {
			t.Errorf("%s leads epoch %d", e.Leader, e.Epoch)
		}
		if state := l.jobs(was)[name].State; state != "running" || len(tries()) != 2 {
			t.Errorf("the job is %s, with tries on %v", state, tries())
		}
		l.on(was, "sparkrun", "stop", name).must(t)
	}
	w.startedOnce()
	l.assertNothingLeft(other(3)...)
}

// part is a member's part in the cluster.
type part struct{ ID, Host, Role string }

func (l *lab) roles(host string) []part {
	l.t.Helper()
	var st struct{ Nodes []part }
	if err := json.Unmarshal([]byte(l.on(host, "sparkrun", "status", "--json").must(l.t).out), &st); err != nil {
		l.t.Fatal(err)
	}
	return st.Nodes
}

// log is all that a host's agents have said.
func (l *lab) log(host string) string {
	l.t.Helper()
	b, err := os.ReadFile("/var/tmp/sparkrun-lab/" + l.name + "/hosts/" + host + "/agent.log")
	if err != nil {
		l.t.Fatal(err)
	}
	return string(b)
}

// The machines of a pair take over from each other in turn, each while the other
// leads on in the dark. In every round both agents are killed once: one at a step
// of its take-over, the other at a step of its giving way. Whatever the step, the
// last word stands in the end, both know every job, and none was started twice.
func TestTakeoversInTurn(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	build, list := filepath.Join(dir, "sparkrun"), filepath.Join(dir, "points")
	out, err := exec.Command("go", "run", "../failpoint", "-o", build, "-points", list, "../../cmd/sparkrun", "../../cmd/node", "../../rendezvous/failover", "../../rendezvous/consensus").CombinedOutput()
	if err != nil {
		t.Fatalf("build with failpoints: %v\n%s", err, out)
	}
	l := upWith(t, build, 2, "--topology", "pair")
	l.hasRole("spark1", "spark2", "standby")
	p := turns{spawner: spawner{lab: l}, starts: newStartFile(t), jobs: map[string]string{}}
	for _, h := range []string{"spark1", "spark2"} {
		l.on(h, "install", "-d", "-m", "777", "/tmp/failpoint").must(t)
	}

	// An undisturbed round tells the steps.
	p.round("trace", "trace", "spark1", "spark2")
	points := readPoints(t, list)
	over, way := p.steps("spark2", points), p.steps("spark1", points)
	t.Logf("%d steps of a take-over, %d of a giving way", len(over), len(way))
	if len(over) < 10 || len(way) < 10 {
		t.Fatalf("take-over: %v\ngiving way: %v", over, way)
	}
	rounds := *takeoverRounds
	if rounds == 0 {
		rounds = max(len(over), len(way))
	}
	leads, follows := "spark2", "spark1"
	for i := range rounds {
		pick := func(steps []string) string {
			return steps[int(float64(i+1)*0.6180339887*float64(len(steps)))%len(steps)]
		}
		if *takeoverRounds == 0 {
			pick = func(steps []string) string { return steps[i%len(steps)] }
		}
		a, b := pick(over), pick(way)
		t.Logf("round %d: %s dies at %s of its take-over, %s at %s of its giving way", i, follows, points[a], leads, points[b])
		p.round(a+" agent", b+" agent", leads, follows)
		leads, follows = follows, leads
	}
	t.Logf("%d of %d kills met their step", p.hits, 2*rounds)
	if p.hits == 0 {
		t.Error("that is not what the points are for")
	}
	p.starts.startedOnce()
	l.assertNothingLeft("spark1", "spark2")
}

// turns are the rounds of TestTakeoversInTurn.
type turns struct {
	spawner
	starts startFile
	jobs   map[string]string // what every host must know in the end: state by name
	epoch  uint64
	hits   int
	n      int
}

// steps are the points that a host has passed in files about changes of epochs,
// in their order.
func (p *turns) steps(host string, points map[string]string) (out []string) {
	p.t.Helper()
	at := p.order(host)
	b, err := os.ReadFile(at + "/trace")
	if err = errors.Join(err, os.Remove(at+"/trace")); err != nil {
		p.t.Fatal(err)
	}
	for n := range strings.FieldsSeq(string(b)) {
		file, _, _ := strings.Cut(points[n], ":")
		if slices.Contains([]string{"failover/takeover.go", "failover/epoch.go", "failover/liveness.go", "consensus/recover.go"}, file) {
			out = append(out, n)
		}
	}
	return out
}

// give has a host's agent follow an order of failpoint.
func (p *turns) give(host, order string) {
	p.t.Helper()
	at := p.order(host)
	if err := errors.Join(os.WriteFile(at+"/new", []byte(order), 0o666), os.Rename(at+"/new", at+"/order")); err != nil {
		p.t.Fatal(err)
	}
}

// recall takes the order back, and starts the agent again if it was killed by it.
func (p *turns) recall(host string) {
	p.t.Helper()
	at := p.order(host)
	os.Remove(at + "/order")
	if os.Remove(at+"/hit") != nil {
		return
	}
	p.hits++
	eventually(p.t, time.Minute, "the agent of "+host+" is dead", func() bool { return p.on(host, "pgrep", "-f", "sparkrun agent").code == 1 })
	p.do("start", host, "--agent")
}

// round has one machine take over from the other, which leads on meanwhile, and
// gives way then.
func (p *turns) round(over, way, leads, follows string) {
	t := p.t
	t.Helper()
	p.n++
	job := func(host, what, command string, flags ...string) {
		name := fmt.Sprintf("%s-%d", what, p.n)
		args := append([]string{"sparkrun", "launch", "exec", "--on", host, "--name", name}, flags...)
		p.on(host, append(args, "--", "sh", "-c", p.starts.says()+command)...).must(t)
		p.jobs[name] = "completed"
	}
	on := fmt.Sprintf("goes-on-%d", p.n)
	job(follows, "goes-on", "sleep 1000", "-d", "--node-timeout", "0") // who leads in the dark must not take it for lost
	p.do("cut", leads, "all")
	p.give(follows, over)
	eventually(t, 2*time.Minute, follows+" leads a new epoch", func() bool {
		p.on(follows, "sparkrun", "takeover", "--confirm-dead", leads, "--yes")
		if exists(p.order(follows) + "/hit") {
			p.recall(follows)
		}
		e := p.epochOf(follows)
		return e.Leader == follows && e.Epoch > p.epoch
	})
	p.recall(follows)
	p.epoch = p.epochOf(follows).Epoch
	job(follows, "new", "true")
	eventually(t, time.Minute, leads+" leads on alone", func() bool { return p.leader(leads) == leads })
	job(leads, "old", "true")

	p.give(leads, way)
	p.do("heal", leads)
	eventually(t, 2*time.Minute, leads+" has given way", func() bool {
		if exists(p.order(leads) + "/hit") {
			p.recall(leads)
		}
		st := p.roles(follows)
		return p.epochOf(leads).Epoch == p.epoch && p.leader(leads) == follows &&
			slices.ContainsFunc(st, func(n part) bool { return n.Host == leads && n.Role == "standby" })
	})
	p.recall(leads)
	p.hasRole(follows, leads, "standby")
	if st := p.lab.jobs(leads)[on].State; st != "running" {
		t.Errorf("the job on %s, which was there all the while, is %s", follows, st)
	}
	p.on(leads, "sparkrun", "stop", on).must(t)
	p.jobs[on] = "stopped"
	for _, h := range []string{leads, follows} {
		known := p.lab.jobs(h)
		for name, state := range p.jobs {
			if known[name].State != state {
				t.Errorf("%s says that job %s is %q, want %q", h, name, known[name].State, state)
			}
		}
	}
}
