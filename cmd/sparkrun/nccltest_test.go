package main

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nettest"
	"github.com/sparkrun/sparkrun/workloads/nettest/nccltest"
)

// pairStatus is a cluster of two Sparks with one cable, by what their agents tell.
func pairStatus(t *testing.T) wire.Status {
	t.Helper()
	st := wire.Status{Cluster: "c1", Self: "spark1", Leader: "spark1", Epoch: 3}
	for i, host := range []string{"spark1", "spark2"} {
		mgmt := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		inv := envgen.Inventory{Host: host,
			NICs: []envgen.NIC{{Name: "enP7s7", MTU: 1500, Up: true, Carrier: new(true), Physical: true,
				Addresses: []netip.Prefix{netip.PrefixFrom(mgmt, 24)}}}}
		for twin, d := range []struct{ hca, nic, pci string }{{"rocep1s0f0", "enp1s0f0np0", "0000:01:00.0"},
			{"roceP2p1s0f0", "enP2p1s0f0np0", "0002:01:00.0"}} {
			pci, err := envgen.ParsePCIAddress(d.pci)
			if err != nil {
				t.Fatal(err)
			}
			ip := netip.AddrFrom4([4]byte{192, 168, byte(100 + twin), byte(11 + i)})
			inv.Devices = append(inv.Devices,
				envgen.HCA{Name: d.hca, PCI: &pci, LinkLayer: envgen.LayerEthernet, Netdev: d.nic, State: envgen.StateActive,
					GIDs: []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Addr: netip.AddrFrom16(ip.As16()), Netdev: d.nic}}})
			inv.NICs = append(inv.NICs,
				envgen.NIC{Name: d.nic, PCI: &pci, PCIVendor: envgen.VendorMellanox, MTU: 9000, SpeedMbps: new(200000), Up: true,
					Carrier: new(true), Physical: true, Addresses: []netip.Prefix{netip.PrefixFrom(ip, 24)}})
		}
		st.Nodes = append(st.Nodes,
			wire.NodeStatus{ID: launcher.NodeID(host), Host: host, Addr: mgmt, State: "ready", Inventory: inv})
	}
	return st
}

// counting tells totals that have risen at each call.
type counting struct{ calls uint64 }

func (c *counting) Calls() []wire.Call { return []wire.Call{wire.Counters.Unary.Serve(c.counters)} }

func (c *counting) counters(context.Context, wire.Caller, wire.Empty) (wire.CountersResponse, error) {
	c.calls++
	var res wire.CountersResponse
	for _, host := range []string{"spark1", "spark2"} {
		res.Nodes = append(res.Nodes,
			wire.NodeCounters{ID: launcher.NodeID(host), Host: host, Totals: map[string]map[string]uint64{
				"rocep1s0f0":   {"port_xmit_data": c.calls << 30, "port_rcv_data": c.calls << 30},
				"roceP2p1s0f0": {"port_xmit_data": c.calls << 30, "port_rcv_data": c.calls << 30},
				"enP7s7":       {"tx_bytes": c.calls * 1000, "rx_bytes": c.calls * 1000},
			}, MemAvailable: 12 << 30})
	}
	return res, nil
}

// ncclTestRun runs one command line whose ranks write what is given.
func ncclTestRun(t *testing.T, home, written string, o rendezvous.Outcome, line ...string) (code int, shown,
	complaint string, spec launcher.Spec) {
	t.Helper()
	return ncclTestOn(t, nil, home, written, o, line...)
}

// ncclTestOn does so where the machines have what is told: by program, and by host the
// MPI that it is for.
func ncclTestOn(t *testing.T, has map[string]map[string]launcher.MPIFamily, home, written string, o rendezvous.Outcome,
	line ...string) (code int, shown, complaint string, spec launcher.Spec) {
	t.Helper()
	g := &apptest.FakeRunner{OnLaunch: apptest.Tells(plannedOn("spark1", "spark2"), apptest.Started("a"),
		apptest.Ended(o)), OnLogs: apptest.Prints(apptest.Out(0, 0, written))}
	st := pairStatus(t)
	b := apptest.Agent(g, &counting{}, apptest.StatusIs(st, nil))
	g.OnExplain = func(_ context.Context, r wire.LaunchRequest) (res wire.ExplainResponse, err error) {
		if r.Spec.Wait || !r.Spec.Share {
			t.Error("a question takes GPUs")
		}
		for _, host := range []string{"spark1", "spark2"} {
			n := wire.NodePlan{Host: host}
			if family := has[r.Spec.MainStage().MPI.Program][host]; family != "" {
				n.Ranks = []launcher.RankPlan{{MPI: family}}
			} else {
				n.Error = "it is not found"
			}
			res.Nodes = append(res.Nodes, n)
		}
		return res, nil
	}
	code, shown, complaint = cliIn(t, b,
		[]string{"PATH=/bin", "HOME=/home/ada", "NCCL_TESTS_HOME=/opt/nt", "XDG_STATE_HOME=" + home}, line...)
	return code, shown, complaint, g.Spec()
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return lines[len(lines)-1]
}

