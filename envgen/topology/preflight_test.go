package topology

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

// preflight evaluates a job on the hosts of a fixture (all, where none are named) as a leader does: CODE@HOST/SLOT, each
// once.
func preflight(t *testing.T, f *fixture, hosts ...string) (refused, warned []string) {
	t.Helper()
	topo := derive(t, f.in)
	views := inOrder(topo, f.in, hosts...)
	m, err := topo.Meet(views)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range Preflight(topo, views, m.Entries) {
		list := &refused
		if x.Severity != envgen.SeverityError {
			list = &warned
		}
		if where := x.Code + "@" + x.Host + "/" + x.Port; !slices.Contains(*list, where) {
			*list = append(*list, where)
		}
	}
	return refused, warned
}

const (
	p0 = "/01:00.0"
	p1 = "/01:00.1"
)

type preflightRow struct {
	name  string
	file  string
	lines []string // changes
	hosts []string // all, where none are named
	want  []string // refused by
	warn  []string
}

// What refuses a job on all or some nodes of a cluster, and what only warns.
var preflightTable = []preflightRow{
	{name: "a sound pair", file: "pair.txt"},
	{name: "a sound ring", file: "ring3.txt"},
	{name: "a sound switch", file: "switch.txt"},
	{name: "no RDMA device anywhere", file: "no-fabric.txt"},
	{name: "InfiniBand", file: "infiniband.txt"},
	{name: "devices that never had a link", file: "single.txt", lines: []string{"node spark2 172.16.10.161/24"}},
	{name: "a machine that is no Spark beside two", file: "pair.txt", lines: []string{"node laptop 172.16.10.9/24 bare"}},
	{name: "two islands", file: "islands.txt", hosts: []string{"spark1", "spark2"}},
	{name: "opposites of a ring", file: "ring5.txt", hosts: []string{"bee", "cat"}},
	{name: "what costs speed", file: "pair.txt", lines: []string{"set spark1/0 mtu=1500", "set spark1/0 speed=100000", "set spark2/0a pcie=32x2"}},
	{name: "second addresses", file: "pair.txt", lines: []string{"set spark1/0a also=10.10.7.1/24"}},

	{name: "the pair's cable out", file: "pair.txt", lines: []string{"uncable spark1/0", "set spark1/0 link=pulled", "set spark2/0 link=pulled"},
		want: []string{"no-link@spark1" + p0, "no-link@spark2" + p0}},
	{name: "the pair's cable out, a job on one node", file: "pair.txt", hosts: []string{"spark1"},
		lines: []string{"set spark1/0 link=pulled", "set spark2/0 link=pulled"}},
	{name: "one cable of two out", file: "pair-two-cables.txt", lines: []string{"uncable spark1/1", "set spark1/1 link=pulled", "set spark2/1 link=pulled"},
		warn: []string{"no-link@spark1" + p1, "no-link@spark2" + p1}},
	{name: "a cable of the ring out", file: "ring3.txt", lines: []string{"uncable spark1/0", "set spark1/0 link=pulled", "set spark2/1 link=pulled"},
		want: []string{"no-link@spark1" + p0, "no-link@spark2" + p1}},
	{name: "a cable of the ring out, its two nodes", file: "ring3.txt", hosts: []string{"spark1", "spark2"},
		lines: []string{"uncable spark1/0", "set spark1/0 link=pulled", "set spark2/1 link=pulled"},
		want:  []string{"no-link@spark1" + p0, "no-link@spark2" + p1}},
	{name: "a cable of the ring out, two others", file: "ring3.txt", hosts: []string{"spark2", "spark3"},
		lines: []string{"uncable spark1/0", "set spark1/0 link=pulled", "set spark2/1 link=pulled"}},
	{name: "a node's cable to the switch out", file: "switch.txt", lines: []string{"uncable spark3/0", "set spark3/0 link=pulled"},
		want: []string{"no-link@spark3" + p0}},
	{name: "a node's cable to the switch out, the others", file: "switch.txt", hosts: []string{"spark1", "spark4"},
		lines: []string{"uncable spark3/0", "set spark3/0 link=pulled"}},
	{name: "a dead cable that has no addresses", file: "pair-unaddressed.txt", lines: []string{"set spark1/0 link=pulled", "set spark2/1 link=pulled"},
		want: []string{"no-link@spark1" + p0, "no-link@spark2" + p1}},
	{name: "set down", file: "findings/no-link.down.txt", want: []string{"no-link@spark1" + p0, "no-link@spark2" + p0}},

	{name: "no addresses, the cable is there", file: "pair-unaddressed.txt", want: []string{"no-ipv4@spark1" + p0, "no-ipv4@spark2" + p1}},
	{name: "no address at one end, no probe", file: "pair-by-address.txt", lines: []string{"set spark2/1 addr="}, want: []string{
		"no-ipv4@spark2" + p1, "peer-not-in-subnet@spark1" + p1}},
	{name: "no address of one twin", file: "findings/no-ipv4.txt", warn: []string{"no-ipv4@spark2" + p0}},
	{name: "no RoCE v2 GID", file: "pair.txt", lines: []string{"set spark2/0 gids=none"}, want: []string{"no-rocev2-gid@spark2" + p0}},
	{name: "RDMA stays down", file: "findings/carrier-not-active.txt", want: []string{"carrier-not-active@spark2" + p0}},
	{name: "RDMA of one twin stays down", file: "findings/carrier-not-active.one-twin.txt", warn: []string{"carrier-not-active@spark2" + p0}},
	{name: "one twin down, the other without address", file: "pair.txt", lines: []string{"set spark2/0b up=no", "set spark2/0a addr="},
		want: []string{"no-ipv4@spark2" + p0, "twin-down@spark2" + p0}},
	{name: "interfaces in another namespace", file: "pair.txt", lines: []string{"set spark1/0 nonic"}, want: []string{"no-interface@spark1" + p0}},
	{name: "no driver where a cable is", file: "pair.txt", lines: []string{"node spark3 172.16.10.162/24 nodriver", "port spark3/0 -"},
		want: []string{"no-rdma-device@spark3/"}},
	{name: "--fabric-port of nothing", file: "pair.txt", lines: []string{"fabric-port spark1 rocep9s9"},
		want: []string{"fabric-port-unknown@spark1/"}},
	{name: "--fabric-port of one port too many", file: "findings/fabric-port-unknown.txt", warn: []string{"fabric-port-unknown@spark1/"}},

	{name: "one address twice, one way left", file: "findings/duplicate-address.txt", warn: []string{"duplicate-address@spark2" + p0}},
	{name: "the address of one is another one's too, which is not of the job", file: "switch-by-address.txt",
		lines: []string{"set spark3/0a addr=192.168.177.12/24"}, hosts: []string{"spark1", "spark2"}, warn: []string{"duplicate-address@spark3" + p0}},
	{name: "addresses twice, no way left", file: "pair.txt", lines: []string{"set spark2/0a addr=10.10.1.11/24", "set spark2/0b addr=10.10.2.11/24"},
		want: []string{"duplicate-address@spark2" + p0}},
	{name: "prefix lengths differ", file: "pair.txt", lines: []string{"set spark2/0a addr=10.10.1.12/28", "set spark2/0b addr=10.10.2.12/28"},
		want: []string{"prefix-unequal@spark1" + p0, "prefix-unequal@spark2" + p0}},
	{name: "nobody in the subnet", file: "unknown.txt", want: []string{"peer-not-in-subnet@spark1" + p0, "peer-not-in-subnet@spark2" + p0}},
	{name: "link-local on two ports", file: "findings/link-local-ambiguous.txt", want: []string{
		"link-local-ambiguous@spark1" + p0, "link-local-ambiguous@spark1" + p1, "link-local-ambiguous@spark2" + p0, "link-local-ambiguous@spark2" + p1,
		"no-ipv4@spark1" + p0, "no-ipv4@spark1" + p1, "no-ipv4@spark2" + p0, "no-ipv4@spark2" + p1}},
	{name: "one subnet on two links", file: "findings/subnet-on-two-links.txt", want: []string{"subnet-on-two-links@spark2" + p0}},
	{name: "one subnet on two links, one of them", file: "findings/subnet-on-two-links.txt", hosts: []string{"spark1", "spark3"}},
	{name: "the subnet of a bridge, in use", file: "findings/overlaps-bridge.txt", want: []string{"overlaps-bridge@spark1" + p0}},
	{name: "the subnet of a bridge, not in use", file: "findings/overlaps-bridge.txt", hosts: []string{"spark2"}},
	{name: "the subnet of management", file: "findings/overlaps-management.txt", want: []string{
		"overlaps-management@spark1" + p0, "overlaps-management@spark2" + p0}},
	{name: "two ports in one subnet", file: "findings/ports-one-subnet.txt", want: []string{"ports-one-subnet@spark1" + p1, "ports-one-subnet@spark2" + p1}},
	{name: "subnets crossed", file: "findings/subnet-order.txt", want: []string{"subnet-order@spark2/"}},

	{name: "a swapped cable", file: "findings/cable-swapped.txt", want: []string{"cable-swapped@spark2" + p0, "cable-swapped@spark2" + p1}},
	{name: "a ring's swapped cables", file: "findings/cable-swapped.ring.txt", want: []string{"cable-swapped@spark3" + p0, "cable-swapped@spark3" + p1}},
	{name: "a cable from a node to itself", file: "findings/cable-loop.txt", lines: []string{"node spark2 172.16.10.161/24", "port spark2/0 - -", "probe spark2"},
		want: []string{"cable-loop@spark1" + p1, "no-ipv4@spark1" + p0, "no-ipv4@spark1" + p1, "no-ipv4@spark2" + p0, "no-neighbour@spark2" + p0}},
	{name: "a clone behind one node", file: "findings/cloned-node.txt", warn: []string{"cloned-node@spark2" + p0}},
	{name: "a clone in place of the peer", file: "pair.txt", lines: []string{"uncable spark1/0", "set spark2/0a clone"}, want: []string{
		"cloned-node@spark2" + p0, "no-neighbour@spark1" + p0, "no-neighbour@spark2" + p0}},
	{name: "the probe hears nobody", file: "pair.txt", lines: []string{"uncable spark1/0"},
		want: []string{"no-neighbour@spark1" + p0, "no-neighbour@spark2" + p0}},
	{name: "a crossed ring", file: "findings/ring-miswired.txt", want: []string{"ring-miswired@spark2" + p0}},
	{name: "a crossed ring, two neighbours", file: "findings/ring-miswired.txt", hosts: []string{"spark1", "spark2"}},
	{name: "a chain with nothing broken", file: "chain.txt", lines: []string{"set spark1/1 addr=", "set spark3/0 addr="}},
}

