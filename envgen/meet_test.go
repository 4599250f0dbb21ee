package envgen

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// clusters are the pictures seen in the field: each has a golden with the meeting and every node's variables.
var clusters = map[string]struct {
	nodes []Inventory
	nccl  *NCCLVersion
}{
	"pair-one-cable": {nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "192.168.100.11/24", "192.168.101.11/24"),
		spark("spark2", "172.16.10.161/24", "192.168.100.12/24", "192.168.101.12/24"),
	}},
	"pair-two-cables": {nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "192.168.100.11/24", "192.168.101.11/24", "192.168.102.11/24", "192.168.103.11/24"),
		spark("spark2", "172.16.10.161/24", "192.168.100.12/24", "192.168.101.12/24", "192.168.102.12/24", "192.168.103.12/24"),
	}},
	"pair-unlike-ports": {nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "192.168.100.11/24", "192.168.101.11/24"),
		spark("spark2", "172.16.10.161/24", "", "", "192.168.100.12/24", "192.168.101.12/24"),
	}},
	"pair-mlx5-names": {nodes: []Inventory{
		machine("spark1", "172.16.10.160/24",
			fabricDev{hca: "mlx5_0", nic: "eth2", pci: "0000:01:00.0", addrs: []string{"192.168.100.11/24"}},
			fabricDev{hca: "mlx5_2", nic: "eth4", pci: "0002:01:00.0", addrs: []string{"192.168.101.11/24"}}),
		spark("spark2", "172.16.10.161/24", "192.168.100.12/24", "192.168.101.12/24"),
	}},
	"pair-link-local": {nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "169.254.17.1/16"),
		spark("spark2", "172.16.10.161/24", "", "", "169.254.99.2/16"),
	}},
	"pair-link-local-two-cables": {nodes: []Inventory{ // nothing says which cable leads where
		spark("spark1", "172.16.10.160/24", "169.254.17.1/16", "", "169.254.18.1/16"),
		spark("spark2", "172.16.10.161/24", "169.254.99.2/16", "", "169.254.98.2/16"),
	}},
	"pair-twin-without-address": {nodes: []Inventory{
		machine("spark1", "172.16.10.160/24",
			fabricDev{hca: "rocep1s0f0", nic: "enp1s0f0np0", pci: "0000:01:00.0", addrs: []string{"192.168.100.11/24"}},
			fabricDev{hca: "roceP2p1s0f0", nic: "enP2p1s0f0np0", pci: "0002:01:00.0", cabled: true}),
		spark("spark2", "172.16.10.161/24", "192.168.100.12/24", "192.168.101.12/24"),
	}},
	"pair-twins-in-one-subnet": {nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "192.168.100.11/24", "192.168.100.21/24"),
		spark("spark2", "172.16.10.161/24", "192.168.100.12/24", "192.168.100.22/24"),
	}},
	"pair-duplicate-address": {nodes: []Inventory{ // the first subnet is spoilt, the second serves
		spark("spark1", "172.16.10.160/24", "192.168.100.11/24", "192.168.101.11/24"),
		spark("spark2", "172.16.10.161/24", "192.168.100.11/24", "192.168.101.12/24"),
	}},
	"pair-only-duplicates": {nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "192.168.100.11/24"),
		spark("spark2", "172.16.10.161/24", "192.168.100.11/24"),
	}},
	"three-link-local": {nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "169.254.17.1/16"),
		spark("spark2", "172.16.10.161/24", "169.254.17.2/16"),
		spark("spark3", "172.16.10.162/24", "169.254.17.3/16"),
	}},
	"pair-cable-pulled-on-one": {nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "192.168.100.11/24"),
		change(spark("spark2", "172.16.10.161/24", "192.168.100.12/24"), "enp1s0f0np0", func(n *NIC) { n.Carrier = new(false) }),
	}},
	"pair-mixed-lan": {nodes: []Inventory{ // port 1 of both leads to the LAN and carries the default route
		change(spark("spark1", "192.168.0.10/24", "10.0.0.1/24", "", "192.168.0.188/24", "192.168.0.189/24"), "enp1s0f1np1",
			func(n *NIC) { n.DefaultRoute = true }),
		change(spark("spark2", "192.168.0.11/24", "10.0.0.2/24", "", "192.168.0.218/24", "192.168.0.219/24"), "enp1s0f1np1",
			func(n *NIC) { n.DefaultRoute = true }),
	}},
	"pair-nccl-2.20": {nccl: &NCCLVersion{2, 20, 5}, nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "192.168.100.11/24", "192.168.101.11/24"),
		// A second address on the primary shifts its row: no index is right for both twins.
		machine("spark2", "172.16.10.161/24",
			fabricDev{hca: "rocep1s0f0", nic: "enp1s0f0np0", pci: "0000:01:00.0", addrs: []string{"10.9.9.9/24", "192.168.100.12/24"}},
			fabricDev{hca: "roceP2p1s0f0", nic: "enP2p1s0f0np0", pci: "0002:01:00.0", addrs: []string{"192.168.101.12/24"}}),
	}},
	"pair-infiniband": {nodes: []Inventory{infiniband("big1", "172.16.10.160/24"), infiniband("big2", "172.16.10.161/24")}},
	"three-on-a-switch": {nodes: []Inventory{
		spark("spark1", "172.16.10.160/24", "", "", "192.168.177.11/24", "192.168.178.11/24"),
		spark("spark2", "172.16.10.161/24", "", "", "192.168.177.12/24", "192.168.178.12/24"),
		spark("spark3", "172.16.10.162/24", "192.168.177.13/24", "192.168.178.13/24"),
	}},
	"four-without-a-common-subnet": {nodes: []Inventory{ // a ring of four
		spark("spark1", "172.16.10.160/24", "192.168.1.11/24", "192.168.11.11/24", "192.168.4.11/24", "192.168.14.11/24"),
		spark("spark2", "172.16.10.161/24", "192.168.2.12/24", "192.168.12.12/24", "192.168.1.12/24", "192.168.11.12/24"),
		spark("spark3", "172.16.10.162/24", "192.168.3.13/24", "192.168.13.13/24", "192.168.2.13/24", "192.168.12.13/24"),
		spark("spark4", "172.16.10.163/24", "192.168.4.14/24", "192.168.14.14/24", "192.168.3.14/24", "192.168.13.14/24"),
	}},
	"no-hca":            {nodes: []Inventory{machine("box1", "10.0.0.1/24"), machine("box2", "10.0.0.2/24")}},
	"single":            {nodes: []Inventory{spark("spark1", "172.16.10.160/24", "192.168.100.11/24", "192.168.101.11/24")}},
	"single-no-network": {nodes: []Inventory{machine("laptop", "")}},
}

