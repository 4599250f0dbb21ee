package rendezvous

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
)

// member is a ready node with nothing but a management NIC.
func member(n int) Member {
	m := Member{Node: node(n), Ready: true, Since: t0, Boot: fmt.Sprintf("boot-%d", n)}
	m.Joined = uint64(n)
	m.Inventory = envgen.Inventory{Host: m.Host, NICs: []envgen.NIC{{
		Name: "enP7s7", Up: true, Addresses: []netip.Prefix{netip.PrefixFrom(m.Addr.Addr(), 24)},
	}}}
	return m
}

// withFabric adds an ACTIVE RoCE port in 192.168.100.0/24.
func withFabric(m Member) Member {
	n := m.Addr.Addr().As4()[3]
	addr := netip.AddrFrom4([4]byte{192, 168, 100, n})
	m.Inventory.Devices = []envgen.HCA{{
		GIDs: []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Addr: netip.AddrFrom16(addr.As16()),
			Netdev: "enp1s0f0np0"}},
		Name: "rocep1s0f0", PCI: &envgen.PCIAddress{Bus: 1}, State: envgen.StateActive,
		LinkLayer: envgen.LayerEthernet, Netdev: "enp1s0f0np0",
	}}
	m.Inventory.NICs = append(m.Inventory.NICs, envgen.NIC{
		Name: "enp1s0f0np0", Up: true, Carrier: new(true), PCI: &envgen.PCIAddress{Bus: 1}, PCIVendor: envgen.VendorMellanox,
		Addresses: []netip.Prefix{netip.PrefixFrom(addr, 24)},
	})
	return m
}

func away(m Member) Member {
	m.Ready = false
	return m
}

func drained(m Member) Member {
	m.Drained = "rank 0: process 7 (cat) cannot be killed"
	return m
}

// derive is the topology of the members that are ready.
func derive(roster Roster) envgen.Topology {
	t, err := topology.Derive(topology.Observed(roster.Views()))
	if err != nil {
		panic(err) // two members with one id
	}
	return t
}

func hosts(p Plan) string {
	var out []string
	for _, n := range p.Nodes {
		out = append(out, n.Host)
	}
	return strings.Join(out, " ")
}

func TestMakePlan(t *testing.T) {
	three := Roster{member(3), member(1), member(2)} // in the order they joined
	tests := map[string]struct {
		change func(*launcher.Spec)
		roster Roster
		want   string // hosts, or a part of the error
	}{
		"in the order of names": {func(s *launcher.Spec) { s.Nodes = 3 }, three, "spark1 spark2 spark3"},
		"the first to join":     {func(s *launcher.Spec) { s.Nodes = 2 }, three, "spark1 spark3"},
		"the first of them":     {func(s *launcher.Spec) { s.Nodes = 1 }, three, "spark3"},
		"in the order of --on": {func(s *launcher.Spec) { s.Nodes, s.On = 2, []string{"spark2", "spark3"} },
			three, "spark2 spark3"},
		"fewer than --on names": {func(s *launcher.Spec) { s.Nodes, s.On = 1, []string{"spark2", "spark3"} },
			three, "spark2"},
		"without the excluded": {func(s *launcher.Spec) { s.Nodes, s.Exclude = 2, []string{"spark1"} }, three,
			"spark2 spark3"},
		"past one that is away": {func(s *launcher.Spec) { s.Nodes = 2 },
			Roster{away(member(3)), member(1), member(2)}, "spark1 spark2"},
		"more than there are": {func(s *launcher.Spec) { s.Nodes = 4 }, three,
			"4 nodes wanted, 3 ready: the cluster has spark3, spark1, spark2"},
		"more than are ready": {func(s *launcher.Spec) { s.Nodes = 3 },
			Roster{member(1), away(member(2)), member(3)},
			"3 nodes wanted, 2 ready: the cluster has spark1, spark3; away: spark2"},
		"all excluded": {func(s *launcher.Spec) { s.Exclude = []string{"spark1"} }, Roster{member(1)},
			"1 node wanted, 0 ready without the excluded ones"},
		"nobody there": {func(*launcher.Spec) {}, nil, "no node is ready"},
		"all away":     {func(*launcher.Spec) {}, Roster{away(member(1))}, "no node is ready; away: spark1"},
		"--on no member": {func(s *launcher.Spec) { s.On = []string{"spark9"} }, three,
			`host "spark9" is not in this cluster: the cluster has spark3`},
		"--exclude no member": {func(s *launcher.Spec) { s.Exclude = []string{"spark9"} }, three,
			`host "spark9" is not in this cluster`},
		"--on one that is away": {func(s *launcher.Spec) { s.On = []string{"spark2"} },
			Roster{member(1), away(member(2))}, "host spark2 does not answer (since 12:00:00)"},
		"a node without an address": {func(s *launcher.Spec) { s.Nodes = 2 },
			Roster{member(1), {Node: Node{ID: "x", Host: "sparkx"}, Ready: true}}, "no network in common"},
		"nodes of zero is no plan": {func(s *launcher.Spec) { s.Nodes = 0 }, three, "none chosen"},
		"past one that is drained": {func(s *launcher.Spec) { s.Nodes = 2 },
			Roster{drained(member(3)), member(1), member(2)}, "spark1 spark2"},
		"more than take jobs": {func(s *launcher.Spec) { s.Nodes = 2 }, Roster{member(1), drained(member(2))},
			"the cluster has spark1; not usable: spark2 (rank 0: process 7 (cat) cannot be killed)"},
		"--on one that is drained": {func(s *launcher.Spec) { s.On = []string{"spark2"} },
			Roster{member(1), drained(member(2))}, "host spark2 gets no ranks: rank 0: process 7 (cat)"},
		"one that is away is no match": {func(s *launcher.Spec) { s.Nodes, s.On = 1, []string{"spark1", "spark2"} },
			Roster{member(1), away(member(2))}, "host spark2 does not answer"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			spec := specFor("jjjj", 2)
			tt.change(&spec)
			plan, err := MakePlan(spec, tt.roster, derive(tt.roster), 1)
			if err != nil {
				if !errors.Is(err, ErrCannotPlace) || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("error %v, want ErrCannotPlace with %q", err, tt.want)
				}
				return
			}
			if got := hosts(plan); got != tt.want {
				t.Fatalf("planned on %s, want %s", got, tt.want)
			}
		})
	}
}

