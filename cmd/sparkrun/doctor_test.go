package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

var (
	mtuLow = envgen.Finding{Code: "mtu-low", Severity: envgen.SeverityWarning, Node: "2", Host: "spark2",
		Port: "01:00.0", Device: "enp1s0f0np0",
		Text: "enp1s0f0np0 has MTU 1500", Evidence: "enp1s0f0np0 mtu 1500",
		Remedy: "sudo ip link set dev enp1s0f0np0 mtu 9000"}
	islands = envgen.Finding{Code: "islands", Severity: envgen.SeverityError,
		Text:     "the fabric joins some nodes only\x1b[2J",
		Evidence: "spark1 | spark2", Remedy: "sparkrun fabric --map"}
)

func clock(host string) envgen.Finding {
	return envgen.Finding{Code: "clock-unsynchronised", Severity: envgen.SeverityWarning, Node: "id-" + host, Host: host,
		Text: "nothing keeps the clock of " + host, Evidence: "the kernel says so", Remedy: "sudo timedatectl set-ntp true"}
}

func TestDoctorTells(t *testing.T) {
	two := []wire.DoctorNode{{Host: "spark1"}, {Host: "spark2"}}
	tests := map[string]struct {
		line string
		res  wire.DoctorResponse
		code int
		out  string
	}{
		"all is well": {"doctor", wire.DoctorResponse{Nodes: two}, 0, "0 errors, 0 warnings, 0 notes on 2 machines\n"},
		"a warning": {"doctor", wire.DoctorResponse{Nodes: two, Findings: []envgen.Finding{mtuLow}}, 0, `WARNINGS
  mtu-low  spark2 01:00.0 enp1s0f0np0
    enp1s0f0np0 has MTU 1500
    seen: enp1s0f0np0 mtu 1500
    on spark2: sudo ip link set dev enp1s0f0np0 mtu 9000

0 errors, 1 warning, 0 notes on 2 machines
`},
		"the same on several": {"doctor", wire.DoctorResponse{Nodes: two, Findings: []envgen.Finding{clock("spark1"),
			mtuLow, clock("spark2"), clock("spark3")}}, 0, `WARNINGS
  clock-unsynchronised  spark1, spark2, spark3
    nothing keeps the clock of spark1, spark2, spark3
    seen: the kernel says so
    on spark1, spark2, spark3: sudo timedatectl set-ntp true
  mtu-low  spark2 01:00.0 enp1s0f0np0
    enp1s0f0np0 has MTU 1500
    seen: enp1s0f0np0 mtu 1500
    on spark2: sudo ip link set dev enp1s0f0np0 mtu 9000

0 errors, 4 warnings, 0 notes on 2 machines
`},
		"errors alone": {"doctor -q", wire.DoctorResponse{Nodes: two, Findings: []envgen.Finding{islands, mtuLow}}, 1, `ERRORS
  islands  cluster
    the fabric joins some nodes only?[2J
    seen: spark1 | spark2
    on any machine: sparkrun fabric --map

`},
		"mended": {"doctor --fix", wire.DoctorResponse{Nodes: two, Mended: []wire.Mended{
			{Host: "spark1", Command: "ip link set dev x up"},
			{Host: "spark2", Command: "ip link set dev y mtu 9000", Error: "it may carry management"},
		}}, 0, `spark1: ip link set dev x up (done)
spark2: ip link set dev y mtu 9000 (not done: it may carry management)

0 errors, 0 warnings, 0 notes on 2 machines
`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, e := cli(t, apptest.Agent(&apptest.FakeCluster{Finds: tc.res}), strings.Fields(tc.line)...)
			if code != tc.code || e != "" {
				t.Errorf("exit code %d, want %d; stderr %q", code, tc.code, e)
			}
			if diff := cmp.Diff(tc.out, out); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Where --fix finds nothing that it mends, it says so.
func TestDoctorMendsNothing(t *testing.T) {
	for line, want := range map[string]string{
		"doctor --fix": "sparkrun: --fix: found nothing that it mends, and has changed nothing\n", "doctor": "",
	} {
		res := wire.DoctorResponse{Findings: []envgen.Finding{mtuLow}}
		if code, _, e := cli(t, apptest.Agent(&apptest.FakeCluster{Finds: res}), strings.Fields(line)...); code != 0 || e != want {
			t.Errorf("%s: code %d, %q, want %q", line, code, e, want)
		}
	}
}

func TestDoctorAsks(t *testing.T) {
	c := &apptest.FakeCluster{Finds: wire.DoctorResponse{Self: "spark1", Findings: []envgen.Finding{islands}}}
	code, out, _ := cli(t, apptest.Agent(c), "doctor", "--node", "spark2", "--fix", "--json")
	r, ok := c.Requests[0].(wire.DoctorRequest)
	if !ok || r.Node != "spark2" || !r.Fix || r.Ask.Path != "/bin" {
		t.Errorf("asked %+v", c.Requests)
	}
	var got wire.DoctorResponse
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 1 || got.Self != "spark1" ||
		len(got.Findings) != 1 {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
}

// Without an agent there is nobody to mend anything; and what fails for another
// reason is not taken for it.
func TestDoctorFails(t *testing.T) {
	for err, line := range map[error]string{node.ErrNoAgent: "doctor --fix", errors.New("broken"): "doctor"} {
		if code, out, e := cli(t, apptest.Agent(&apptest.FakeCluster{Err: err}),
			strings.Fields(line)...); code != 1 || out != "" || e == "" {
			t.Errorf("%s with %v: exit code %d, stdout %q, stderr %q", line, err, code, out, e)
		}
	}
}

func TestDoctorLoadTells(t *testing.T) {
	spark := func(host string, flops, mhz float64) doctor.Load {
		return doctor.Load{Host: host, Via: "torch 2.13.0", Kind: "bf16", Flops: flops, Read: 2.3e11,
			GPU: &doctor.GPU{Name: "NVIDIA GB10", MHz: &mhz, Watts: new(92.5)}}
	}
	loads := []doctor.Load{spark("spark1", 91.6e12, 2281), spark("spark2", 36.5e12, 799),
		{Host: "spark3", Via: "processors", Kind: "fp64", Flops: 1e11, Read: 9e10, Trouble: "by driver: libcuda.so.1\x1b[2J"},
		{Host: "spark4", Error: "job k3x has ranks there"}}
	c := &apptest.FakeCluster{Loads: wire.LoadResponse{Nodes: loads, Findings: doctor.Judge(loads)}}
	code, out, said := cli(t, apptest.Agent(c), "doctor", "--load", "20s", "--node", "spark2")
	if r, ok := c.Requests[0].(wire.LoadRequest); !ok || r.For != 20*time.Second || r.Node != "spark2" || r.Path != "/bin" {
		t.Errorf("asked %+v", c.Requests)
	}
	want := `HOST     LOADED        BY             TFLOP/S     READS GB/S   CLOCK      POWER   HEAT
spark1   NVIDIA GB10   torch 2.13.0   91.6 bf16   230          2281 MHz   92 W    -
spark2   NVIDIA GB10   torch 2.13.0   36.5 bf16   230          799 MHz    92 W    -
spark3   processors    processors     0.1 fp64    90           -          -       -
spark4   -             -              -           -            -          -       -

WARNINGS
  gpu-clock  spark2
`
	if code != 1 || !strings.HasPrefix(out, want) || !strings.HasSuffix(out, "0 errors, 2 warnings, 0 notes on 4 machines by this load alone; "+
		"without --load doctor looks for all else\n") {
		t.Errorf("exit code %d: %s", code, cmp.Diff(want, out))
	}
	for _, text := range []string{"loading spark2 for 20s\n", "spark4 was not loaded: job k3x has ranks there\n",
		"no GPU of spark3 was loaded, only its processors: by driver: libcuda.so.1"} {
		if !strings.Contains(said, text) || strings.Contains(said, "\x1b") {
			t.Errorf("no %q in %q", text, said)
		}
	}
	c.Loads.Nodes = loads[:2]
	code, out, _ = cli(t, apptest.Agent(c), "doctor", "--load", "20", "--json")
	var got wire.LoadResponse
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || cmp.Diff(c.Loads, got) != "" {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
}

// What makes no sense is refused before anybody is asked.
func TestDoctorLoadRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"doctor --load 0s":          "want 5s to 2m",
		"doctor --load 0":           "want 5s to 2m",
		"doctor --load 1h":          "want 5s to 2m",
		"doctor --load -5s":         "no less than 0",
		"doctor --load soon":        "want a time",
		"doctor --load 20s --fix":   "leave --fix out",
		"doctor --load 20s spark2":  "",
		"doctor --load 99999999999": "",
	} {
		c := &apptest.FakeCluster{}
		if code, out, said := cli(t, apptest.Agent(c), strings.Fields(line)...); code != 2 || out != "" ||
			!strings.Contains(said, want) || len(c.Requests) > 0 {
			t.Errorf("%s: exit code %d, %q, %q, asked %v", line, code, out, said, c.Requests)
		}
	}
	if code, _, said := cli(t, apptest.Agent(&apptest.FakeCluster{Err: node.ErrNoAgent}), "doctor", "--load", "20s"); code != 1 ||
		!strings.Contains(said, "--load is an agent's") {
		t.Errorf("without an agent: %d %q", code, said)
	}
}
