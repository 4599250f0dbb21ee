package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

// library is a release of NCCL as a job may have it.
type library struct {
	version envgen.NCCLVersion
	fork    bool
}

var libraries = []library{
	{version: envgen.NCCLVersion{Major: 2, Minor: 20, Patch: 5}},
	{version: envgen.NCCLVersion{Major: 2, Minor: 28, Patch: 9}},
	{version: envgen.NCCLVersion{Major: 2, Minor: 28, Patch: 9}, fork: true},
	{version: envgen.NCCLVersion{Major: 2, Minor: 30, Patch: 7}},
}

func (l library) String() string {
	if l.fork {
		return "NCCL " + l.version.String() + ", dgxspark-3node-ring fork"
	}
	return "NCCL " + l.version.String()
}

// inOrder are the views of the named hosts, in rank order.
func inOrder(topo envgen.Topology, in Input, hosts ...string) []envgen.NodeView {
	byID := map[string]envgen.NodeView{}
	var ids []string
	for _, n := range in.Nodes {
		if len(hosts) == 0 || slices.Contains(hosts, n.Host) {
			byID[n.ID] = envgen.NodeView{ID: n.ID, Host: n.Host, Mgmt: n.Mgmt, Inventory: n.Inventory}
			ids = append(ids, n.ID)
		}
	}
	var views []envgen.NodeView
	for _, id := range topo.RankOrder(ids) {
		views = append(views, byID[id])
	}
	return views
}

// TestEnvGoldens writes every rank's variables out for every topology and release of NCCL.
func TestEnvGoldens(t *testing.T) {
	for _, name := range clusters(t) {
		t.Run(name, func(t *testing.T) {
			f := load(t, name+".txt")
			topo := derive(t, f.in)
			views := inOrder(topo, f.in)
			m, err := topo.Meet(views)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			fmt.Fprintf(&b, "%s\n%s meeting, shape %s: %s\n", f.about, m.Kind, m.Entries[0].Shape, m.Why)
			last := ""
			for _, l := range libraries {
				text := ""
				for i, e := range m.Entries {
					text += fmt.Sprintf("\nrank %d %s %s\n", i, e.Host, e.Addr)
					for _, v := range envgen.Env(envgen.Place{Inventory: views[i].Inventory, Entry: e, Nodes: len(views), NCCL: &l.version, SubnetAware: l.fork}) {
						text += fmt.Sprintf("  %s=%s\t# %s\n", v.Name, v.Value, v.Source)
					}
				}
				if text == last {
					fmt.Fprintf(&b, "\n== %s: as before\n", l)
					continue
				}
				fmt.Fprintf(&b, "\n== %s\n%s", l, text)
				last = text
			}
			golden(t, "env/"+name+".golden", b.String())
		})
	}
}

func valuesOf(vars []envgen.Var) map[string]string {
	m := map[string]string{}
	for _, v := range vars {
		m[v.Name] = v.Value
	}
	return m
}