func infiniband(host, mgmt string) Inventory {
	inv := machine(host, mgmt, fabricDev{hca: "mlx5_0", nic: "ib0", pci: "0000:18:00.0", cabled: true})
	return changeHCA(inv, "mlx5_0", func(h *HCA) { h.LinkLayer = LayerInfiniBand })
}

func views(nodes []Inventory) []NodeView {
	var vs []NodeView
	for _, inv := range nodes {
		vs = append(vs, view(inv))
	}
	return vs
}

func TestMeetAndEnvGoldens(t *testing.T) {
	for name, c := range clusters {
		t.Run(name, func(t *testing.T) {
			m, err := Meet(views(c.nodes))
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			fmt.Fprintf(&out, "kind: %s\nsubnet: %s\nwhy: %s\n", m.Kind, m.Subnet, m.Why)
			for i, e := range m.Entries {
				fmt.Fprintf(&out, "\n%s %s %s\n", e.Host, e.Addr, e.NIC)
				for _, p := range e.Paths {
					fmt.Fprintf(&out, "  path %s %s %s %s in %s\n", p.HCA, p.Slot, p.NIC, p.Addr, p.Subnet)
				}
				for _, v := range Env(Place{Inventory: c.nodes[i], Entry: e, Nodes: len(c.nodes), NCCL: c.nccl}) {
					fmt.Fprintf(&out, "  %s=%s\t# %s\n", v.Name, v.Value, v.Source)
				}
			}
			golden(t, "meet/"+name, out.String())
		})
	}
}