func TestPreflight(t *testing.T) {
	for _, tt := range preflightTable {
		t.Run(tt.name, func(t *testing.T) {
			refused, warned := preflight(t, load(t, tt.file, tt.lines...), tt.hosts...)
			slices.Sort(refused)
			slices.Sort(warned)
			if diff := cmp.Diff(tt.want, refused); diff != "" {
				t.Errorf("refused by (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.warn, warned); diff != "" {
				t.Errorf("warned of (-want +got):\n%s", diff)
			}
		})
	}
}

// Every code has its place in the table of bearings, and every one that may refuse a job does so in a row above.
func TestPreflightKnowsEveryCode(t *testing.T) {
	for _, code := range Codes() {
		b, ok := impacts[code]
		if !ok {
			t.Errorf("%s has no bearing", code)
		}
		shown := slices.ContainsFunc(preflightTable, func(row preflightRow) bool {
			return slices.ContainsFunc(row.want, func(w string) bool { return strings.HasPrefix(w, code+"@") })
		})
		if b != impactNone && !shown {
			t.Errorf("%s refuses nothing in the table", code)
		}
		if b == impactNone && shown {
			t.Errorf("%s refuses, and is said not to", code)
		}
	}
	if len(impacts) != len(Codes()) {
		t.Errorf("%d bearings for %d codes", len(impacts), len(Codes()))
	}
}

// No job on one node is refused, whatever is wrong.
func TestPreflightLetsOneNodeRun(t *testing.T) {
	files, err := filepath.Glob("testdata/findings/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		f := load(t, filepath.Join("findings", filepath.Base(file)))
		if refused, warned := preflight(t, f, f.in.Nodes[0].Host); len(refused)+len(warned) > 0 {
			t.Errorf("%s: a job on %s is told %v %v", file, f.in.Nodes[0].Host, refused, warned)
		}
	}
}

// Servers whose LAN is a ConnectX and whose RDMA driver is not loaded were never meant to have a fabric.
func TestPreflightConnectXOnTheLAN(t *testing.T) {
	tests := map[string]struct {
		lan  func(*envgen.NIC) // what it makes of the interface with the default route
		want []string
	}{
		"the LAN's":    {func(*envgen.NIC) {}, nil},
		"below a bond": {func(n *envgen.NIC) { n.PCI, n.PCIVendor, n.Kind, n.Physical = nil, "", "bond", false }, nil},
		"beside the LAN's": {func(n *envgen.NIC) { n.PCI, n.PCIVendor, n.MAC = nil, "", "02:00:00:00:00:01" },
			[]string{"no-rdma-device@a/", "no-rdma-device@b/"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fixture{}
			for i, host := range []string{"a", "b"} {
				n := newNode([]string{host, fmt.Sprintf("172.16.0.%d/24", i+1), "bare"})
				port := envgen.NIC{Name: "ens1np0", PCI: pci("0000:3b:00.0"), PCIVendor: envgen.VendorMellanox, MAC: fmt.Sprintf("02:00:00:00:01:0%d", i),
					MTU: 1500, Up: true, Carrier: new(true), Kind: "device", Physical: true}
				at := slices.IndexFunc(n.Inventory.NICs, func(n envgen.NIC) bool { return n.DefaultRoute })
				wired := &n.Inventory.NICs[at]
				wired.MAC, wired.PCI, wired.PCIVendor = port.MAC, port.PCI, port.PCIVendor
				if tt.lan(wired); wired.PCIVendor == "" {
					n.Inventory.NICs = append(n.Inventory.NICs, port)
				}
				f.in.Nodes = append(f.in.Nodes, n)
			}
			refused, _ := preflight(t, f)
			if diff := cmp.Diff(tt.want, refused); diff != "" {
				t.Errorf("refused by (-want +got):\n%s", diff)
			}
		})
	}
}

// Both hosts that have an address are known from what is found of one of them, and no third one.
func TestSameAddress(t *testing.T) {
	f := load(t, "findings/duplicate-address.txt")
	i := slices.IndexFunc(derive(t, f.in).Findings, func(f envgen.Finding) bool { return f.Code == CodeDuplicateAddress })
	if i < 0 {
		t.Fatal("there is none")
	}
	for host, want := range map[string]bool{"spark1": true, "spark2": true, "spark": false, "spark3": false} {
		if got := SameAddress(derive(t, f.in).Findings[i], host); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
}
