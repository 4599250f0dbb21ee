package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nettest/ibtest"
)

// ibPlanOf is the plan of a pair, as the ranks get it.
func ibPlanOf(t *testing.T) ibtest.Plan {
	t.Helper()
	var views []envgen.NodeView
	for _, n := range pairStatus(t).Nodes {
		views = append(views, envgen.NodeView{ID: string(n.ID), Host: n.Host, Mgmt: n.Addr, Inventory: n.Inventory})
	}
	topo, err := topology.Derive(topology.Observed(views))
	if err != nil {
		t.Fatal(err)
	}
	p, err := ibtest.NewPlan(topo, []string{"spark1", "spark2"}, ibtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ibLines is what the ranks of a pair write, where each lane gives the same.
func ibLines(t *testing.T, gbps, us float64) string {
	t.Helper()
	var b strings.Builder
	for i, s := range ibPlanOf(t).Steps {
		for j := range s.Runs {
			text := fmt.Sprintf(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 65536   9   0.00   %.2f   0.18\n", gbps)
			if !ibtest.IsBandwidth(s.Test) {
				text = fmt.Sprintf(" #bytes        #iterations       t_avg[usec]    tps average\n 2   9   %.2f   5.00\n", us)
			}
			line, err := json.Marshal(ibtest.Line{IBTest: 1, Step: i, Run: j, Out: text, Argv: []string{"ib_" + s.Test}})
			if err != nil {
				t.Fatal(err)
			}
			b.Write(append(line, '\n'))
		}
	}
	return b.String()
}

// ibRun runs one command line whose ranks write what is given; lack are hosts without perftest.
func ibRun(t *testing.T, home, written string, o rendezvous.Outcome, lack []string, line ...string) (code int, shown,
	complaint string, spec launcher.Spec) {
	t.Helper()
	g := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(2), apptest.Started("a"), apptest.Ended(o)),
		OnLogs: apptest.Prints(apptest.Out(0, 0, written))}
	st := pairStatus(t)
	g.OnExplain = func(_ context.Context, r wire.LaunchRequest) (res wire.ExplainResponse, err error) {
		for _, host := range r.Spec.On {
			n := wire.NodePlan{Host: host}
			for _, l := range lack {
				if l == host {
					n.Error = `program "ib_write_bw": not found in PATH (/bin): install it on this node, or name it by its full path`
				}
			}
			res.Nodes = append(res.Nodes, n)
		}
		return res, nil
	}
	b := apptest.Agent(g, &counting{}, apptest.StatusIs(st, nil))
	code, shown, complaint = cliIn(t, b, []string{"PATH=/bin", "XDG_STATE_HOME=" + home}, line...)
	return code, shown, complaint, g.Spec()
}

func TestIBTestVerdict(t *testing.T) {
	home := t.TempDir()
	code, shown, errs, spec := ibRun(t, home, ibLines(t, 98, 1.6), apptest.Completed, nil, "launch", "ib-test",
		"--gate", "0.9")
	if want := "sparkrun: 2 machines, 1 pair joined by 1 cable of 2 lanes in all; 4 steps, about 15s\n"; code != 0 ||
		errs != want {
		t.Errorf("code %d, stderr %q, want %q", code, errs, want)
	}
	want := `ib_write_bw: Gb/s, all lanes of a cable at once
            spark1   spark2
spark1           -    196.0
spark2       196.0        -
ib_write_lat: us, one way, the slower lane
            spark1   spark2
spark1           -     1.60
spark2        1.60        -
spark1 -> spark2: rocep1s0f0 -> rocep1s0f0 98.0 Gb/s, roceP2p1s0f0 -> roceP2p1s0f0 98.0 Gb/s
spark2 -> spark1: rocep1s0f0 -> rocep1s0f0 98.0 Gb/s, roceP2p1s0f0 -> roceP2p1s0f0 98.0 Gb/s
spark1 -> spark2: rocep1s0f0 -> rocep1s0f0 1.60 us, roceP2p1s0f0 -> roceP2p1s0f0 1.60 us
verdict: good: all 3 are; the least, spark1 -> spark2 over port 0 - port 0 took 1.60 us, where a cable should take 1.47
`
	if shown != want {
		t.Errorf("got\n%s\nwant\n%s", shown, want)
	}
	// The job: these machines in this order, its own ports, nothing staged, nobody's input.
	st := spec.MainStage()
	if strings.Join(spec.On, ",") != "spark1,spark2" || !spec.Force || st.Stdin.Any() || len(st.Ports) != 1 ||
		st.Ports[0].Count != 2 ||
		st.MPI.Program != "ib_write_bw" || st.Argv[0].String() != "<sparkrun>" || st.Argv[2].String() != "<port:perftest>" {
		t.Errorf("%+v", spec)
	}
	if _, err := ibtest.ParsePlan(st.Argv[3].String()); err != nil {
		t.Error(err)
	}
	// Again, and slower: the history shows.
	code, shown, errs, _ = ibRun(t, home, ibLines(t, 49, 1.6), apptest.Completed, nil, "launch", "ib-test", "--gate",
		"0.9")
	if code != 1 || !strings.Contains(errs, "--gate 0.9: 0.50 of what is expected was reached") {
		t.Errorf("code %d, stderr %q", code, errs)
	}
	if !strings.Contains(shown, "last time: 196.0 Gb/s at least, 1.60 us at most, good, ") ||
		!strings.HasPrefix(lastLine(shown),
			"verdict: low: spark1 -> spark2 over port 0 - port 0 reached 98.0 Gb/s, 50 % of the 196") {
		t.Errorf("%s", shown)
	}
	if text, err := os.ReadFile(filepath.Join(home, "sparkrun", "ib-test.jsonl")); err != nil ||
		strings.Count(string(text), "\n") != 2 {
		t.Errorf("%v %s", err, text)
	}
}

func TestIBTestFails(t *testing.T) {
	all := ibLines(t, 98, 1.6)
	lines := strings.SplitAfter(all, "\n")
	broken, err := json.Marshal(ibtest.Line{IBTest: 1, Exit: 1, Err: "Couldn't connect to 192.168.100.12:20000"})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		written string
		outcome rendezvous.Outcome
		code    int
		last    string
	}{
		"a lane": {all + string(broken) + "\n", apptest.Completed, 1,
			"verdict: failed: spark1 -> spark2 over port 0 - port 0: rocep1s0f0 -> rocep1s0f0: nothing gets through"},
		"a run is missing": {strings.Join(lines[1:], ""), apptest.Completed, 1,
			"verdict: failed: spark1 -> spark2 over port 0 - port 0: rocep1s0f0 -> rocep1s0f0: perftest gave no result"},
		"cut short by 7": {lines[0], apptest.Failed7, 7, "perftest gave no result; 3 of 3 are failed"},
		"nothing, and 7": {"", apptest.Failed7, 7, ""},
		"a step too many": {`{"ib_test":1,"step":99,"run":0}` + "\n" + `{"ib_test":1,"step":0,"run":-1}` + "\n" + all,
			apptest.Completed, 0, "verdict: good"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, shown, errs, _ := ibRun(t, t.TempDir(), tc.written, tc.outcome, nil, "launch", "ib-test")
			if code != tc.code || !strings.Contains(lastLine(shown), tc.last) {
				t.Errorf("code %d, want %d; stderr %q; last line %q, want %q", code, tc.code, errs, lastLine(shown), tc.last)
			}
		})
	}
}

