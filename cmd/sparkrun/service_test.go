package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

func TestServiceFlags(t *testing.T) {
	port := launcher.Of(launcher.PortNamed(workloads.ServePort))
	hourly := launcher.Service{Port: port, Restarts: 3, Per: time.Hour}
	tests := map[string]struct {
		flags string
		want  *launcher.Service
		err   string
	}{
		"none":   {"", nil, ""},
		"a port": {"--serve 8000", &hourly, ""},
		"all":    {"--serve 8000 --health /health --metrics /metrics --model m --restart 1/day --autostart --probe generate --on-wedge restart", &launcher.Service{Port: port, Health: "/health", Metrics: "/metrics", Model: "m", Restarts: 1, Per: 24 * time.Hour, Autostart: true, Probe: launcher.ProbeGenerate, OnWedge: launcher.WedgeRestart}, ""},
		"a span": {"--serve 8000 --restart 5/10m",
			&launcher.Service{Port: port, Restarts: 5, Per: 10 * time.Minute}, ""},
		"no restart":     {"--serve 8000 --restart no", &launcher.Service{Port: port}, ""},
		"on demand":      {"--serve 8000 --restart no --on-demand --idle 1h --min-up 0", &launcher.Service{Port: port, OnDemand: &launcher.OnDemand{Idle: time.Hour, MinUp: time.Nanosecond}}, ""},
		"by default":     {"--serve 8000 --restart no --on-demand", &launcher.Service{Port: port, OnDemand: &launcher.OnDemand{Idle: 20 * time.Minute, MinUp: 5 * time.Minute}}, ""},
		"idle alone":     {"--serve 8000 --idle 1h", nil, "--idle: this is for services that come and go: add --on-demand"},
		"never idle":     {"--serve 8000 --on-demand --idle 0", nil, "want 1m or more"},
		"no service":     {"--autostart", nil, "--autostart: this is for services: say where it answers, with --serve PORT"},
		"a high port":    {"--serve 80000", nil, "want a port from 1 to 65535"},
		"no time":        {"--serve 8000 --restart 3", nil, "want no, or a number of attempts in a time, such as 3/hour"},
		"too often":      {"--serve 8000 --restart 1000/hour", nil, "want up to 100 attempts"},
		"a health name":  {"--serve 8000 --health health", nil, "begin with a slash"},
		"no metrics":     {"--serve 8000 --on-wedge restart", nil, "say where they are (--metrics)"},
		"no attempt":     {"--serve 8000 --metrics /m --on-wedge restart --restart no", nil, "--restart no leaves it no attempt"},
		"node-timeout":   {"--serve 8000 --node-timeout 5m", nil, "silence never ends a service"},
		"on-partition":   {"--serve 8000 --on-partition end", nil, "silence never ends a service"},
		"timeout":        {"--serve 8000 --timeout 5m", nil, "a service ends when it is stopped"},
		"max-restarts":   {"--serve 8000 --max-restarts 2", nil, "a service has --restart"},
		"stdin":          {"--serve 8000 --stdin 0", nil, "nobody stays to read it"},
		"standalone":     {"--serve 8000 --standalone", nil, "which takes an agent"},
		"on-failure":     {"--serve 8000 --on-failure continue", nil, "or is restarted"},
		"something else": {"--serve 8000 --probe once", nil, "want health or generate"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got *launcher.Service
			g := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Ended(apptest.Completed))}
			line := append(append([]string{"launch", "exec"}, strings.Fields(tt.flags)...), "--", "serve-it")
			_, _, e := cli(t, apptest.Agent(g, &apptest.FakeCluster{}), line...)
			if len(g.Specs) > 0 {
				spec := g.Specs[0]
				got = spec.Service
				if got != nil && (spec.NodeTimeout != launcher.Never || len(spec.MainStage().Ready) != 1 ||
					spec.MainStage().Ports[0].At != 8000 || spec.MainStage().Stdin.Any()) {
					t.Errorf("spec %+v", spec)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			if !strings.Contains(e, tt.err) || tt.err == "" && e != "" {
				t.Errorf("stderr %q, want %q", e, tt.err)
			}
		})
	}
}