func TestNCCLTestVerdict(t *testing.T) {
	home := t.TempDir()
	code, out, errs, spec := ncclTestRun(t, home, apptest.SweepGood, apptest.Completed, "launch", "nccl-test", "--max",
		"4G", "--gate", "0.9")
	if code != 0 || errs != "" {
		t.Errorf("code %d, stderr %q", code, errs)
	}
	if want := "verdict: good: all_gather reached 22.97 GB/s with 4 GiB messages, 96 % of the 23.97 that one cable between two nodes should give; every element was right"; lastLine(out) != want {
		t.Errorf("the last line is\n%s\nwant\n%s", lastLine(out), want)
	}
	for _, want := range []string{"all_gather by torch 2.11.0, NCCL 2.28.9, on spark1, spark2 (NVIDIA GB10)",
		"512 MiB", "23.04 GB/s", "█", "sent most: spark1 "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	if spec.Workload != "nccl-test" || spec.Nodes != 2 || spec.MainStage().Stdin.Any() {
		t.Errorf("all ready machines are wanted, and nobody reads: %+v", spec)
	}
	// Again, and slower: the history shows.
	slow := strings.NewReplacer("46.083   23.041", "26.000   13.000", "45.935   22.968",
		"25.000   12.500").Replace(apptest.SweepGood)
	code, out, errs, _ = ncclTestRun(t, home, slow, apptest.Completed, "launch", "nccl-test", "--gate", "0.9", "--svg",
		filepath.Join(home, "curve.svg"))
	if code != 1 || !strings.Contains(errs, "--gate 0.9: 0.52 of what is expected was reached") {
		t.Errorf("code %d, stderr %q", code, errs)
	}
	if !strings.Contains(out, "last time: 22.97 GB/s") || !strings.Contains(out, "(-45.6 %)") ||
		!strings.HasPrefix(lastLine(out), "verdict: low: ") {
		t.Errorf("%s", out)
	}
	if svg, err := os.ReadFile(filepath.Join(home, "curve.svg")); err != nil ||
		!strings.HasPrefix(string(svg), "<svg ") || strings.Count(string(svg), "<circle") != 2 {
		t.Errorf("the picture: %v %s", err, svg)
	}
}

func TestNCCLTestFails(t *testing.T) {
	wrong := strings.Replace(apptest.SweepGood, "22.968       0", "22.968       7", 1)
	cut := apptest.SweepGood[:strings.Index(apptest.SweepGood, "# Out of bounds")]
	tests := map[string]struct {
		written string
		outcome rendezvous.Outcome
		code    int
		last    string
		err     string
	}{
		"wrong elements":   {wrong, apptest.Completed, 1, "verdict: failed: 7 elements of 4 GiB messages are wrong", ""},
		"cut short":        {cut, apptest.Completed, 1, "verdict: failed: the test did not come to its end", ""},
		"a rank's failure": {cut, apptest.Failed7, 7, "verdict: failed: the test did not come to its end", "exit 7"},
		"nothing written":  {"", apptest.Completed, 1, "verdict: failed: the test gave no result", ""},
		"no torch": {"sparkrun sweep: /usr/bin/python3 cannot import torch: No module named 'torch'\n",
			apptest.Failed7, 7, "verdict: failed: torch cannot be imported on spark1", "exit 7"},
		"nothing, and 7": {"", apptest.Failed7, 7, "verdict: failed: the test gave no result", "exit 7"},
		"no way through": {noPath, apptest.Failed7, 7,
			"verdict: failed: the test gave no result: NCCL met errors on the way", "exit 7"},
		"refused": {"", apptest.Rejected, 125, "", "not found"},
		"stopped": {"", apptest.Stopped, 143, "", "stopped"},
		"stopped after rows": {cut, apptest.Stopped, 143,
			"verdict: stopped: by you; the rows are what it measured until then", "stopped"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, errs, _ := ncclTestRun(t, t.TempDir(), tc.written, tc.outcome, "launch", "nccl-test")
			if code != tc.code || lastLine(out) != tc.last || !strings.Contains(errs, tc.err) {
				t.Errorf("code %d, want %d; stderr %q; last line %q, want %q", code, tc.code, errs, lastLine(out), tc.last)
			}
		})
	}
}

