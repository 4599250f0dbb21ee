package ibtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sparkrun/sparkrun/envgen"
)

// steps are a plan in words: a line a step, "spark1 rocep1s0f0 > spark2 rocep1s0f0" a run.
func steps(p Plan) string {
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%s:", s.Test)
		for _, r := range s.Runs {
			from, to := p.Ends(r)
			fmt.Fprintf(&b, " %s.%s>%s.%s", p.Nodes[from.Node].Host, from.Way.Device, p.Nodes[to.Node].Host, to.Way.Device)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestPlan(t *testing.T) {
	oneTwin := pair(t).with(func(twin int, h *envgen.HCA, n *envgen.NIC) {
		if twin == 1 {
			h.GIDs, n.Addresses = nil, nil
		}
	})
	tests := map[string]struct {
		cluster *cluster
		want    string
	}{
		// Both twins at once, each way in turn; latency a twin at a time.
		"pair": {pair(t), `write_bw: spark1.rocep1s0f0>spark2.rocep1s0f0 spark1.roceP2p1s0f0>spark2.roceP2p1s0f0
write_bw: spark2.rocep1s0f0>spark1.rocep1s0f0 spark2.roceP2p1s0f0>spark1.roceP2p1s0f0
write_lat: spark1.rocep1s0f0>spark2.rocep1s0f0
write_lat: spark1.roceP2p1s0f0>spark2.roceP2p1s0f0
`},
		// The two cables share a ConnectX: one after the other.
		"two cables": {pair(t).cable(0, 1, 1, 1, 1),
			`write_bw: spark1.rocep1s0f0>spark2.rocep1s0f0 spark1.roceP2p1s0f0>spark2.roceP2p1s0f0
write_bw: spark2.rocep1s0f0>spark1.rocep1s0f0 spark2.roceP2p1s0f0>spark1.roceP2p1s0f0
write_bw: spark1.rocep1s0f1>spark2.rocep1s0f1 spark1.roceP2p1s0f1>spark2.roceP2p1s0f1
write_bw: spark2.rocep1s0f1>spark1.rocep1s0f1 spark2.roceP2p1s0f1>spark1.roceP2p1s0f1
write_lat: spark1.rocep1s0f0>spark2.rocep1s0f0
write_lat: spark1.roceP2p1s0f0>spark2.roceP2p1s0f0
write_lat: spark1.rocep1s0f1>spark2.rocep1s0f1
write_lat: spark1.roceP2p1s0f1>spark2.roceP2p1s0f1
`},
		"one twin": {oneTwin, `write_bw: spark1.rocep1s0f0>spark2.rocep1s0f0
write_bw: spark2.rocep1s0f0>spark1.rocep1s0f0
write_lat: spark1.rocep1s0f0>spark2.rocep1s0f0
`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p, _ := tc.cluster.plan(t, Options{})
			if diff := cmp.Diff(tc.want, steps(p)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Every cable is measured each way over every lane, once; no node has two cables in a step;
// and pairs that share no node go side by side.
func TestPlanIsWhole(t *testing.T) {
	tests := map[string]struct {
		cluster *cluster
		cables  int
		rounds  int // of bandwidth: each has two steps
	}{
		"ring of 3": {ring(t, 3), 3, 3}, "ring of 4": {ring(t, 4), 4, 2}, "ring of 5": {ring(t, 5), 5, 3},
		"2 on a switch": {newCluster(t, 2).onSwitch(), 1, 1}, "3": {newCluster(t, 3).onSwitch(), 3, 3},
		"4": {newCluster(t, 4).onSwitch(), 6, 3}, "7": {newCluster(t, 7).onSwitch(), 21, 7},
		"8": {newCluster(t, 8).onSwitch(), 28, 7}, "16": {newCluster(t, 16).onSwitch(), 120, 15},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p, _ := tc.cluster.plan(t, Options{Kinds: []string{Bandwidth}})
			if len(p.Cables) != tc.cables || len(p.Steps) > 2*tc.rounds {
				t.Errorf("%d cables in %d steps, want %d in %d at most", len(p.Cables), len(p.Steps), tc.cables, 2*tc.rounds)
			}
			seen := map[string]int{}
			for _, s := range p.Steps {
				busy := map[int]int{} // node -> its cable
				for _, r := range s.Runs {
					from, to := p.Ends(r)
					seen[fmt.Sprint(from, to)]++
					for _, n := range []int{from.Node, to.Node} {
						if c, other := busy[n]; other && c != r.Cable {
							t.Errorf("%s has two cables at a time: %v", p.Nodes[n].Host, s)
						}
						busy[n] = r.Cable
					}
				}
			}
			for key, n := range seen {
				if n != 1 {
					t.Errorf("%s is measured %d times", key, n)
				}
			}
			if len(seen) != 4*tc.cables {
				t.Errorf("%d runs, want %d: both twins, each way", len(seen), 4*tc.cables)
			}
			text, err := p.Text()
			if err != nil || len(text) > 60<<10 {
				t.Errorf("as text it has %d bytes, %v", len(text), err)
			}
			back, err := ParsePlan(text)
			if diff := cmp.Diff(p, back, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// Twins in one subnet reach both of the other side's: first goes with first.
func TestPlanOfOneSubnet(t *testing.T) {
	c := pair(t)
	for node := range 2 {
		h, n := c.device(node, 0, 1)
		ip := netip.AddrFrom4([4]byte{192, 168, 100, byte(node + 21)})
		h.GIDs[0].Addr, n.Addresses = netip.AddrFrom16(ip.As16()), []netip.Prefix{netip.PrefixFrom(ip, 24)}
	}
	p, _ := c.plan(t, Options{Kinds: []string{Bandwidth}})
	if want := "write_bw: spark1.rocep1s0f0>spark2.rocep1s0f0 " +
		"spark1.roceP2p1s0f0>spark2.roceP2p1s0f0\n"; !strings.HasPrefix(steps(p), want) {
		t.Errorf("%s", steps(p))
	}
}

func TestPlanRefused(t *testing.T) {
	s, ids := newCluster(t, 2).setting(t)
	if _, err := NewPlan(s.Topology, ids, Options{}); !errors.Is(err, ErrNoLink) {
		t.Errorf("%v", err)
	}
	if _, err := NewPlan(s.Topology, []string{"id-spark1", "x"}, Options{}); err == nil ||
		!strings.Contains(err.Error(), "node x") {
		t.Errorf("%v", err)
	}
	for want, o := range map[string]Options{
		"no test": {Kinds: []string{"bandwidth"}}, "--verb": {Verb: "atomic"}, "--seconds": {Seconds: 61},
		"--size":  {Bytes: 1<<30 + 1},
		"--iters": {Iters: 99}, "--qps": {QPs: 65},
	} {
		if err := o.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestCommand(t *testing.T) {
	p, _ := pair(t).plan(t, Options{Seconds: 5, QPs: 2})
	way := p.Nodes[0].Ways[0]
	for want, got := range map[string][]string{
		"ib_write_bw -d rocep1s0f0 -i 1 -x 3 -p 20000 -F --report_gbits -s 65536 -q 2 -D 5":                                                       p.Command("write_bw", way, 3, 20000, netip.Addr{}, ""),
		"ib_send_lat -d rocep1s0f0 -i 1 -x 4 -p 20001 -F -s 2 -n 1000 --out_json --out_json_file=/tmp/x.json " + p.Nodes[1].Ways[0].Addr.String(): p.Command("send_lat", way, 4, 20001, p.Nodes[1].Ways[0].Addr, "/tmp/x.json"),
	} {
		if strings.Join(got, " ") != want {
			t.Errorf("%s\nwant %s", strings.Join(got, " "), want)
		}
	}
}

// A plan comes by argv: what no NewPlan makes is refused, before anything is started.
func TestParsePlanRefuses(t *testing.T) {
	good, _ := pair(t).plan(t, Options{})
	for want, change := range map[string]func(*Plan){
		"version 2":       func(p *Plan) { p.Version = 2 },
		"--seconds":       func(p *Plan) { p.Seconds = 0 },
		"device \"-x\"":   func(p *Plan) { p.Nodes[0].Ways[0].Device = "-x" },
		"address invalid": func(p *Plan) { p.Nodes[0].Ways[0].Addr = netip.Addr{} },
		"nodes 0 and 7":   func(p *Plan) { p.Cables[0].B = 7 },
		"nodes 0 and 0":   func(p *Plan) { p.Cables[0].B = 0 },
		"lane [9 0]":      func(p *Plan) { p.Cables[0].Lanes[0][0] = 9 },
		"test \"rm_bw\"":  func(p *Plan) { p.Steps[0].Test = "rm_bw" },
		"lane 5":          func(p *Plan) { p.Steps[0].Runs[0].Lane = 5 },
		"of cable -1":     func(p *Plan) { p.Steps[0].Runs[0].Cable = -1 },
	} {
		text, err := good.Text()
		if err != nil {
			t.Fatal(err)
		}
		var p Plan
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		change(&p)
		if text, err = p.Text(); err != nil {
			t.Fatal(err)
		}
		if _, err := ParsePlan(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

func FuzzParsePlan(f *testing.F) {
	f.Add(`{"version":1,"nodes":[{"host":"a","ways":[{"dev":"x","addr":"10.0.0.1"}]},{"host":"b","ways":[{"dev":"x","addr":"10.0.0.2"}]}],"cables":[{"a":0,"b":1,"lanes":[[0,0]]}],"steps":[{"test":"write_bw","runs":[{"c":0,"l":0}]}],"seconds":3,"bytes":65536,"iters":1000,"qps":1}`)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePlan(text)
		if err != nil {
			return
		}
		for _, s := range p.Steps {
			for _, r := range s.Runs { // none is out of range
				from, _ := p.Ends(r)
				if slices.Contains(p.Command(s.Test, from.Way, 0, 1, from.Way.Addr, ""), "") {
					t.Errorf("an empty word: %v", s)
				}
			}
		}
	})
}

func TestEstimate(t *testing.T) {
	two, _ := pair(t).plan(t, Options{})
	all, _ := newCluster(t, 16).onSwitch().plan(t, Options{})
	if a, b := two.Estimate().Seconds(), all.Estimate().Seconds(); a < 9 || a > 20 || b < 90 || b > 240 {
		t.Errorf("a pair %g s, 16 on a switch %g s", a, b)
	}
}