func TestPlanMeetsOnTheFabric(t *testing.T) {
	spec := specFor("jjjj", 1)
	spec.Nodes = 2
	plan, err := MakePlan(spec, Roster{withFabric(member(1)), withFabric(member(2))},
		derive(Roster{withFabric(member(1)), withFabric(member(2))}), 1)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Network != "fabric" || plan.Head != netip.MustParseAddr("192.168.100.1") ||
		plan.Nodes[1].Entry.Addr != netip.MustParseAddr("192.168.100.2") {
		t.Errorf("plan %+v", plan)
	}
	plan, err = MakePlan(spec, Roster{withFabric(member(1)), member(2)},
		derive(Roster{withFabric(member(1)), member(2)}), 1)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Network != "management" || plan.Head != netip.MustParseAddr("10.0.0.1") || plan.Why == "" {
		t.Errorf("plan %+v", plan)
	}
}

func TestRanksAreContiguous(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "nodes")
		per := rapid.IntRange(1, 5).Draw(t, "ranks per node")
		spec := specFor("jjjj", per)
		spec.Nodes = n
		var roster Roster
		for i := 1; i <= n+rapid.IntRange(0, 2).Draw(t, "spare"); i++ {
			roster = append(roster, member(i))
		}
		plan, err := MakePlan(spec, roster, derive(roster), 4)
		if err != nil {
			t.Fatal(err)
		}
		if plan.World != n*per || len(plan.Nodes) != n || plan.Generation != 4 {
			t.Fatalf("plan %+v", plan)
		}
		next := 0
		for i, p := range plan.Nodes {
			a := plan.Assignment(spec, i)
			if p.FirstRank != next || p.Ranks != per || a.FirstRank != next || a.NodeRank != i || a.World != n*per ||
				a.NodeCount != n {
				t.Fatalf("node %d: place %+v, assignment %+v", i, p, a)
			}
			m := roster[slices.IndexFunc(roster, func(m Member) bool { return m.Host == p.Host })]
			if a.Boot != m.Boot || a.Node != m.ID || a.Key != (launcher.Key{Job: "jjjj", Generation: 4}) {
				t.Fatalf("assignment %+v", a)
			}
			if len(a.Rest) != n-1 || i > 0 && a.Rest[i-1] != a.Addr { // the others are found on the head's network
				t.Fatalf("node %d: the rest %v, its own address %s", i, a.Rest, a.Addr)
			}
			for r := range p.Ranks {
				if got := plan.HostOf(next + r); got != p.Host {
					t.Fatalf("rank %d is on %s, want %s", next+r, got, p.Host)
				}
			}
			next += p.Ranks
		}
		if plan.HostOf(-1) != "?" || plan.HostOf(next) != "?" {
			t.Fatal("a rank that is nowhere has a host")
		}
	})
}