// Without PyTorch a script reads why, too.
func TestNCCLTestWithoutTorchInJSON(t *testing.T) {
	_, out, _, _ := ncclTestRun(t, t.TempDir(),
		"sparkrun sweep: /usr/bin/python3 cannot import torch: No module named 'torch'\n", apptest.Failed7, "launch",
		"nccl-test", "--json")
	var rep struct{ Verdict nccltest.Verdict }
	if err := json.Unmarshal([]byte(out), &rep); err != nil || rep.Verdict.Grade != nettest.Failed ||
		rep.Verdict.Cause == nil || rep.Verdict.Cause.Code != nccltest.CauseNoTorch ||
		!strings.Contains(rep.Verdict.Cause.Remedy, "--python") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestNCCLTestReads(t *testing.T) {
	file := "../../workloads/nettest/nccltest/testdata/2.18.5-gb10.txt"
	code, out, errs, spec := ncclTestRun(t, t.TempDir(), "", apptest.Completed, "launch", "nccl-test", "--read", file,
		"--json")
	var rep struct {
		Verdict struct {
			Grade string  `json:"grade"`
			Part  float64 `json:"part"`
		} `json:"verdict"`
	}
	if err := json.Unmarshal([]byte(out), &rep); err != nil || code != 0 || rep.Verdict.Grade != "good" ||
		rep.Verdict.Part < 0.95 {
		t.Errorf("code %d, %v: %s %s", code, err, out, errs)
	}
	if spec.ID != "" {
		t.Error("--read launched something")
	}
	if _, out, _, _ := ncclTestRun(t, t.TempDir(), "", apptest.Completed, "launch", "nccl-test", "--read",
		file); !strings.HasPrefix(out,
		"judged by the cluster's links as they are now, and not as they were when it was measured\n") {
		t.Errorf("it does not say by what it was evaluated: %s", out)
	}
	if code, _, errs, _ := ncclTestRun(t, t.TempDir(), "", apptest.Completed, "launch", "nccl-test", "--read",
		"network/nccltest.go"); code != 125 || !strings.Contains(errs, "no table of nccl-tests in it") {
		t.Errorf("code %d: %s", code, errs)
	}
}

func TestNCCLTestRefused(t *testing.T) {
	for line, want := range map[string]string{
		"nccl-test all_gahter":                    `no operation "all_gahter": did you mean all_gather?`,
		"nccl-test all_gather all_reduce":         "one operation at a time",
		"nccl-test --min 1G --max 1M":             "--min 1G is above --max 1M",
		"nccl-test --max 100G":                    "want 4K to 64G",
		"nccl-test --gate 0":                      "such as 0.9",
		"nccl-test -d":                            "--detach does not go with nccl-test",
		"nccl-test --via torch --nccl-tests /opt": "give one of them",
		"nccl-test --via torch --mpi openmpi":     "--mpi and --mpirun are for nccl-tests",
		"nccl-test --via torch --mpirun /x":       "--mpi and --mpirun are for nccl-tests",
		"nccl-test --via nccl-tests --python x":   "give one of them",
		"nccl-test --via mpi":                     "want auto or nccl-tests or torch",
		"nccl-test --json --svg -":                "both would go to standard output",
	} {
		code, _, errs, spec := ncclTestRun(t, t.TempDir(), apptest.SweepGood, apptest.Completed,
			append([]string{"launch"}, strings.Fields(line)...)...)
		if code != 125 || !strings.Contains(errs, want) || spec.ID != "" {
			t.Errorf("%s: code %d, %s", line, code, errs)
		}
	}
}

const testsGood = `# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007
# Collective test starting: all_gather_perf
# Using devices
#  Rank  0 Group  0 Pid  37755 on spark1 device  0 [000f:01:00] NVIDIA GB10
#  Rank  1 Group  0 Pid  37756 on spark2 device  0 [000f:01:00] NVIDIA GB10
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
  2147483648     268435456     float    none      -1    46700   45.98   22.99       0    46650   46.03   23.02       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 23.005
`

func TestNCCLTestByNCCLTests(t *testing.T) {
	const built = "/home/ada/.local/share/sparkrun/nccl-tests/all_gather_perf"
	both := func(f launcher.MPIFamily) map[string]launcher.MPIFamily {
		return map[string]launcher.MPIFamily{"spark1": f, "spark2": f}
	}
	home := t.TempDir()
	has := map[string]map[string]launcher.MPIFamily{built: both(launcher.OpenMPI), "all_gather_perf": both(launcher.MPICH)}
	code, out, errs, spec := ncclTestOn(t, has, home, testsGood, apptest.Completed, "launch", "nccl-test")
	if code != 0 || !strings.HasPrefix(out,
		"all_gather by nccl-tests 2.19.6 ("+built+"), NCCL 2.30.7, on spark1, spark2") ||
		!strings.HasPrefix(lastLine(out), "verdict: good: ") {
		t.Errorf("code %d, stderr %q\n%s", code, errs, out)
	}
	// 12 GiB are free: three buffers of 2 GiB are half of them.
	if want := "sparkrun: the largest message is lowered to 2 GiB: spark1 has 12 GiB free, of which the test's three buffers may take half\n"; errs != want {
		t.Errorf("stderr %q, want %q", errs, want)
	}
	var argv []string
	for _, v := range spec.MainStage().Argv {
		argv = append(argv, v.String())
	}
	if got, want := strings.Join(argv[len(argv)-15:], " "),
		built+" -b 8388608 -e 2147483648 -f 2 -g 1 -c 1 -n 20 -w 2"; got != want {
		t.Errorf("runs %s, want %s", got, want)
	}
	if m := spec.MainStage().MPI; spec.Workload != "nccl-test" || spec.Nodes != 2 || spec.GPUs != launcher.AnyGPUs ||
		m == nil || m.Family != launcher.OpenMPI || m.Forced {
		t.Errorf("%+v", spec)
	}
	env := map[string]string{}
	for _, v := range spec.MainStage().Env {
		env[v.Name] = v.Value.String()
	}
	if env["NCCL_DEBUG"] != "INFO" || env["LD_LIBRARY_PATH"] != "/home/ada/.local/share/sparkrun/nccl-tests/lib" ||
		env["RANK"] != "" {
		t.Errorf("%v", env)
	}
	history, err := os.ReadFile(filepath.Join(home, "sparkrun", "nccl-test.jsonl"))
	if err != nil || !strings.Contains(string(history),
		`"tool":"nccl-tests","version":"2.19.6","program":"`+built+`","nccl":"2.30.7"`) {
		t.Errorf("history %s: %v", history, err)
	}
}

func TestNCCLTestChooses(t *testing.T) {
	one := func(host string, f launcher.MPIFamily) map[string]launcher.MPIFamily {
		return map[string]launcher.MPIFamily{host: f}
	}
	mixed := map[string]launcher.MPIFamily{"spark1": launcher.MPICH, "spark2": launcher.OpenMPI}
	both := map[string]launcher.MPIFamily{"spark1": launcher.MPICH, "spark2": launcher.MPICH}
	type has = map[string]map[string]launcher.MPIFamily
	tests := map[string]struct {
		has  has
		line string
		runs string // the MPI program; "-": nothing; empty: torch
		says string
	}{
		"nothing": {nil, "", "", ""},
		"nothing, asked": {nil, "--via nccl-tests", "-",
			"nowhere to be started:\n  spark1: it is not found\n`sparkrun nccl-test build SRC`"},
		"by $NCCL_TESTS_HOME": {has{"/opt/nt/build/all_gather_perf": both}, "", "/opt/nt/build/all_gather_perf", ""},
		"with a suffix":       {has{"all_gather_perf_mpi": both}, "", "all_gather_perf_mpi", ""},
		"one has it": {has{"all_gather_perf": one("spark2", launcher.MPICH)}, "", "",
			"all_gather_perf is on spark2, and not on all: spark1: it is not found: torch measures"},
		"one has it, asked": {has{"all_gather_perf": one("spark2", launcher.MPICH)}, "--via nccl-tests", "-",
			"all_gather_perf is on spark2, and not on all: spark1: it is not found"},
		"two MPIs": {has{"all_gather_perf": mixed}, "--via nccl-tests", "-",
			"for Open MPI on spark2, and for MPICH's family on spark1"},
		"one here, all there": {has{"/opt/nt/build/all_gather_perf": one("spark1", launcher.MPICH),
			"all_gather_perf": both}, "", "all_gather_perf", ""},
		"in a named folder": {has{"/a/all_reduce_perf": both, "all_reduce_perf": both}, "--nccl-tests /a all_reduce",
			"/a/all_reduce_perf", ""},
		"in this folder": {has{"./all_reduce_perf": both, "all_reduce_perf": both}, "--nccl-tests . all_reduce",
			"./all_reduce_perf", ""},
		"torch":          {has{"all_gather_perf": both}, "--via torch", "", ""},
		"an interpreter": {has{"all_gather_perf": both}, "--python python3.12", "", ""},
		"no room": {has{"all_gather_perf": both}, "--min 4G", "-",
			"messages of 4 GiB and more are not safe: spark1 has 12 GiB free"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, _, errs, spec := ncclTestOn(t, tc.has, t.TempDir(), testsGood, apptest.Completed,
				append([]string{"launch", "nccl-test"}, strings.Fields(tc.line)...)...)
			runs := ""
			switch {
			case spec.ID == "":
				runs = "-"
			case spec.MainStage().MPI != nil:
				runs = spec.MainStage().MPI.Program
			}
			if runs != tc.runs || (code == 0) != (tc.runs != "-") || !strings.Contains(errs, tc.says) ||
				tc.says == "" && strings.Contains(errs, "torch") {
				t.Errorf("code %d, runs %q, want %q: %s", code, runs, tc.runs, errs)
			}
		})
	}
}

