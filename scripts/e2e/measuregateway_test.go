package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var measureGateway = flag.String("measure-gateway", "", "what TestMeasureGateway measures: power kill update, separated by blanks")

// faultFigure is a line of the table: a figure, and what it is to be.
type faultFigure struct{ section, name, goal, got string }

// gatewayFaults is one run of scripts/bench_gateway_faults.
type gatewayFaults struct {
	*lab
	program, dir string
	urls         []string // of all members
	rows         []faultFigure
}

// TestMeasureGateway is scripts/bench_gateway_faults.
func TestMeasureGateway(t *testing.T) {
	if *measureGateway == "" {
		t.Skip("takes a quiet machine: ./scripts/bench_gateway_faults")
	}
	g := newGatewayFaults(t)
	for _, s := range []struct {
		name string
		run  func()
	}{
		{"power", func() { g.power(false); g.power(true) }}, {"kill", g.kill}, {"update", g.update},
	} {
		if slices.Contains(strings.Fields(*measureGateway), s.name) {
			s.run()
		}
	}
	fmt.Printf("\n%-18s %-74s %8s %10s\n", "", "", "GOAL", "FIGURE")
	last := ""
	for _, r := range g.rows {
		if r.section == last {
			r.section = ""
		} else {
			last = r.section
		}
		fmt.Printf("%-18s %-74s %8s %10s\n", r.section, r.name, r.goal, r.got)
	}
}

func newGatewayFaults(t *testing.T) *gatewayFaults {
	g := &gatewayFaults{lab: up(t, 3), program: gatewayProgram(t), dir: scratch(t)}
	g.on("spark1", "sparkrun", "gateway", "open").must(t)
	for _, a := range g.gateway("spark1").Addresses {
		g.urls = append(g.urls, strings.TrimSuffix(a.URL, "/v1"))
	}
	return g
}

// A machine with a gateway and one of two replicas loses its power: of the requests that had not begun there none is
// lost, and clients of those that had are told so, in place of waiting for the kernel to give up after 15 minutes.
func TestGatewayPower(t *testing.T) {
	t.Parallel()
	g := newGatewayFaults(t)
	lost, again, told := g.power(false)
	if lost > 0 || again > 10*time.Second || told > 8*time.Second {
		t.Errorf("%d lost, all were answered within a second again after %s, clients were told after %s", lost, again, told)
	}
}

func (g *gatewayFaults) tell(section, name, goal string, got any) {
	if d, is := got.(time.Duration); is {
		got = fmt.Sprintf("%.1f s", d.Seconds())
	}
	g.rows = append(g.rows, faultFigure{section, name, goal, fmt.Sprint(got)})
}

// serve launches the engine NAME on a host, and waits until all members have its model.
func (g *gatewayFaults) serve(name, host string, more ...string) {
	g.t.Helper()
	args := []string{"sparkrun", "launch", "exec", "--name", name, "--on", host, "--serve", "8000", "--health", "/health",
		"--metrics", "/metrics", "--model", "qwen", "--env", "ANSWER=200ms", "--env", "ENGINE=" + name,
		"--env", "BEGUN=" + g.begun(name)}
	program := []string{"--", g.program, "service", ":8000"}
	if slices.Contains(more, "--image") {
		program[1] = "engine"
		args = args[:len(args)-4] // ENGINE is the image's, which sees no folder
	}
	g.on("spark1", append(append(args, more...), program...)...).must(g.t)
	for _, url := range g.urls {
		eventually(g.t, 30*time.Second, "the model at "+url, func() bool {
			return g.on("switch", "curl", "-sf", "-m", "5", "-H", "Content-Type: application/json", "-d",
				`{"model": "qwen", "messages": [{"role": "user", "content": "x"}]}`, url+"/v1/chat/completions").code == 0
		})
	}
}

// begun is the file of the requests that have come to an engine.
func (g *gatewayFaults) begun(name string) string { return filepath.Join(g.dir, name+".begun") }

// sparkrun stops what is named.
func (g *gatewayFaults) stop(names ...string) {
	g.t.Helper()
	for _, name := range names {
		g.on(g.alive(), "sparkrun", "stop", name).must(g.t)
	}
}

// alive is a host that is on.
func (g *gatewayFaults) alive() string {
	for _, h := range other(3) {
		if g.on(h, "true").code == 0 {
			return h
		}
	}
	g.t.Fatal("no host is on")
	return ""
}