// A launch of a service ends when it answers: before, when only its ranks run, it does not, unless it is detached.
func TestLaunchLeavesService(t *testing.T) {
	ready := rendezvous.Progress{Step: rendezvous.StepServes, Text: "the service answers at http://10.0.0.1:8000",
		Service: &launcher.ServiceSeen{State: launcher.ServiceReady, Addr: "10.0.0.1:8000"}}
	code, o, e := cli(t, apptest.Agent(&apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1),
		apptest.Started("a"), apptest.Runs, ready)}, &apptest.FakeCluster{}),
		strings.Fields("launch exec --serve 8000 --health /health -- x")...)
	if code != 0 || !strings.Contains(e, "sparkrun: try it: curl http://10.0.0.1:8000/health\n") || !strings.Contains(e, "answers at http://10.0.0.1:8000\n") || o != "" ||
		!strings.Contains(e, "goes on by itself") {
		t.Errorf("attached: code %d, stdout %q, stderr %q", code, o, e)
	}
	loads := &apptest.FakeRunner{OnLaunch: apptest.GoesOn(apptest.Planned(1), apptest.Started("a"))} // for minutes
	code, o, e = cli(t, apptest.Agent(loads, &apptest.FakeCluster{}),
		strings.Fields("launch -d exec --serve 8000 -- x")...)
	if code != 0 || len(o) < 5 || len(loads.Stops) > 0 ||
		!strings.Contains(e, "`sparkrun ps "+strings.TrimSpace(o)+"` shows how far") {
		t.Errorf("detached: code %d, stdout %q, stderr %q, %d stops", code, o, e, len(loads.Stops))
	}
	refused := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Ended(apptest.Rejected))}
	if code, o, e = cli(t, apptest.Agent(refused, &apptest.FakeCluster{}),
		strings.Fields("launch -d exec --serve 8000 -- x")...); code != 125 || o != "" ||
		!strings.Contains(e, "no rank was started") {
		t.Errorf("refused: code %d, stdout %q, stderr %q", code, o, e)
	}
	both := rendezvous.Progress{Step: rendezvous.StepPlanned,
		Plan: &rendezvous.Plan{World: 2, Nodes: []rendezvous.Place{{Host: "a"}, {Host: "b"}}}}
	half := &apptest.FakeRunner{OnLaunch: apptest.Tells(both, apptest.Started("a"), apptest.Ended(apptest.Failed7))}
	if code, _, e = cli(t, apptest.Agent(half, &apptest.FakeCluster{}),
		strings.Fields("launch -d exec --serve 8000 -- x")...); code != 7 {
		t.Errorf("started on one machine of two: code %d, %s", code, e)
	}
	failed := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Started("a"), apptest.Runs,
		apptest.Ended(apptest.Failed7))}
	if code, _, e := cli(t, apptest.Agent(failed, &apptest.FakeCluster{}), "launch", "exec", "--serve",
		"8000", "--", "x"); code != 7 {
		t.Errorf("what never answered: code %d, %s", code, e)
	}
}

