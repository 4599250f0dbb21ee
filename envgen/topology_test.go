package envgen

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRoles(t *testing.T) {
	pairCable := spark("spark1", "172.16.10.160/24", "10.0.0.1/24", "10.0.1.1/24")
	mgmt := netip.MustParseAddr("172.16.10.160")
	for name, tc := range map[string]struct {
		inv      Inventory
		settings RoleSettings
		want     [2]Role
	}{
		"a link, and none":   {pairCable, RoleSettings{Mgmt: mgmt}, [2]Role{RoleFabric, RoleUnused}},
		"default route":      {change(pairCable, "enP2p1s0f0np0", func(n *NIC) { n.DefaultRoute = true }), RoleSettings{Mgmt: mgmt}, [2]Role{RoleLAN, RoleUnused}},
		"management's":       {spark("spark1", "10.0.0.200/16", "10.0.0.1/24"), RoleSettings{Mgmt: netip.MustParseAddr("10.0.0.200")}, [2]Role{RoleLAN, RoleUnused}},
		"by the user's word": {pairCable, RoleSettings{Mgmt: mgmt, MgmtSubnet: netip.MustParsePrefix("10.0.1.77/24")}, [2]Role{RoleLAN, RoleUnused}},
		"stranger":           {pairCable, RoleSettings{Mgmt: mgmt, NonMembers: map[string]string{"01:00.0": "192.168.0.100"}}, [2]Role{RoleLAN, RoleUnused}},
		"override wins": {change(pairCable, "enp1s0f0np0", func(n *NIC) { n.DefaultRoute = true }),
			RoleSettings{Mgmt: mgmt, FabricPorts: []string{"rocep1s0f0"}}, [2]Role{RoleFabric, RoleUnused}},
		"override of the other": {pairCable, RoleSettings{Mgmt: mgmt, FabricPorts: []string{"0002:01:00.1"}}, [2]Role{RoleUnused, RoleFabric}},
		"managed over the fabric": {pairCable, RoleSettings{Mgmt: netip.MustParseAddr("10.0.0.1")},
			[2]Role{RoleFabric, RoleUnused}},
	} {
		roles, why := Roles(tc.inv, Ports(tc.inv), tc.settings)
		if got := [2]Role(roles); got != tc.want {
			t.Errorf("%s: got %v (%v), want %v", name, got, why, tc.want)
		}
	}
}

func TestPortsByName(t *testing.T) {
	inv := spark("spark1", "172.16.10.160/24", "10.0.0.1/24")
	names := PortsByName(Ports(inv))
	for name, want := range map[string]int{
		"0": 0, "1": 1, "01:00.0": 0, "0002:01:00.1": 1, "roceP2p1s0f0": 0, "enP2p1s0f1np1": 1,
	} {
		if got, ok := names[name]; !ok || got != want {
			t.Errorf("%s is port %d, %v; want %d", name, got, ok, want)
		}
	}
	server := Inventory{Devices: []HCA{{Name: "mlx5_0", PCI: pci("0000:18:00.0")}, {Name: "mlx5_1", PCI: pci("0000:3a:00.0")}}}
	names = PortsByName(Ports(server))
	if _, ok := names["0"]; ok {
		t.Error("number 0 names one of two ports")
	}
	if names["mlx5_1"] != 1 {
		t.Errorf("mlx5_1 is port %d", names["mlx5_1"])
	}
}

func TestRankOrder(t *testing.T) {
	topo := Topology{Order: []string{"c", "a", "b"}}
	for _, tc := range [][2][]string{
		{{"a", "b", "c"}, {"c", "a", "b"}},
		{{"b", "a"}, {"a", "b"}},
		{{"z", "b", "y"}, {"b", "y", "z"}},
		{nil, nil},
	} {
		if got := topo.RankOrder(tc[0]); !slices.Equal(got, tc[1]) {
			t.Errorf("%v: got %v, want %v", tc[0], got, tc[1])
		}
	}
}

func TestBetween(t *testing.T) {
	end := func(node, addr string) LaneEnd {
		return LaneEnd{Node: node, Path: Path{HCA: "h", Addr: netip.MustParseAddr(addr)}}
	}
	a, b, twin, c := end("a", "10.0.0.1"), end("b", "10.0.0.2"), end("b", "10.0.0.3"), end("c", "10.0.0.2")
	topo := Topology{Lanes: []Lane{{Ends: []LaneEnd{a, b, twin, c}}}}
	if diff := cmp.Diff([]Joint{{b, a}, {twin, a}}, topo.Between("b", "a"), byValue); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// b and c have one address: the first twin and c do not reach each other.
	if diff := cmp.Diff([]Joint{{twin, c}}, topo.Between("b", "c"), byValue); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Who asks for nodes that the topology does not know, or for one twice, hears of it.
func TestTopologyMeetErrors(t *testing.T) {
	topo := Topology{}
	if _, err := topo.Meet(nil); err == nil {
		t.Error("no nodes meet")
	}
	v := view(spark("spark1", "172.16.10.160/24"))
	if _, err := topo.Meet([]NodeView{v, v}); err == nil {
		t.Error("a node meets itself twice")
	}
	w := view(spark("spark2", "172.16.10.161/24"))
	m, err := topo.Meet([]NodeView{v, w})
	if err != nil || m.Kind != NetworkManagement || m.Entries[1].Shape != ShapeIslands {
		t.Errorf("unknown nodes: %+v, %v", m, err)
	}
	alone, err := topo.Meet([]NodeView{w})
	if err != nil || alone.Entries[0].Shape != ShapeSingle {
		t.Errorf("one node: %+v, %v", alone, err)
	}
}