// power has two replicas on two hosts, of which one loses its power while clients ask at all three: the one that leads,
// or the other. It gives how many requests were lost that had not begun on it, and how long the others took.
func (g *gatewayFaults) power(leads bool) (lost int, again, told time.Duration) {
	leader := g.leader("spark1")
	replicas := []string{leader, other(3, leader)[0]}
	dead, section := replicas[1], "a member's power"
	if leads {
		dead, section = leader, "the leader's power"
	}
	names := map[string]string{}
	for i, h := range replicas {
		names[h] = fmt.Sprintf("%s%d", map[bool]string{true: "l", false: "m"}[leads], i)
		g.serve(names[h], h)
	}
	const limit = 10 * time.Second
	end := g.load(g.program, "qwen", g.urls, "--clients", "16", "--limit", limit.String())
	time.Sleep(5 * time.Second)
	cut := time.Now()
	g.do("kill", dead)
	off := time.Now()
	time.Sleep(25 * time.Second)
	all := end()

	text, err := os.ReadFile(g.begun(names[dead]))
	check(g.t, err)
	there := map[string]bool{} // that came to the dead engine
	for id := range strings.FieldsSeq(string(text)) {
		there[id] = true
	}
	deadVia := at(dead)
	via, begun, kept, after := 0, 0, 0, 0
	for _, a := range all {
		took := a.Ended.Sub(a.Began)
		switch {
		case a.Ended.Before(cut) && a.Error == "":
			continue
		case a.Error != "" && a.Via == deadVia && a.Began.Before(off):
			via++
			continue
		case a.Error != "" && there[a.ID]:
			begun++
			told = max(told, a.Ended.Sub(cut))
			continue
		case strings.Contains(a.Error, "does not answer any more"):
			kept++
		case a.Error != "":
			if lost++; lost < 10 {
				g.t.Logf("lost: %+v", a)
			}
		}
		after++
		if took > time.Second || a.Error != "" {
			g.t.Logf("slow: %s began %s took %s via %s by %s: %s", a.ID, a.Began.Sub(cut), took, a.Via, a.Engine, a.Error)
			again = max(again, a.Ended.Sub(cut))
		}
	}
	g.tell(section, fmt.Sprintf("lost, of %d requests that had not begun on it", after), "0", lost)
	g.tell(section, "... sent to it as it died, and its client told so", "0", kept)
	g.tell(section, "until each request is answered within a second again", "<= 3 s", again)
	g.tell(section, "under way on its engine through another's gateway: lost", "-", begun)
	if begun > 0 {
		g.tell(section, "... until their clients were told", "<= 3 s", told)
	}
	g.tell(section, "under way on its own gateway: lost", "-", via)
	g.do("start", dead)
	g.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "90s").must(g.t)
	for _, name := range names {
		g.stop(name)
	}
	return lost, again, told
}

// kill ends the only engine of a model while clients wait for it, and once more while it starts.
func (g *gatewayFaults) kill() {
	const section, n = "an engine's kill", 50
	g.serve("k", "spark2", "--env", "LOAD=4s", "--restart", "5/hour")
	kill := func() { g.on("spark2", "pkill", "-KILL", "-f", "^"+g.program+" service").must(g.t) }
	kill()
	began := time.Now()
	r := g.start("switch", append([]string{g.program, "load", "--clients", fmt.Sprint(n), "--requests", "1", "--limit", "5m", "qwen"},
		g.urls...)...)
	eventually(g.t, time.Minute, "it is started anew", func() bool {
		return g.on("spark2", "pgrep", "-f", "^"+g.program+" service").code == 0
	})
	waiting := func() (n int) {
		for _, m := range strings.Fields(g.on("spark1", "sh", "-c", "sparkrun gateway stats --json | grep -o '\"waiting\": *[0-9]*' | tr -dc '0-9\n'").out) {
			var k int
			_, _ = fmt.Sscan(m, &k)
			n += k
		}
		return n
	}
	eventually(g.t, 3*time.Second, "all wait", func() bool { return waiting() == n })
	kill()
	all := g.results(r)
	lost := 0
	for _, a := range all {
		if a.Error != "" {
			lost++
			g.t.Logf("lost: %+v", a)
		}
	}
	g.tell(section, fmt.Sprintf("lost, of %d requests that waited for it", len(all)), "0", lost)
	g.tell(section, "until all were answered: killed twice, and a start takes 4 s", "-", time.Since(began))
	g.stop("k")
}

// update gives a service another image while clients ask at all three.
func (g *gatewayFaults) update() {
	const section = "service update"
	g.do("engine", "spark2")
	g.engineImages("spark2", g.program, "one", "two", "broken")
	g.on("spark2", "sh", "-c", "mkdir -p /etc/sparkrun; echo 'containers: {users: [root]}' > /etc/sparkrun/policy.yaml").must(g.t)
	g.serve("u", "spark2", "--image", "lab/one")
	for _, to := range []struct {
		image      string
		name       string
		generation int
	}{
		{"lab/two", "lost, of %d requests while it gets another image", 2},
		{"lab/broken", "lost, of %d while it gets one that does not come up, and goes back", 4},
	} {
		end := g.load(g.program, "qwen", g.urls, "--clients", "16")
		g.on("spark1", "sparkrun", "service", "update", "u", "--image", to.image).must(g.t)
		g.serves("spark1", "u", to.generation)
		time.Sleep(2 * time.Second)
		all := end()
		lost, longest := 0, time.Duration(0)
		for _, a := range all {
			if a.Error != "" {
				lost++
				g.t.Logf("lost: %+v", a)
			}
			longest = max(longest, a.Ended.Sub(a.Began))
		}
		g.tell(section, fmt.Sprintf(to.name, len(all)), "0", lost)
		g.tell(section, "... the longest answer", "-", longest)
	}
	g.stop("u")
}
