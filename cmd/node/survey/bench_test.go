package survey

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/workloads"
)

// BenchmarkPlace plans 10,000 ranks on 100 nodes at one switch, and works out for each node
// what it is told and for each rank its command and every variable.
//
//	go test ./cmd/node/survey -run NONE -bench Place
func BenchmarkPlace(b *testing.B) {
	const nodes, perNode = 100, 100
	var roster rendezvous.Roster
	for n := range byte(nodes) {
		mgmt, fabric := netip.AddrFrom4([4]byte{10, 0, 0, n}), netip.AddrFrom4([4]byte{192, 168, 100, n})
		nic := envgen.NIC{Name: "enp1s0f0np0", Up: true, Carrier: new(true), PCI: &envgen.PCIAddress{Bus: 1},
			PCIVendor: envgen.VendorMellanox, Addresses: []netip.Prefix{netip.PrefixFrom(fabric, 24)}}
		hca := envgen.HCA{Name: "rocep1s0f0", PCI: nic.PCI, State: envgen.StateActive, LinkLayer: envgen.LayerEthernet,
			Netdev: nic.Name, GIDs: []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Netdev: nic.Name,
				Addr: netip.AddrFrom16(fabric.As16())}}}
		host := fmt.Sprintf("spark%d", n)
		roster = append(roster, rendezvous.Member{Ready: true, Boot: "b", Node: rendezvous.Node{
			ID: launcher.NodeID(host), Host: host, Addr: netip.AddrPortFrom(mgmt, 7940)},
			Inventory: envgen.Inventory{Host: host, NICs: []envgen.NIC{nic}, Devices: []envgen.HCA{hca}}})
	}
	request := workloads.Request{Job: launcher.Spec{ID: "abcd234567", Nodes: nodes}, RanksPerNode: perNode,
		Workdir: "/", Environ: []string{"PATH=/usr/bin:/bin"}, Args: []string{"true"}}
	exec, err := workloads.Find(workloads.All(), "exec")
	if err != nil {
		b.Fatal(err)
	}
	spec, err := exec.Spec(request)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		topology, err := Rules{}.Derive(roster.Views())
		if err != nil {
			b.Fatal(err)
		}
		plan, err := rendezvous.MakePlan(spec, roster, topology, 1)
		if err != nil {
			b.Fatal(err)
		}
		for i := range plan.Nodes {
			as := plan.Assignment(spec, i)
			if _, err := Settings(roster[i].Inventory, as); err != nil {
				b.Fatal(err)
			}
			for local := range as.Ranks {
				_, st, placement := as.Local(local)
				for _, v := range st.Env {
					if _, err := placement.Resolve(v.Value); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := placement.Argv(st); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()*1000/float64(b.N), "ms")
}