func TestServiceLs(t *testing.T) {
	b := apptest.Agent(&apptest.FakeCluster{Has: apptest.SomeServices()})
	_, got, _ := cli(t, b, "service", "ls")
	want := `JOB    NAME      MODEL   NODES    URL                     STATE     TOKENS/S   REQS   MEMORY         FAILURES      AUTO
aaaa   of-aaaa   m       spark1   http://10.0.0.1:8000    ready     86.5       -      37 of 40 GiB   0 of 3/hour   yes
bbbb   of-bbbb   -       spark1   http://127.0.0.1:8000   wedged    0.0        -      -              0 of 3/hour   no
cccc   of-cccc   -       spark1   http://10.0.0.1:8000    waiting   -          -      -              0 of 3/hour   no
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	_, got, _ = cli(t, b, "service", "ls", "--json")
	apptest.Golden(t, "service-ls.json", got)
}

// counts are what the gateways answer; stuck do not answer.
type counts struct {
	all   wire.GatewayCountsResponse
	stuck bool
}

func (c counts) Calls() []wire.Call {
	return []wire.Call{wire.GatewayCounts.Unary.Serve(func(ctx context.Context, _ wire.Caller,
		r wire.GatewayCountsRequest) (wire.GatewayCountsResponse, error) {
		if c.stuck || r.Within == 0 {
			<-ctx.Done()
			return wire.GatewayCountsResponse{}, ctx.Err()
		}
		return c.all, nil
	})}
}

// The requests for a service's model, of all machines together; a machine that is away costs no more than its count, and
// gateways that do not answer no more than a second.
func TestServiceLsCountsRequests(t *testing.T) {
	of := func(model, key string, underWay, waiting int64) wire.GatewayCount {
		return wire.GatewayCount{Model: model, Key: key, Requests: 10 * underWay, Errors: 1, UnderWay: underWay, Waiting: waiting,
			TokensOut: 100, FirstByte: wire.GatewayFirstByte{Count: 2, Sum: time.Second}}
	}
	all := wire.GatewayCountsResponse{Nodes: []wire.NodeGatewayCounts{
		{Host: "spark1", Counts: []wire.GatewayCount{of("m", "ada", 3, 0), of("m", "bob", 1, 0), of("other", "ada", 7, 0),
			of("of-cccc", "", 4, 3)}},
		{Host: "spark2", Counts: []wire.GatewayCount{of("m", "ada", 2, 0)}},
		{Host: "spark3", Error: "spark3 is away"},
	}}
	services := &apptest.FakeCluster{Has: apptest.SomeServices()}
	reqs := func(c counts) (out []string) {
		_, got, errs := cli(t, apptest.Agent(services, c), "service", "ls")
		at := strings.Index(got, "REQS")
		for line := range strings.Lines(got) {
			out = append(out, strings.TrimSpace(strings.Split(line[at:], "   ")[0]))
		}
		if errs != "sparkrun: of-cccc: spark1 does not answer\n" {
			t.Errorf("stderr %q", errs)
		}
		return out[1:]
	}
	if d := cmp.Diff([]string{"6", "0", "4 (3 wait)"}, reqs(counts{all: all})); d != "" {
		t.Error(d)
	}
	began := time.Now()
	if d := cmp.Diff([]string{"-", "-", "-"}, reqs(counts{stuck: true})); d != "" || time.Since(began) > 5*time.Second {
		t.Error(d, time.Since(began))
	}
	if d := cmp.Diff([]string{"-", "-", "-"}, reqs(counts{all: wire.GatewayCountsResponse{Nodes: all.Nodes[2:]}})); d != "" {
		t.Error(d)
	}
	_, got, _ := cli(t, apptest.Agent(services, counts{all: all}), "service", "ls", "--json")
	const want = `"gateway":{"requests":60,"errors":3,"under_way":6,"waiting":0,"first_byte":{"count":6,"sum":3000000000},` +
		`"tokens_in":0,"tokens_out":300,"missing":["spark3"]}`
	if !strings.Contains(strings.Join(strings.Fields(got), ""), want) {
		t.Errorf("%s lacks %s", got, want)
	}
}

// What is wrong with a service is told in the list, with what to do; one that has failed stays
// in it until it is launched again.
func TestServiceLsTellsTrouble(t *testing.T) {
	now := time.Now()
	base := apptest.SomeServices().Jobs
	base = base[len(base)-3:]
	away, cut, failed, again, old, stopped := base[0], base[0], base[0], base[2], base[0], base[0]
	for _, j := range []*rendezvous.JobStatus{&away, &cut, &failed, &again, &old, &stopped} {
		v := *j.Spec.Service
		j.Spec.Service, j.Planned = &v, now.Add(-time.Hour)
		j.Plan.Nodes = append(slices.Clone(j.Plan.Nodes), rendezvous.Place{Host: "spark2", Ranks: 1})
	}
	ended := func(j *rendezvous.JobStatus, name string, end rendezvous.End, ago time.Duration) {
		started := now.Add(-ago - time.Hour)
		j.Spec.Name, j.State, j.Service = name, rendezvous.State(end), nil
		j.Outcome = &rendezvous.Outcome{End: end, At: now.Add(-ago), Started: &started, ExitCode: 137,
			Cause: "rank 0 on spark1: killed by SIGKILL (9) (1 restart in 1h used up)"}
	}
	away.Away, away.AwaySince = []string{"spark2"}, map[string]time.Time{"spark2": now.Add(-89 * time.Second)}
	cut.Spec.Name, cut.FabricOnly = "cut", []string{"spark1"}
	ended(&failed, "failed", rendezvous.Failed, 3*time.Minute)
	ended(&old, "of-cccc", rendezvous.Failed, 3*time.Minute) // launched again since
	old.Planned = now.Add(-2 * time.Hour)
	ended(&stopped, "stopped", rendezvous.Stopped, 3*time.Minute)
	at := now.Add(9 * time.Second)
	again.State, again.Waits, again.AgainAt = rendezvous.StateAgain, "", &at
	jobs := wire.JobsResponse{Jobs: []rendezvous.JobStatus{old, stopped, failed, away, cut, again}}
	_, got, e := cli(t, apptest.Agent(&apptest.FakeCluster{Has: jobs}), "service", "ls")
	var states []string
	for line := range strings.Lines(got) {
		_, rest, _ := strings.Cut(strings.ReplaceAll(line, "spark1,spark2", "spark12"), "spark12")
		states = append(states, strings.Join(strings.Fields(rest), " "))
	}
	want := []string{"", "- failed 3m ago - - - of 40 GiB 0 of 3/hour yes",
		"http://10.0.0.1:8000 ready (spark2 away 89s) 86.5 - 37 of 40 GiB 0 of 3/hour yes",
		"http://10.0.0.1:8000 ready (spark1 by fabric only) 86.5 - 37 of 40 GiB 0 of 3/hour yes",
		"http://10.0.0.1:8000 restarting in 9s - - - 0 of 3/hour no"}
	if d := cmp.Diff(want, states); d != "" {
		t.Error(d, got)
	}
	notes := `sparkrun: failed: rank 0 on spark1: killed by SIGKILL (9) (1 restart in 1h used up); ` + "`sparkrun ps aaaa`" + ` tells more; to start it again launch it as before
sparkrun: of-aaaa: spark2 has not answered for 89s: if it is off for good, ` + "`sudo sparkrun mark-dead spark2`" + ` starts it elsewhere
sparkrun: cut: spark1 is reached over the fabric only: on the management network its URL answers nobody, see ` + "`sparkrun status`" + `
`
	if d := cmp.Diff(notes, e); d != "" {
		t.Error(d)
	}
	for want, j := range map[string]rendezvous.JobStatus{
		"  spark2 has not answered for 89s: if it is off for good, `sudo sparkrun mark-dead spark2` starts it elsewhere\n":    away,
		"  spark1 is reached over the fabric only: on the management network its URL answers nobody, see `sparkrun status`\n": cut,
		"  serves at http://10.0.0.1:8000: restarting in 9s\n":                                                                again,
		"  has failed 0 of 3/hour, and comes back after a power cut\n":                                                        away,
	} {
		_, text, _ := psOne(t, j)
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	failed.Faults = []time.Time{now.Add(-5 * time.Minute), now.Add(-5 * time.Minute), now.Add(-4 * time.Minute)}
	if _, text, _ := psOne(t, failed); !strings.Contains(text, "launch it as before") ||
		!strings.Contains(text, "1 restart in 1h used up") {
		t.Errorf("of one that has failed:\n%s", text)
	}
}

func TestPsService(t *testing.T) {
	b := apptest.Agent(&apptest.FakeRunner{}, &apptest.FakeCluster{Has: apptest.SomeServices()})
	_, got, _ := cli(t, b, "ps")
	for line := range strings.Lines(got) {
		if n := len(strings.Fields(strings.ReplaceAll(line, " (spark2 away)", ""))); n != 9 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	_, got, _ = cli(t, b, "ps", "of-bbbb")
	for _, want := range []string{"  serves at http://127.0.0.1:8000: wedged for ",
		": 3 requests are running, and no token has come for 50s; 0.0 tokens/s, requests: 3\n",
		"  has failed 0 of 3/hour; does not come back after a power cut (sparkrun service enable)\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
}

func TestServiceEnable(t *testing.T) {
	c := &apptest.FakeCluster{OnlyOn: "spark1"}
	code, o, e := cli(t, apptest.Agent(c), "service", "enable", "a", "b")
	if code != 0 || o != "ak3x comes back after a power cut\nbk3x comes back after a power cut\n" ||
		!strings.Contains(e, "spark1") {
		t.Errorf("code %d, stdout %q, stderr %q", code, o, e)
	}
	code, o, _ = cli(t, apptest.Agent(c), "service", "disable", "a")
	if code != 0 || !strings.HasPrefix(o, "ak3x does not come back") {
		t.Errorf("code %d, stdout %q", code, o)
	}
	want := []any{wire.ServiceRequest{Job: "a", Autostart: true}, wire.ServiceRequest{Job: "b", Autostart: true},
		wire.ServiceRequest{Job: "a"}}
	if d := cmp.Diff(want, c.Requests); d != "" {
		t.Error(d)
	}
	if code, _, e := cli(t, apptest.Agent(&apptest.FakeCluster{Err: rendezvous.ErrNoService}), "service",
		"enable", "a"); code != 1 || !strings.Contains(e, "it is not a service") {
		t.Errorf("code %d, stderr %q", code, e)
	}
	if code, _, _ := cli(t, apptest.Agent(c), "service", "enable"); code != 2 {
		t.Errorf("no job: code %d", code)
	}
}

// A service takes an agent: nobody is sent to --standalone with one.
func TestHintWithoutAgent(t *testing.T) {
	for line, want := range map[string]bool{"launch exec": true, "launch torchrun": true, "launch vllm": false,
		"launch trtllm": false, "run": false, "ps": false} {
		cmd, _, err := newRootCmd(&app.App{}).Find(strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		if got := hint(cmd, node.ErrNoAgent); strings.Contains(got, "--standalone") != want ||
			!strings.Contains(got, "sparkrun login HOST") {
			t.Errorf("%s: %s", line, got)
		}
	}
}

// psOne tells all about one job.
func psOne(t *testing.T, j rendezvous.JobStatus) (code int, out, err string) {
	t.Helper()
	b := apptest.Agent(&apptest.FakeRunner{}, &apptest.FakeCluster{Has: wire.JobsResponse{Jobs: []rendezvous.JobStatus{j}}})
	return cli(t, b, "ps", string(j.Spec.ID))
}