// A node's part must not depend on where it stands in the list: ranks are given out in different orders.
func TestMeetIgnoresOrder(t *testing.T) {
	for name, c := range clusters {
		t.Run(name, func(t *testing.T) {
			nodes := views(c.nodes)
			want, err := Meet(nodes)
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for range 10 {
				rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
				got, err := Meet(nodes)
				if err != nil {
					t.Fatal(err)
				}
				slices.SortFunc(got.Entries, func(a, b Entry) int { return strings.Compare(a.Host, b.Host) })
				if diff := cmp.Diff(want.Entries, got.Entries, byValue); diff != "" {
					t.Fatalf("shuffled nodes meet differently (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// Losing a cable may end a meeting on the fabric, it must never make one.
func TestMeetWithoutACableInventsNothing(t *testing.T) {
	for name, c := range clusters {
		before, err := Meet(views(c.nodes))
		if err != nil {
			t.Fatal(err)
		}
		for i, inv := range c.nodes {
			for _, h := range inv.Devices {
				nodes := slices.Clone(c.nodes)
				nodes[i] = changeHCA(inv, h.Name, func(h *HCA) { h.State = StateDown })
				after, err := Meet(views(nodes))
				if err != nil {
					t.Fatal(err)
				}
				if before.Kind != NetworkFabric && after.Kind == NetworkFabric {
					t.Errorf("%s: without %s on %s the fabric joins all", name, h.Name, inv.Host)
				}
				for j, e := range after.Entries {
					for _, p := range e.Paths {
						if !slices.Contains(before.Entries[j].Paths, p) {
							t.Errorf("%s: without %s on %s, %s gains %v", name, h.Name, inv.Host, e.Host, p)
						}
					}
				}
			}
		}
	}
}

func TestMeetErrors(t *testing.T) {
	node := func(host, mgmt string) NodeView {
		v := NodeView{ID: host, Host: host, Inventory: machine(host, "")}
		if mgmt != "" {
			v.Mgmt = netip.MustParseAddr(mgmt)
		}
		return v
	}
	for name, tc := range map[string]struct {
		nodes     []NodeView
		want      []string
		noMeeting bool
	}{
		"none":             {nil, []string{"none chosen"}, true},
		"same id":          {[]NodeView{node("a", "10.0.0.1"), node("a", "10.0.0.2")}, []string{"same id a"}, false},
		"no management":    {[]NodeView{node("a", "10.0.0.1"), node("b", "")}, []string{"b has no management address", "--management", "no node has"}, true},
		"same address":     {[]NodeView{node("a", "10.0.0.1"), node("b", "10.0.0.1")}, []string{"a and b have the same management address 10.0.0.1"}, true},
		"loopback and not": {[]NodeView{node("a", "127.0.0.1"), node("b", "10.0.0.1")}, []string{"127.0.0.1", "one is loopback"}, true},
		"versions differ":  {[]NodeView{node("a", "fd00::1"), node("b", "10.0.0.1")}, []string{"different IP versions"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Meet(tc.nodes)
			if err == nil {
				t.Fatal("no error")
			}
			if errors.Is(err, ErrNoMeeting) != tc.noMeeting {
				t.Errorf("errors.Is(%v, ErrNoMeeting) = %v", err, !tc.noMeeting)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

// Several agents of one test machine have loopback addresses for management.
func TestMeetOnLoopback(t *testing.T) {
	nodes := []NodeView{
		{ID: "1", Host: "a", Mgmt: netip.MustParseAddr("127.0.0.5"), Inventory: machine("a", "")},
		{ID: "2", Host: "b", Mgmt: netip.MustParseAddr("127.0.0.6"), Inventory: machine("b", "")},
	}
	m, err := Meet(nodes)
	if err != nil {
		t.Fatal(err)
	}
	if m.Kind != NetworkManagement || m.Entries[1].Addr != nodes[1].Mgmt || m.Entries[1].NIC != "lo" || m.Subnet.String() != "127.0.0.0/8" {
		t.Errorf("got %+v", m)
	}
}
