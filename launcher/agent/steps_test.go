package agent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// inSteps has a server come up before the rank that main's script is. It says that it
// is up, and then listens, once its gate is open.
func inSteps(a *launcher.Assignment) {
	main := a.Spec.Stages[0]
	server := main
	main.Where = launcher.OnHead
	server.Name, server.Main, server.Where = "server", false, launcher.OnHead
	server.Ports = []launcher.NamedPort{{Name: "web"}, {Name: "more", Count: 3}}
	server.Env = append(server.Env[:len(server.Env):len(server.Env)],
		launcher.Var{Name: "WEB", Value: launcher.Of(launcher.HeadPortNamed("web"))},
		launcher.Var{Name: "MORE", Value: launcher.Of(launcher.LastPortNamed("more"))})
	server.Argv = launcher.Lits("sh", "-c",
		`exec 3<>"$GATE.0"; read x <&3; echo "up on $WEB to $MORE"; exec python3 -m http.server --bind 127.0.0.1 "$WEB"`)
	port := launcher.Of(launcher.PortNamed("web"))
	server.Ready = []launcher.Probe{
		{Kind: launcher.ProbeLog, What: "its word", Match: `^up on \d+`},
		{Kind: launcher.ProbeTCP, What: "its port", Port: port},
		{Kind: launcher.ProbeHTTP, What: "its pages", Port: port, Path: "/"},
		{Kind: launcher.ProbeExec, What: "its command", Argv: launcher.Lits("sh", "-c", `test -n "$WEB"`)},
		{Kind: launcher.ProbeExec, What: "things",
			Argv:  launcher.Lits("sh", "-c", `echo 2 things; echo 1 things; ls "$WITNESS.count" && echo 4 things`),
			Match: `(?m)^(\d+) things`, Want: launcher.Lit("7")},
	}
	a.Spec.Stages = []launcher.Stage{server, main}
	a.Ranks, a.World = 2, 2
}

func (n *node) begin(step int) {
	n.t.Helper()
	e := n.entry(key)
	n.order(launcher.Order{Start: &launcher.Start{Key: key, Port: e.Port, Step: step, HeadPorts: e.Ports}})
}

func (n *node) ask(step int) {
	n.t.Helper()
	n.order(launcher.Order{Probe: &launcher.AskReady{Key: key, Step: step, HeadPorts: n.entry(key).Ports}})
}

// probed waits until the probes' word begins so; "" is that they have passed.
func (n *node) probed(want string) {
	n.t.Helper()
	for {
		ev := n.hear(launcher.Probed)
		if ev.Text == want || want != "" && strings.HasPrefix(ev.Text, want) {
			return
		}
		if ev.Text == "" {
			n.t.Fatalf("the probes have passed; want %q first", want)
		}
	}
}

// A step's probes pass one after the other, the next step is started once, and an agent
// that comes between knows as much.
func TestSteps(t *testing.T) {
	n := newNode(t)
	a := n.as("witness; sleep 1000", inSteps)
	n.prepare(a)
	ev := n.hear(launcher.Prepared)
	web, more := ev.Ports["web"], ev.Ports["more"]
	if web.First < firstNamed || web.Last != web.First || more.Last != more.First+2 || more.Last > lastNamed {
		t.Fatalf("ports %v", ev.Ports)
	}
	if _, err := bindTo(int(more.Last)); err == nil {
		t.Error("a port is not held before the start")
	}
	n.begin(0)
	if ev := n.hear(launcher.Started); ev.Step != 0 {
		t.Errorf("started step %d", ev.Step)
	}
	n.ask(0)
	n.probed(`its word: rank 0 has not written a line with "^up on \\d+" yet`)
	if e := n.entry(key); len(e.Ranks) != 1 || e.Ranks[0].Rank != 0 {
		t.Errorf("before the first step is ready these run: %+v", e.Ranks)
	}
	n.pass(0)
	n.probed("3 of 7 things")
	n.drop()
	n.open()
	n.ask(0)
	n.probed("3 of 7 things")
	if e := n.entry(key); e.Ports["web"] != web {
		t.Errorf("ports after a restart %v, want %v", e.Ports, ev.Ports)
	}
	must(t, os.WriteFile(filepath.Join(n.base, "witness.count"), nil, 0o644))
	n.probed("")
	n.begin(1)
	if ev := n.hear(launcher.Started); ev.Step != 1 {
		t.Errorf("started step %d", ev.Step)
	}
	n.drop()
	n.open()
	n.begin(1) // by another leader
	n.begin(0)
	n.poll("main's word", func() bool { return len(n.witness()) > 0 })
	time.Sleep(200 * time.Millisecond) // for a second one, which must not come
	if w := n.witness(); len(w) != 1 {
		t.Errorf("main has run %d times", len(w))
	}
	n.end(key, time.Second)
	n.hear(launcher.Ended)
	if left := n.survivors(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A node whose ranks come later keeps them, and what was never started has no exit.
func TestStepsNotStarted(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("witness", inSteps))
	n.hear(launcher.Prepared)
	n.begin(0)
	n.hear(launcher.Started)
	n.end(key, 0)
	n.hear(launcher.Ended)
	e := n.entry(key)
	if len(e.Ranks) != 1 || e.Ranks[0].Exit == nil || !e.Ranks[0].Exit.ByUs || len(n.witness()) > 0 {
		t.Errorf("ledger %+v, witness %v", e, n.witness())
	}
}

// restOnly has the server on the other node, whose probes are asked here too.
func restOnly(a *launcher.Assignment) {
	inSteps(a)
	server := &a.Spec.Stages[0]
	server.Where, server.Ready = launcher.OnRest,
		[]launcher.Probe{{Kind: launcher.ProbeTCP, Head: true, What: "main's port",
			Port: launcher.Of(launcher.PortNamed("own"))}}
	server.Ports, server.Env = nil, nil
	a.Spec.Stages[1].Ports = []launcher.NamedPort{{Name: "own"}}
	a.Ranks, a.NodeCount, a.Spec.Nodes = 1, 2, 2
}

// A node that is to be asked about a stage of others' answers before it has started anything.
func TestProbeBeforeStart(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("witness", restOnly))
	n.hear(launcher.Prepared)
	n.ask(0)
	n.probed("main's port: nothing listens on port ")
	n.end(key, 0)
	n.hear(launcher.Ended)
}