func TestPlanSurvivesJSON(t *testing.T) {
	spec := specFor("jjjj", 2)
	spec.Nodes = 2
	six := member(2)
	six.Addr = netip.MustParseAddrPort("[fe80::2%eth0]:7940")
	for name, roster := range map[string]Roster{
		"fabric":     {withFabric(member(1)), withFabric(member(2))},
		"management": {member(1), member(2)},
		"alone":      {six},
	} {
		t.Run(name, func(t *testing.T) {
			spec.Nodes = len(roster)
			plan, err := MakePlan(spec, roster, derive(roster), 1)
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(plan)
			if err != nil {
				t.Fatal(err)
			}
			var got Plan
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			if d := diff(plan, got); d != "" {
				t.Error(d)
			}
			// The entry that an assignment carries is the plan's own.
			var e envgen.Entry
			if err := json.Unmarshal(plan.Assignment(spec, 0).Meeting, &e); err != nil {
				t.Fatal(err)
			}
			if d := diff(plan.Nodes[0].Entry, e); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestStatusOf(t *testing.T) {
	j := plannedJob("jjjj", 1, t0)
	if got := StatusOf(j).State; got != StatePlanned {
		t.Errorf("state %s", got)
	}
	for what, k := range map[string]Job{"stop": {Stop: &Stop{}}, "verdict": {Verdict: &Outcome{}}} {
		if got := StatusOf(k).State; got != StateEnds {
			t.Errorf("with a %s on record it is %s", what, got)
		}
	}
	j.Outcome = &Outcome{End: Rejected}
	if got := StatusOf(j).State; got != "rejected" {
		t.Errorf("state %s", got)
	}
}

// A job that does not fill the cluster runs where its user is.
func TestPlanTakesTheUsersNode(t *testing.T) {
	roster := Roster{member(1), member(2), member(3), member(4)}
	for near, want := range map[string]string{
		"spark1": "spark1 spark2", "spark2": "spark1 spark2", "spark4": "spark1 spark4", "laptop": "spark1 spark2",
	} {
		spec := specFor("jjjj", 1)
		spec.Nodes, spec.Near = 2, near
		plan, err := MakePlan(spec, roster, derive(roster), 1)
		if err != nil || hosts(plan) != want {
			t.Errorf("from %s: %s (%v), want %s", near, hosts(plan), err, want)
		}
	}
}

// shaped makes ready members and what their fabric is: cables between ports
// "1.0" (port 0 of spark1), each with two subnets. A switch joins the ports of
// one word: "1.0=2.0=3.1".
func shaped(t *testing.T, nodes int, links ...string) (Roster, envgen.Topology) {
	t.Helper()
	var roster Roster
	for n := 1; n <= nodes; n++ {
		m := member(n)
		m.Inventory.Cabling = &envgen.Cabling{}
		roster = append(roster, m)
	}
	plug := func(end string, subnet int) (node int, slot string) {
		var port int
		if _, err := fmt.Sscanf(end, "%d.%d", &node, &port); err != nil {
			t.Fatalf("port %q: %v", end, err)
		}
		inv := &roster[node-1].Inventory
		for twin := range 2 {
			nic := fmt.Sprintf("enP%dp1s0f%dnp%d", twin, port, port)
			addr := netip.AddrFrom4([4]byte{192, 168, byte(10*subnet + twin), byte(node)})
			at := &envgen.PCIAddress{Domain: uint32(2 * twin), Bus: 1, Function: uint8(port)}
			inv.Devices = append(inv.Devices, envgen.HCA{
				Name: fmt.Sprintf("roceP%dp1s0f%d", twin, port), PCI: at, State: envgen.StateActive,
				LinkLayer: envgen.LayerEthernet, Netdev: nic,
				GIDs: []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Addr: netip.AddrFrom16(addr.As16()), Netdev: nic}},
			})
			inv.NICs = append(inv.NICs,
				envgen.NIC{Name: nic, PCI: at, PCIVendor: envgen.VendorMellanox, Up: true, Carrier: new(true), MTU: 9000,
					Physical: true, Addresses: []netip.Prefix{netip.PrefixFrom(addr, 24)}})
			inv.Cabling.Probed = append(inv.Cabling.Probed, nic)
		}
		return node, fmt.Sprintf("01:00.%d", port)
	}
	for i, link := range links {
		type end struct {
			node int
			slot string
		}
		var ends []end
		for _, text := range strings.Split(link, "=") {
			n, slot := plug(text, i+1)
			for _, e := range ends {
				far := roster[e.node-1]
				c := roster[n-1].Inventory.Cabling
				c.Sightings = append(c.Sightings,
					envgen.Sighting{Slot: slot, Peer: envgen.Neighbour{Node: string(far.ID), Host: far.Host, Slot: e.slot}})
			}
			ends = append(ends, end{n, slot})
		}
	}
	return roster, derive(roster)
}

// Where the user leaves the choice, the fabric makes it, and orders the ranks.
func TestPlanFollowsTheFabric(t *testing.T) {
	pair := []string{"1.0=2.0"}
	ring3 := []string{"1.0=2.1", "2.0=3.1", "3.0=1.1"}
	ring4 := []string{"1.0=3.1", "3.0=2.1", "2.0=4.1", "4.0=1.1"} // 1 - 3 - 2 - 4
	switch4 := []string{"1.0=2.0=3.1=4.0"}
	islands := []string{"1.0=3.0", "2.0=4.0=5.0"}
	chain := []string{"1.0=3.1", "3.0=2.1"}
	on := func(hosts ...string) func(*launcher.Spec) {
		return func(s *launcher.Spec) { s.On, s.Nodes = hosts, len(hosts) }
	}
	from := func(host string, nodes int) func(*launcher.Spec) {
		return func(s *launcher.Spec) { s.Near, s.Nodes = host, nodes }
	}
	tests := map[string]struct {
		nodes   int
		links   []string
		ask     func(*launcher.Spec)
		want    string
		network envgen.Network
		paths   int // RDMA devices of each node
		why     string
	}{
		"a pair": {2, pair, from("spark2", 2), "spark1 spark2", "fabric", 2,
			"a pair: all 2 nodes have an address in 192.168.10.0/24 over the cable"},
		"one of a pair": {2, pair, from("spark2", 1), "spark2", "management", 0, "spark2 is alone"},
		"two cables": {2, []string{"1.0=2.0", "1.1=2.1"}, from("spark1", 2), "spark1 spark2",
			"fabric", 4, "a pair"},
		"a pair beside a third": {3, []string{"1.0=3.0"}, from("", 2), "spark1 spark3", "fabric", 2, "a pair"},
		"the third itself": {3, []string{"1.0=3.0"}, from("spark2", 2), "spark1 spark2", "management",
			0, "the management network is used"},
		"a switch": {4, switch4, from("spark4", 3), "spark1 spark2 spark4", "fabric", 2,
			"a switch: all 3 nodes"},
		"a ring": {3, ring3, from("spark3", 3), "spark1 spark2 spark3", "management", 4,
			"a ring of 3"},
		"a ring in another order": {4, ring4, from("spark2", 4), "spark1 spark3 spark2 spark4", "management",
			4, "a ring of 4"},
		"two of a ring are neighbours":     {4, ring4, from("", 2), "spark1 spark3", "fabric", 2, "a pair"},
		"two of a ring, from the far side": {4, ring4, from("spark2", 2), "spark3 spark2", "fabric", 2, "a pair"},
		"not the excluded neighbour": {4, ring4,
			func(s *launcher.Spec) { s.Nodes, s.Near, s.Exclude = 2, "spark2", []string{"spark3"} },
			"spark2 spark4", "fabric", 2, "a pair"},
		"three of a ring": {4, ring4, from("spark1", 3), "spark1 spark3 spark2", "management", 0,
			"the management network is used"},
		"--on is the user's order": {4, ring4, on("spark4", "spark1", "spark3", "spark2"),
			"spark4 spark1 spark3 spark2", "management", 4, "a ring of 4"},
		"--on opposites": {4, ring4, on("spark1", "spark2"), "spark1 spark2", "management", 0,
			"no subnet between"},
		"the island that is large": {5, islands, from("", 3), "spark2 spark4 spark5", "fabric", 2, "a switch"},
		"the user's island":        {5, islands, from("spark3", 2), "spark1 spark3", "fabric", 2, "a pair"},
		"the user's island is too small": {5, islands, from("spark3", 3), "spark1 spark3 spark2", "management", 0,
			"the management network is used"},
		"neighbours of a chain": {3, chain, from("", 2), "spark1 spark3", "fabric", 2, "a pair"},
		"a whole chain": {3, chain, from("", 3), "spark1 spark3 spark2", "management", 0,
			"no RoCE subnet joins all 3"},
		"no fabric": {3, nil, from("spark3", 2), "spark1 spark3", "management", 0,
			"no node has an RDMA device"},
		"pair and switch in one": {4, []string{"1.0=2.0", "2.1=3.1=4.1"}, from("spark4", 3),
			"spark2 spark3 spark4", "fabric", 2, "mixed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			roster, topo := shaped(t, tt.nodes, tt.links...)
			spec := specFor("jjjj", 1)
			tt.ask(&spec)
			plan, err := MakePlan(spec, roster, topo, 1)
			if err != nil {
				t.Fatal(err)
			}
			if got := hosts(plan); got != tt.want {
				t.Errorf("planned on %s, want %s", got, tt.want)
			}
			if plan.Network != string(tt.network) || !strings.Contains(plan.Why, tt.why) {
				t.Errorf("they meet on %s (%s), want %s (... %s ...)", plan.Network, plan.Why, tt.network, tt.why)
			}
			for _, p := range plan.Nodes {
				if len(p.Entry.Paths) != tt.paths {
					t.Errorf("%s has %d RDMA devices of the job, want %d", p.Host, len(p.Entry.Paths), tt.paths)
				}
			}
		})
	}
}

// A node with a half-broken port is chosen only where no sound one is.
func TestPlanPrefersMoreLanes(t *testing.T) {
	roster, _ := shaped(t, 3, "1.0=2.1", "2.0=3.1", "3.0=1.1")
	roster[1].Inventory.Devices[0].State = envgen.StateDown // spark2's primary twin towards spark1
	spec := specFor("jjjj", 1)
	spec.Nodes = 2
	plan, err := MakePlan(spec, roster, derive(roster), 1)
	if err != nil || hosts(plan) != "spark1 spark3" {
		t.Errorf("planned on %s (%v), want spark1 spark3", hosts(plan), err)
	}
}

// While a command before or after the ranks runs, the job's machines are those of its ranks all the same.
func TestMainHosts(t *testing.T) {
	main := Plan{Generation: 2, Nodes: []Place{{Node: "1", Host: "a"}, {Node: "2", Host: "b"}}, World: 4,
		Held: []Holding{{Node: "3", Host: "spare"}}}
	spec := launcher.Spec{Spare: 1}
	for name, j := range map[string]Job{
		"main":   {Spec: spec, Plan: main},
		"before": {Spec: spec, Plan: main.Single(launcher.StageBefore, 1)},
		"after":  Job{Spec: spec, Plan: main}.After(Outcome{End: Completed}),
	} {
		if name == "after" {
			j.Plan = main.Single(launcher.StageAfter, 3)
		}
		if got := j.MainHosts(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A witness is ready and gets no ranks, whoever asks from where.
func TestWitnessGetsNoRanks(t *testing.T) {
	witness := member(3)
	witness.Witness = true
	roster := Roster{member(1), member(2), witness}
	spec := specFor("jjjj", 1)
	spec.Near = witness.Host
	spec.Nodes = 2
	plan, err := MakePlan(spec, roster, envgen.Topology{}, 1)
	if err != nil || len(plan.Nodes) != 2 || plan.Nodes[0].Host != "spark1" || plan.Nodes[1].Host != "spark2" {
		t.Errorf("plan %+v, %v", plan.Nodes, err)
	}
	spec.Nodes = 3
	if _, err := MakePlan(spec, roster, envgen.Topology{}, 1); !errors.Is(err, ErrCannotPlace) {
		t.Errorf("three nodes of two: %v", err)
	}
	spec.Nodes, spec.On = 1, []string{witness.Host}
	if _, err := MakePlan(spec, roster, envgen.Topology{}, 1); !errors.Is(err, ErrCannotPlace) ||
		!strings.Contains(err.Error(), "is a witness") {
		t.Errorf("the witness by name: %v", err)
	}
	if len(roster.Views()) != 2 {
		t.Error("the witness is part of the fabric")
	}
}