// The facts file's table of values by topology, row by row: the goldens could all be wrong together.
func TestEnvTable(t *testing.T) {
	all := "=rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1"
	for name, want := range map[string]map[string]string{
		"pair":             {"NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0", "NCCL_SOCKET_IFNAME": "=enp1s0f0np0", "NCCL_IB_SUBNET_AWARE_ROUTING": "", "NCCL_IB_MERGE_NICS": ""},
		"pair-two-cables":  {"NCCL_IB_HCA": all, "NCCL_SOCKET_IFNAME": "=enp1s0f0np0", "NCCL_IB_MERGE_NICS": ""},
		"mixed":            {"NCCL_IB_HCA": "=rocep1s0f0", "GLOO_SOCKET_IFNAME": "enp1s0f0np0"},
		"switch":           {"NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1", "UCX_NET_DEVICES": "enp1s0f1np1"},
		"ring3":            {"NCCL_IB_HCA": all, "NCCL_NET": "IB", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_SUBNET_PREFIX_LEN": "24", "NCCL_IB_MERGE_NICS": "1", "NCCL_ALGO": "", "NCCL_IB_GID_INDEX": "", "NCCL_SOCKET_IFNAME": "=enP7s7", "GLOO_SOCKET_IFNAME": "enP7s7", "OMPI_MCA_btl_tcp_if_include": "enP7s7", "UCX_NET_DEVICES": "enP7s7"},
		"ring3-by-address": {"NCCL_IB_HCA": all, "NCCL_IB_SUBNET_AWARE_ROUTING": "1"},
		"ring5":            {"NCCL_IB_HCA": all, "NCCL_IB_SUBNET_PREFIX_LEN": "30", "NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "=enP7s7"},
		"chain":            {"NCCL_NET": "", "NCCL_IB_HCA": "", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=enP7s7"},
		"no-fabric":        {"NCCL_NET": "", "NCCL_IB_HCA": "", "NCCL_IB_DISABLE": ""},
	} {
		f := load(t, name+".txt")
		topo := derive(t, f.in)
		views := inOrder(topo, f.in)
		m, err := topo.Meet(views)
		if err != nil {
			t.Fatal(err)
		}
		got := valuesOf(envgen.Env(envgen.Place{Inventory: views[0].Inventory, Entry: m.Entries[0], Nodes: len(views), NCCL: &envgen.NCCLVersion{Major: 2, Minor: 30, Patch: 7}}))
		for k, w := range want {
			if got[k] != w {
				t.Errorf("%s: %s = %q, want %q", name, k, got[k], w)
			}
		}
	}
}

// Each node gets the names of its own devices, where the cable is in another port of each and the names differ.
func TestEnvOfUnlikeNodes(t *testing.T) {
	f := load(t, "pair-unlike-ports.txt")
	topo := derive(t, f.in)
	views := inOrder(topo, f.in)
	m, err := topo.Meet(views)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]string{
		{"NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0", "NCCL_SOCKET_IFNAME": "=enp1s0f0np0", "UCX_NET_DEVICES": "enp1s0f0np0"},
		{"NCCL_IB_HCA": "=mlx5_1,mlx5_3", "NCCL_SOCKET_IFNAME": "=eth3", "UCX_NET_DEVICES": "eth3"},
	} {
		for _, l := range allLibraries() {
			got := valuesOf(envgen.Env(l.place(views[i].Inventory, m.Entries[i], 2)))
			for k, w := range want {
				if got[k] != w {
					t.Errorf("%s, %v: %s = %q, want %q", views[i].Host, l, k, got[k], w)
				}
			}
		}
	}
}

// A ring without a library that can route must not touch RoCE: it would hang in its first connection.
func TestEnvRingNeedsRouting(t *testing.T) {
	f := load(t, "ring3.txt")
	topo := derive(t, f.in)
	views := inOrder(topo, f.in)
	m, err := topo.Meet(views)
	if err != nil {
		t.Fatal(err)
	}
	place := envgen.Place{Inventory: views[0].Inventory, Entry: m.Entries[0], Nodes: 3}
	for name, tc := range map[string]struct {
		nccl *envgen.NCCLVersion
		fork bool
		want map[string]string
	}{
		"unknown":     {nil, false, map[string]string{"NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "1"}},
		"2.30.6":      {&envgen.NCCLVersion{Major: 2, Minor: 30, Patch: 6}, false, map[string]string{"NCCL_NET": "", "NCCL_IB_DISABLE": "1", "NCCL_IB_SUBNET_AWARE_ROUTING": ""}},
		"2.28.9 fork": {&envgen.NCCLVersion{Major: 2, Minor: 28, Patch: 9}, true, map[string]string{"NCCL_NET": "IB", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "0"}},
		"2.31.0":      {&envgen.NCCLVersion{Major: 2, Minor: 31}, false, map[string]string{"NCCL_NET": "IB", "NCCL_IB_MERGE_NICS": "1"}},
		"fork of old": {&envgen.NCCLVersion{Major: 2, Minor: 20}, true, map[string]string{"NCCL_IB_GID_INDEX": ""}},
	} {
		place.NCCL, place.SubnetAware = tc.nccl, tc.fork
		got := valuesOf(envgen.Env(place))
		for k, w := range tc.want {
			if got[k] != w {
				t.Errorf("NCCL %s: %s = %q, want %q", name, k, got[k], w)
			}
		}
	}
}

// Jobs take parts of a cluster: neighbours of a ring are a pair, others meet on management.
func TestMeetParts(t *testing.T) {
	for name, tc := range map[string]struct {
		file  string
		hosts []string
		kind  envgen.Network
		shape envgen.Shape
		paths int // of the first node
		why   string
	}{
		"one of a ring":               {"ring5.txt", []string{"bee"}, envgen.NetworkManagement, envgen.ShapeSingle, 0, "alone"},
		"neighbours of a ring":        {"ring5.txt", []string{"bee", "dog"}, envgen.NetworkFabric, envgen.ShapePair, 2, "a pair: all 2 nodes"},
		"opposites of a ring":         {"ring5.txt", []string{"bee", "cat"}, envgen.NetworkManagement, envgen.ShapeIslands, 0, "no subnet between"},
		"an arc of a ring":            {"ring5.txt", []string{"ant", "dog", "bee"}, envgen.NetworkManagement, envgen.ShapeMixed, 0, "lacks bee"},
		"the whole ring":              {"ring5.txt", nil, envgen.NetworkManagement, envgen.ShapeRing, 4, "a ring of 5"},
		"part of a switch":            {"switch.txt", []string{"spark1", "spark3"}, envgen.NetworkFabric, envgen.ShapeSwitch, 2, "switch CRS812"},
		"one island":                  {"islands.txt", []string{"spark2", "spark4"}, envgen.NetworkFabric, envgen.ShapePair, 2, "10.10.3.0/24"},
		"two islands":                 {"islands.txt", []string{"spark1", "spark2"}, envgen.NetworkManagement, envgen.ShapeIslands, 0, "management"},
		"the switch's part of blend":  {"blend.txt", []string{"spark1", "spark2", "spark3"}, envgen.NetworkFabric, envgen.ShapeMixed, 2, "192.168.177.0/24"},
		"a ring without addresses":    {"findings/ring-unaddressed.txt", nil, envgen.NetworkManagement, envgen.ShapeRing, 0, "the ring's cable between spark3 and spark1 has no RoCE subnet"},
		"a duplicate spoils one lane": {"findings/duplicate-address.txt", nil, envgen.NetworkFabric, envgen.ShapePair, 1, "10.10.1.0/24"},
		"addresses may not lie":       {"findings/cable-swapped.txt", nil, envgen.NetworkManagement, envgen.ShapePair, 0, "no subnet"},
	} {
		t.Run(name, func(t *testing.T) {
			file := tc.file
			if file == "findings/ring-unaddressed.txt" {
				file = "ring3.txt"
			}
			f := load(t, file)
			if tc.file != file {
				for _, host := range []string{"spark1/1", "spark3/0"} {
					if err := f.line([]string{"set", host, "addr="}); err != nil {
						t.Fatal(err)
					}
				}
			}
			topo := derive(t, f.in)
			m, err := topo.Meet(inOrder(topo, f.in, tc.hosts...))
			if err != nil {
				t.Fatal(err)
			}
			e := m.Entries[0]
			if m.Kind != tc.kind || e.Shape != tc.shape || len(e.Paths) != tc.paths || !strings.Contains(m.Why, tc.why) {
				t.Errorf("%s, %s, %d paths, %q; want %s, %s, %d, %q", m.Kind, e.Shape, len(e.Paths), m.Why, tc.kind, tc.shape, tc.paths, tc.why)
			}
		})
	}
}

// Where addresses alone speak, the topology meets where envgen.Meet does: the two must not disagree about a launch.
func TestMeetAgreesWithoutCables(t *testing.T) {
	for _, name := range clusters(t) {
		f := load(t, name+".txt")
		f.in.Cables = nil
		for i := range f.in.Nodes {
			f.in.Nodes[i].Inventory.Cabling = nil
		}
		topo := derive(t, f.in)
		views := inOrder(topo, f.in)
		want, err := envgen.Meet(views)
		if err != nil {
			t.Fatal(err)
		}
		got, err := topo.Meet(views)
		if err != nil {
			t.Fatal(err)
		}
		if got.Kind != want.Kind || got.Subnet != want.Subnet {
			t.Errorf("%s: %s in %s, want %s in %s", name, got.Kind, got.Subnet, want.Kind, want.Subnet)
		}
		for i := range want.Entries {
			if topo.Shape == envgen.ShapeRing {
				continue // Meet alone knows no rings, and gives no paths
			}
			got.Entries[i].Shape = ""
			if diff := cmp.Diff(want.Entries[i], got.Entries[i], byValue); diff != "" {
				t.Errorf("%s (-Meet +Topology.Meet):\n%s", name, diff)
			}
		}
	}
}