// What a test came to is told by status; one that says nothing of the links is not kept.
func TestStatusTellsTheLastTest(t *testing.T) {
	for name, tc := range map[string]struct {
		written string
		outcome rendezvous.Outcome
		want    string // empty: nothing is told
	}{
		"good": {apptest.SweepGood, apptest.Completed,
			"on spark1, spark2: all_gather 22.97 GB/s, 0.96 of what is expected: good"},
		"failed":  {strings.Replace(apptest.SweepGood, "22.968       0", "22.968       7", 1), apptest.Completed, ": failed"},
		"stopped": {apptest.SweepGood[:strings.Index(apptest.SweepGood, "# Out of bounds")], apptest.Stopped, ""},
		"crashed": {"", apptest.Failed7, ""},
	} {
		t.Run(name, func(t *testing.T) {
			home, st := t.TempDir(), pairStatus(t)
			ncclTestOn(t, nil, home, tc.written, tc.outcome, "launch", "nccl-test")
			b := apptest.Agent(&apptest.FakeCluster{OnStatus: func(wire.StatusRequest) (wire.Status,
				error) {
				return st, nil
			}})
			_, shown, errs := cliIn(t, b, []string{"HOME=" + home, "XDG_STATE_HOME=" + home}, "status")
			last := lastLine(shown)
			if told := strings.HasPrefix(last, "your last nccl-test, "); told != (tc.want != "") ||
				!strings.HasSuffix(last, tc.want) {
				t.Errorf("status: %s%s, want %q", shown, errs, tc.want)
			}
		})
	}
}

func TestGateFlag(t *testing.T) {
	for line, want := range map[string]string{
		"nccl-test --gate x": "above 0 and up to 1, such as 0.9",
		"nccl-test --gate 2": "above 0 and up to 1, such as 0.9",
		"ib-test --gate 0":   "above 0 and up to 1, such as 0.9",
	} {
		if code, _, errs := cli(t, apptest.Agent(&apptest.FakeCluster{}),
			append([]string{"launch"}, strings.Fields(line)...)...); code != 125 || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d: %s", line, code, errs)
		}
	}
}

// A machine that is not there is told before anything is built.
func TestNCCLTestBuildKnowsItsMachines(t *testing.T) {
	src := t.TempDir()
	if err := os.MkdirAll(filepath.Join(src, "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "src", "common.cu"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, line := range [][]string{{"--to", "spark1,nohost"}, {"--on", "nohost"}} {
		code, _, errs, spec := ncclTestRun(t, t.TempDir(), "", apptest.Completed,
			append([]string{"nccl-test", "build", src}, line...)...)
		if code == 0 || !strings.Contains(errs, line[0]+" nohost: no machine of that name is ready") || spec.ID != "" {
			t.Errorf("%v: code %d, %s", line, code, errs)
		}
	}
}