// A stage's ports are held until that stage is started, over a restart of the agent too.
func TestPortsAreHeldByStage(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("witness; sleep 1000", func(a *launcher.Assignment) {
		inSteps(a)
		a.Spec.Stages[1].Ports = []launcher.NamedPort{{Name: "serve"}}
	}))
	ports := n.hear(launcher.Prepared).Ports
	isHeld := func(name string) bool {
		one, err := bindTo(int(ports[name].First))
		if err == nil {
			one.Close()
		}
		return err != nil
	}
	n.begin(0)
	n.hear(launcher.Started)
	if isHeld("web") || !isHeld("serve") {
		t.Errorf("after the first stage's start: web held %v, serve held %v", isHeld("web"), isHeld("serve"))
	}
	n.drop()
	n.open()
	if isHeld("web") || !isHeld("serve") {
		t.Errorf("after a restart: web held %v, serve held %v", isHeld("web"), isHeld("serve"))
	}
	n.begin(1)
	n.hear(launcher.Started)
	if isHeld("serve") {
		t.Error("a port is held after its stage's start")
	}
	n.end(key, 0)
	n.hear(launcher.Ended)
}

// A port that people know is had or refused, with who has it; nobody else's is taken for it.
func TestPortThatIsTaken(t *testing.T) {
	n := newNode(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	port := uint16(ln.Addr().(*net.TCPAddr).Port)
	fixed := func(a *launcher.Assignment) {
		inSteps(a)
		a.Spec.Stages[0].Ports[0].At = port
	}
	n.prepare(n.as("witness", fixed))
	if ev := n.hear(launcher.Refused); !strings.Contains(ev.Text, fmt.Sprintf("port web: bind to port %d", port)) ||
		!strings.Contains(ev.Text, fmt.Sprintf("(PID %d) listens on it: end that, or choose another port", os.Getpid())) {
		t.Errorf("refused with %q", ev.Text)
	}
	n.end(key, 0)
	n.hear(launcher.Ended)
	n.a.mu.Lock()
	defer n.a.mu.Unlock()
	if len(n.a.heldPorts) > 0 {
		t.Errorf("counted as held: %v", n.a.heldPorts)
	}
}

// A port that people know is one job's, though nobody listens there yet: two servers that load their
// models would else both get it, and vLLM's would share it.
func TestPortOfAnotherJob(t *testing.T) {
	n := newNode(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ln.Close()
	port := uint16(ln.Addr().(*net.TCPAddr).Port)
	of := func(id launcher.JobID) launcher.Assignment {
		return n.as("witness; sleep 1000", func(a *launcher.Assignment) {
			inSteps(a)
			a.Job, a.Spec.ID = id, id
			a.Spec.Stages[0].Ports[0].At = port
		})
	}
	second := of("second")
	refused := func(when string) {
		t.Helper()
		n.prepare(second)
		if ev := n.hear(launcher.Refused); ev.Key != second.Key ||
			!strings.Contains(ev.Text,
				fmt.Sprintf("port web: job %[2]s has port %[1]d here (`sparkrun ps %[2]s`): end that job, or choose "+
					"another port", port, job)) {
			t.Errorf("%s: refused %s with %q", when, ev.Key, ev.Text)
		}
		n.end(second.Key, 0)
		n.hear(launcher.Ended)
		second.Generation++
	}
	n.prepare(of(job))
	n.hear(launcher.Prepared)
	refused("prepared")
	n.drop()
	n.open()
	refused("prepared, and another agent")
	n.begin(0)
	n.hear(launcher.Started)
	refused("started, and it does not listen yet")
	n.end(key, 0)
	n.hear(launcher.Ended)
	n.prepare(second)
	if ev := n.hear(launcher.Prepared); ev.Key != second.Key {
		t.Errorf("after its end: %+v", ev)
	}
	n.end(second.Key, 0)
	n.hear(launcher.Ended)
}

// A line that comes after many others is found, in whatever part of the output it lies.
func TestLogProbeReadsLaterParts(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("witness; sleep 1000", func(a *launcher.Assignment) {
		inSteps(a)
		a.Spec.MaxOutput = 1 << 10 // parts have 64 KiB at least
		server := &a.Spec.Stages[0]
		server.Argv = launcher.Lits("sh", "-c",
			`exec 3<>"$GATE.0"; head -c 200000 /dev/zero | tr '\0' '\n'; read x <&3; head -c 900000 /dev/zero | tr '\0' '\n'; echo "up at last"; exec sleep 1000`)
		server.Ready = server.Ready[:1]
		server.Ready[0].Match = `^up at last$`
	}))
	n.hear(launcher.Prepared)
	n.begin(0)
	n.ask(0)
	n.probed(`its word: rank 0 has not written a line with "^up at last$" yet`)
	n.pass(0)
	n.probed("")
	n.end(key, 0)
	n.hear(launcher.Ended)
}

// No user's jobs have all ports held: those that are about to start have less than half.
func TestPortsOfOneUserAreBounded(t *testing.T) {
	n := newNode(t)
	wish := launcher.NamedPort{Name: "x", Count: launcher.MaxPortCount}
	var all []holding
	defer func() {
		for _, h := range all {
			h.Close()
		}
	}()
	for range 2 {
		h, _, err := n.a.holdNamed(key, "eve", wish)
		must(t, err)
		all = append(all, h)
	}
	if _, _, err := n.a.holdNamed(key, "eve", launcher.NamedPort{Name: "x"}); err == nil ||
		!strings.Contains(err.Error(), "jobs of eve") {
		t.Errorf("one more: %v", err)
	}
	h, _, err := n.a.holdNamed(key, "adam", launcher.NamedPort{Name: "x"})
	must(t, err)
	h.Close()
	all[0].Close()
	if h, _, err = n.a.holdNamed(key, "eve", wish); err != nil {
		t.Errorf("after one was let go: %v", err)
	}
	all[0] = h
}

// replaced has a worker of the rest's come again.
func replaced(a *launcher.Assignment) {
	inSteps(a)
	worker := a.Spec.Stages[0]
	worker.Name, worker.Where, worker.Ports, worker.Ready, worker.Spares, worker.Replace = "worker", launcher.OnRest,
		nil, nil, true, true
	worker.Argv, worker.Env = a.Spec.Stages[1].Argv, slices.Clone(a.Spec.Stages[1].Env)
	worker.Env[len(worker.Env)-1].Value = launcher.Lit("2") // names its gate
	a.Spec.Stages = []launcher.Stage{a.Spec.Stages[0], worker, a.Spec.Stages[1]}
	a.Spec.Stages[0].Ports, a.Spec.Stages[0].Ready, a.Spec.Stages[0].Env = nil, nil, a.Spec.Stages[2].Env
	a.Spec.MaxRestarts, a.Spec.Nodes = 2, 2
	a.NodeRank, a.NodeCount, a.FirstRank, a.Ranks, a.World = 1, 2, 2, 1, 3
}

// A rank that may come again does so where it was, once for each order, with another agent too; the
// attempt lives on without it, and ends when it is told to.
func TestRankComesAgain(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("witness; gate; exit 3", replaced))
	n.hear(launcher.Prepared)
	n.begin(1)
	n.hear(launcher.Started)
	n.pass(2)
	if ev := n.hear(launcher.Exited); ev.Again != 0 || ev.Exit.Code != 3 {
		t.Errorf("the first incarnation: %+v", ev)
	}
	n.drop()
	n.open()
	if e := n.entry(key); e.Phase != launcher.PhaseStarted {
		t.Fatalf("without its rank the attempt is %s", e.Phase)
	}
	for range 2 {
		n.order(launcher.Order{Again: &launcher.Again{Key: key, Rank: 2, Again: 1}})
	}
	if ev := n.hear(launcher.Returned); ev.Again != 1 || ev.Rank != 2 {
		t.Errorf("the second incarnation: %+v", ev)
	}
	n.order(launcher.Order{Again: &launcher.Again{Key: key, Rank: 2, Again: 1}})
	n.poll("its word", func() bool { return len(n.witness()) == 2 })
	if e := n.entry(key); len(e.Ranks) != 1 || e.Ranks[0].Again != 1 || e.Ranks[0].State != launcher.RankRunning ||
		e.Ranks[0].Exit != nil {
		t.Errorf("ledger %+v", e.Ranks)
	}
	n.end(key, 0)
	n.hear(launcher.Ended)
	if e := n.entry(key); !e.Ranks[0].Exit.ByUs || len(n.witness()) != 2 {
		t.Errorf("ledger %+v, witness %v", e.Ranks, n.witness())
	}
	if left := n.survivors(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
