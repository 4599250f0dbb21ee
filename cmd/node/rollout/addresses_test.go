package rollout

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// sparkView is the n-th machine: two ports with their twins, each cabled as
// cables say ("0" to "2/1": port 0 to port 1 of machine 2).
func sparkView(t *testing.T, n int, cables map[int]string) envgen.NodeView {
	t.Helper()
	mac := func(n, port, twin int) string { return fmt.Sprintf("4c:bb:47:2e:%02x:%d%d", n, twin, port) }
	name := func(port, twin int) string {
		return fmt.Sprintf("%[2]sf%[1]dnp%[1]d", port, []string{"enp1s0", "enP2p1s0"}[twin])
	}
	inv := envgen.Inventory{Host: fmt.Sprintf("spark%d", n), Cabling: &envgen.Cabling{}}
	inv.NICs = append(inv.NICs, envgen.NIC{Name: "enP7s7", Kind: "device", Physical: true, Up: true, Carrier: new(true),
		MAC: mac(n, 9, 0), Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/24", n))}})
	for port := range 2 {
		peer, live := cables[port]
		state := envgen.StateDown
		if live {
			state = envgen.StateActive
		}
		for twin := range 2 {
			pci, err := envgen.ParsePCIAddress(fmt.Sprintf("000%d:01:00.%d", 2*twin, port))
			if err != nil {
				t.Fatal(err)
			}
			nic := name(port, twin)
			inv.NICs = append(inv.NICs, envgen.NIC{Name: nic, Kind: "device", PCI: &pci, PCIVendor: envgen.VendorMellanox,
				Physical: true, Up: true, Carrier: &live, MAC: mac(n, port, twin)})
			inv.Devices = append(inv.Devices, envgen.HCA{Name: fmt.Sprintf("roce%d%d", twin, port), PCI: &pci, Netdev: nic,
				LinkLayer: envgen.LayerEthernet, State: state})
			inv.Cabling.Probed = append(inv.Cabling.Probed, nic)
			if far, farPort, ok := strings.Cut(peer, "/"); ok {
				p := int(farPort[0] - '0')
				inv.Cabling.Sightings = append(inv.Cabling.Sightings, envgen.Sighting{NIC: nic, Slot: fmt.Sprintf("01:00.%d", port),
					Peer: envgen.Neighbour{Node: "id-" + far, Host: "spark" + far, NIC: name(p, twin),
						Slot: fmt.Sprintf("01:00.%d", p), MAC: mac(int(far[0]-'0'), p, twin)}})
			}
		}
	}
	return envgen.NodeView{ID: fmt.Sprintf("id-%d", n), Host: inv.Host, Mgmt: netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", n)), Inventory: inv}
}

// ringViews are n machines in a ring, port 0 of each to port 1 of the next.
func ringViews(t *testing.T, n int) []envgen.NodeView {
	var views []envgen.NodeView
	for i := range n {
		views = append(views, sparkView(t, i+1, map[int]string{0: fmt.Sprintf("%d/1", (i+1)%n+1), 1: fmt.Sprintf("%d/0", (i+n-1)%n+1)}))
	}
	return views
}

// observed is input of what these machines' probes see.
func observed(views, away []envgen.NodeView) (netplan.Input, envgen.Topology, error) {
	topo, err := topology.Derive(topology.Observed(views))
	if err != nil {
		return netplan.Input{}, topo, err
	}
	in, err := input(topo, views, away)
	return in, topo, err
}

func planOf(t *testing.T, views, away []envgen.NodeView, previous *netplan.Allocation, held map[string][]netplan.Held) netplan.Plan {
	t.Helper()
	in, _, err := observed(views, away)
	if err != nil {
		t.Fatal(err)
	}
	in.Previous = previous
	plan, err := addresses(in, held)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func givenBy(plan netplan.Plan) map[string]string {
	out := map[string]string{}
	for _, f := range plan.Files {
		for _, i := range f.Interfaces {
			out[f.Host+" "+i.NIC] = i.Address.String()
		}
	}
	return out
}

// What the probe sees becomes the plan that owners' guides have for a ring, and
// the record's copy of it moves nobody: not when a machine is off, not when one
// joins at the end of a chain, not when a cable is out.
func TestNetplanFollowsTheCabling(t *testing.T) {
	ring := ringViews(t, 3)
	in, _, err := observed(ring, nil)
	if err != nil || in.Kind != netplan.KindRing {
		t.Fatalf("%s, %v", in.Kind, err)
	}
	first := planOf(t, ring, nil, nil, nil)
	was := givenBy(first)
	guide := map[string]string{
		"spark1 enp1s0f0np0": "192.168.177.11/24", "spark1 enP2p1s0f0np0": "192.168.178.11/24",
		"spark1 enp1s0f1np1": "192.168.187.11/24", "spark1 enP2p1s0f1np1": "192.168.188.11/24",
		"spark2 enp1s0f0np0": "192.168.197.12/24", "spark2 enP2p1s0f0np0": "192.168.198.12/24",
		"spark2 enp1s0f1np1": "192.168.177.12/24", "spark2 enP2p1s0f1np1": "192.168.178.12/24",
		"spark3 enp1s0f0np0": "192.168.187.13/24", "spark3 enP2p1s0f0np0": "192.168.188.13/24",
		"spark3 enp1s0f1np1": "192.168.197.13/24", "spark3 enP2p1s0f1np1": "192.168.198.13/24",
	}
	if diff := cmp.Diff(guide, was); diff != "" {
		t.Error(diff)
	}
	data, err := json.Marshal(first.Allocation)
	if err != nil {
		t.Fatal(err)
	}
	kept := func(members ...string) *netplan.Allocation {
		a, err := remembered(data, members)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	all := []string{"id-1", "id-2", "id-3"}
	same := func(what string, plan netplan.Plan, only string) {
		t.Helper()
		for nic, addr := range givenBy(plan) {
			if was[nic] != "" && was[nic] != addr {
				t.Errorf("%s: %s had %s, gets %s", what, nic, was[nic], addr)
			}
		}
		if givenBy(plan)[only] == "" {
			t.Errorf("%s: %s has no address", what, only)
		}
	}
	off := []envgen.NodeView{sparkView(t, 1, map[int]string{0: "2/1"}), sparkView(t, 2, map[int]string{1: "1/0"})}
	if in, topo, err := observed(append(off, sparkView(t, 4, nil)), nil); err != nil || len(unanswered(topo, in.Links)) != 0 {
		t.Errorf("ports that are all linked or dead: %v, %q", err, unanswered(topo, in.Links))
	}
	alone := sparkView(t, 2, map[int]string{0: "9/0", 1: "1/0"})
	if in, topo, err := observed([]envgen.NodeView{off[0], alone}, nil); err != nil || len(unanswered(topo, in.Links)) != 1 ||
		!strings.HasPrefix(unanswered(topo, in.Links)[0], "spark2 port 0 has a link") {
		t.Errorf("a port that leads to nobody: %v, %q", err, unanswered(topo, in.Links))
	}
	same("spark3 is off", planOf(t, off, ring[2:], kept(all...), nil), "spark1 enp1s0f1np1")
	pulled := slices.Clone(ring)
	pulled[2], pulled[0] = sparkView(t, 3, map[int]string{1: "2/0"}), sparkView(t, 1, map[int]string{0: "2/1"})
	same("a cable is out", planOf(t, pulled, nil, kept(all...), nil), "spark3 enp1s0f0np0")
	same("and back", planOf(t, ring, nil, kept(all...), nil), "spark3 enp1s0f0np0")

	longer := ringViews(t, 4)
	moved := 0
	for nic, addr := range givenBy(planOf(t, longer, nil, kept(all...), nil)) {
		if was[nic] != "" && was[nic] != addr {
			moved++
		}
	}
	if moved != 2 { // the cable from 3 to 1 is cut in two: one end, of two twins
		t.Errorf("a fourth machine in the ring moves %d interfaces", moved)
	}
	// Who has left is forgotten: the newcomer gets its number.
	without := planOf(t, off, nil, kept("id-1", "id-2"), nil)
	if _, there := without.Allocation.Numbers["id-3"]; there {
		t.Error("a machine that left is remembered")
	}
}

func TestNetplanTakesOverWhatWorks(t *testing.T) {
	pair := []envgen.NodeView{sparkView(t, 1, map[int]string{0: "2/0"}), sparkView(t, 2, map[int]string{0: "1/0"})}
	held := map[string][]netplan.Held{}
	for i, v := range pair {
		for twin, nic := range []string{"enp1s0f0np0", "enP2p1s0f0np0"} {
			held[v.ID] = append(held[v.ID], netplan.Held{NIC: nic, Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.10.%d.%d/24", twin+1, 21+i))}})
		}
	}
	want := map[string]string{
		"spark1 enp1s0f0np0": "10.10.1.21/24", "spark1 enP2p1s0f0np0": "10.10.2.21/24",
		"spark2 enp1s0f0np0": "10.10.1.22/24", "spark2 enP2p1s0f0np0": "10.10.2.22/24",
	}
	if diff := cmp.Diff(want, givenBy(planOf(t, pair, nil, nil, held))); diff != "" {
		t.Error(diff)
	}
	// A network of somebody else's keeps out of the plan.
	docker := envgen.NIC{Name: "docker0", Kind: "bridge", Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.177.1/24")}}
	pair[1].Inventory.NICs = append(pair[1].Inventory.NICs, docker)
	if got := givenBy(planOf(t, pair, nil, nil, nil))["spark1 enp1s0f0np0"]; got != "192.168.187.11/24" {
		t.Errorf("beside docker0 spark1 gets %s", got)
	}
}

func TestNetplanKeepsItsHandsOff(t *testing.T) {
	pair := func() []envgen.NodeView {
		return []envgen.NodeView{sparkView(t, 1, map[int]string{0: "2/0", 1: "lan"}), sparkView(t, 2, map[int]string{0: "1/0", 1: "lan"})}
	}
	views := pair()
	for i := range views { // as owners have it: the way out is port 1
		at := slices.IndexFunc(views[i].Inventory.NICs, func(n envgen.NIC) bool { return n.Name == "enp1s0f1np1" })
		views[i].Inventory.NICs[at].DefaultRoute = true
		views[i].Inventory.NICs[at].Addresses = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.168.177.%d/24", 100+i))}
	}
	for _, f := range planOf(t, views, nil, nil, nil).Files {
		if strings.Contains(f.Text, "f1np1") || !strings.Contains(f.Text, "192.168.187.1") {
			t.Errorf("%s, with a LAN on port 1:\n%s", f.Host, f.Text)
		}
	}
	views = pair()
	views[0].Mgmt = netip.MustParseAddr("10.9.0.1")
	views[0].Inventory.NICs[1].Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}
	in, _, err := observed(views, nil)
	if err == nil {
		_, err = addresses(in, nil)
	}
	if !errors.Is(err, netplan.ErrManagement) || !strings.Contains(err.Error(), "--management") {
		t.Errorf("management over the fabric: %v", err)
	}
	if _, _, err := observed([]envgen.NodeView{sparkView(t, 1, nil), sparkView(t, 2, nil)}, nil); !errors.Is(err, ErrNoCabling) {
		t.Errorf("no cables: %v", err)
	}
	// Addresses alone do not show how the cables go.
	views = pair()
	for i := range views {
		views[i].Inventory.Cabling = nil
		views[i].Inventory.NICs[1].Addresses = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.9.0.%d/24", 1+i))}
		views[i].Inventory.Devices[0].GIDs = []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Netdev: "enp1s0f0np0",
			Addr: netip.MustParseAddr(fmt.Sprintf("::ffff:10.9.0.%d", 1+i))}}
	}
	if _, _, err := observed(views, nil); err == nil || !strings.Contains(err.Error(), "spark1 port 0 and spark2 port 0") {
		t.Errorf("without a probe: %v", err)
	}
}

func TestNetplanDigestIsOfWhatIsShown(t *testing.T) {
	text := "a"
	nodes := []wire.NetplanNode{{Node: "id-1", Text: &text, Verdict: &wire.NetplanVerdict{Diff: "d"}}}
	seen := map[string]bool{digestOf(nodes): true}
	for _, change := range []func(){
		func() { nodes[0].Verdict = &wire.NetplanVerdict{Diff: "e"} }, func() { text = "b" },
		func() { nodes[0].Text = nil }, func() { nodes = append(nodes, wire.NetplanNode{Node: "id-2"}) },
	} {
		change()
		if d := digestOf(nodes); seen[d] {
			t.Errorf("the same digest after a change, of %v", slices.Collect(maps.Keys(seen)))
		} else {
			seen[d] = true
		}
	}
}