func TestIBTestJSON(t *testing.T) {
	code, shown, errs, _ := ibRun(t, t.TempDir(), ibLines(t, 98, 1.6), apptest.Completed, nil, "launch", "ib-test",
		"bw", "--json", "--expect", "400")
	var rep struct {
		Verdict struct {
			Grade string
			Part  float64
		}
		Cells []struct{ Gbps float64 }
		Plan  struct{ Nodes []any }
	}
	if err := json.Unmarshal([]byte(shown), &rep); err != nil || code != 0 || rep.Verdict.Grade != "low" ||
		rep.Verdict.Part != 0.49 || len(rep.Cells) != 2 || rep.Cells[0].Gbps != 196 || len(rep.Plan.Nodes) != 2 {
		t.Errorf("code %d, %v: %s %s", code, err, shown, errs)
	}
}

func TestIBTestRefused(t *testing.T) {
	for line, want := range map[string]string{
		"ib-test latency":             `no test "latency": want bw or lat`,
		"ib-test bw lat":              "bw or lat, or neither for both",
		"ib-test --seconds 90":        "want 1 to 60",
		"ib-test --size 2G":           "want 1 byte to 1 GiB",
		"ib-test --iters 5":           "want 100 to 1000000",
		"ib-test --qps 65":            "want 1 to 64",
		"ib-test --verb atomic":       "want write or send or read",
		"ib-test --gate 0":            "such as 0.9",
		"ib-test --expect -3":         "want Gb/s, such as 97",
		"ib-test -d":                  "--detach does not go with ib-test",
		"ib-test --standalone":        "--standalone does not go with ib-test",
		"ib-test --nproc-per-node 2":  "--nproc-per-node does not go with ib-test",
		"ib-test --on spark1":         "a link has two ends, and one machine is chosen",
		"ib-test --on spark1,spark9":  "--on spark9: no machine of that name is ready",
		"ib-test --on spark1,spark1":  "--on spark1: named twice",
		"ib-test --nodes 3":           "--nodes 3: 2 machines are ready",
		"ib-test --exclude spark2":    "one machine is chosen",
		"ib-test --dry-run --nodes 1": "one machine is chosen",
	} {
		code, _, errs, spec := ibRun(t, t.TempDir(), "", apptest.Completed, nil,
			append([]string{"launch"}, strings.Fields(line)...)...)
		if code != 125 || !strings.Contains(errs, want) || spec.ID != "" {
			t.Errorf("%s: code %d, %s", line, code, errs)
		}
	}
	code, _, errs, spec := ibRun(t, t.TempDir(), "", apptest.Completed, []string{"spark1", "spark2"}, "launch", "ib-test")
	if code != 125 || spec.ID != "" ||
		!strings.Contains(errs, "ib_write_bw is not on spark1, spark2: sudo apt install perftest there") {
		t.Errorf("code %d, %s", code, errs)
	}
}

// A dry run starts nothing, and says how long it would take.
func TestIBTestDryRun(t *testing.T) {
	code, shown, errs, spec := ibRun(t, t.TempDir(), "", apptest.Completed, nil, "launch", "ib-test", "lat", "--dry-run")
	if code != 0 || spec.ID != "" || !strings.Contains(errs, "2 steps, about 6s") || !strings.Contains(shown, "spark2") {
		t.Errorf("code %d, stdout %q, stderr %q", code, shown, errs)
	}
}
