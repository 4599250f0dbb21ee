package apptest

import (
	"context"
	"net/netip"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// FakeFabrics answers what the commands fabric and report ask agents.
type FakeFabrics struct {
	OnFollow func(ctx context.Context, try int, fn func(wire.Status) error) error
	Counts   wire.CountersResponse
	Evidence []wire.Evidence
	tries    int
}

func (f *FakeFabrics) Calls() []wire.Call {
	return []wire.Call{wire.Follow.Serve(f.follow), wire.Counters.Unary.Serve(f.counters), wire.Report.Serve(f.report)}
}

func (f *FakeFabrics) follow(ctx context.Context, _ wire.Caller, _ wire.Empty, fn func(wire.Status) error) error {
	f.tries++
	return f.OnFollow(ctx, f.tries, fn)
}

func (f *FakeFabrics) counters(context.Context, wire.Caller, wire.Empty) (wire.CountersResponse, error) {
	return f.Counts, nil
}

func (f *FakeFabrics) report(_ context.Context, _ wire.Caller, _ wire.Empty, fn func(wire.Evidence) error) error {
	for _, e := range f.Evidence {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// Spark is a machine with one port of two twins, cabled to peer; with an empty peer the
// port has no link.
func Spark(host, addr, peer string) wire.NodeStatus {
	carrier := peer != ""
	inv := envgen.Inventory{Host: host, Cabling: &envgen.Cabling{}, NICs: []envgen.NIC{
		{Name: "enP7s7", MAC: "02:00:00:00:00:" + addr, Up: true, Carrier: new(true), MTU: 1500, Physical: true,
			OperState: "up",
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0." + addr + "/24")}},
	}}
	for i, nic := range []string{"enp1s0f0np0", "enP2p1s0f0np0"} {
		pci := envgen.PCIAddress{Domain: uint32(2 * i), Bus: 1}
		subnet := []string{"192.168.177.", "192.168.178."}[i]
		state, oper := envgen.StateDown, "down"
		var speed *int
		if carrier {
			state, oper, speed = envgen.StateActive, "up", new(200000)
		}
		at := netip.MustParseAddr(subnet + addr)
		inv.NICs = append(inv.NICs, envgen.NIC{
			Name: nic, PCI: &pci, PCIVendor: envgen.VendorMellanox,
			MAC: "02:00:00:00:0" + string(rune('1'+i)) + ":" + addr, MTU: 9000,
			Up: true, Carrier: &carrier, SpeedMbps: speed, OperState: oper, Physical: true,
			Addresses: []netip.Prefix{netip.PrefixFrom(at, 24)},
		})
		inv.Devices = append(inv.Devices, envgen.HCA{
			Name: []string{"rocep1s0f0", "roceP2p1s0f0"}[i], PCI: &pci, State: state, LinkLayer: envgen.LayerEthernet,
			Netdev:   nic,
			Firmware: "28.45.4028", PCIeGTps: new(32.0), PCIeLanes: new(4), RateMbps: new(200000), Type: "MT4129",
			GIDs: []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Addr: netip.AddrFrom16(at.As16()), Netdev: nic}},
		})
		if carrier {
			inv.Cabling.Probed = append(inv.Cabling.Probed, nic)
			inv.Cabling.Sightings = append(inv.Cabling.Sightings, envgen.Sighting{NIC: nic, Slot: pci.Slot(),
				Peer: envgen.Neighbour{Node: "id-" + peer, Host: peer, NIC: nic, Slot: pci.Slot()}})
		}
	}
	return wire.NodeStatus{ID: launcher.NodeID("id-" + host), Host: host, Addr: netip.MustParseAddr("10.0.0." + addr),
		State: "ready", Inventory: inv}
}

// Pair is two Sparks with one cable, or with none.
func Pair(cabled bool) wire.Status {
	peers := []string{"", ""}
	if cabled {
		peers = []string{"spark2", "spark1"}
	}
	st := wire.Status{Cluster: "c", Self: "spark1", Leader: "spark1",
		Nodes: []wire.NodeStatus{Spark("spark1", "11", peers[0]), Spark("spark2", "12", peers[1])}}
	// A peer that was heard counts only under the MAC that it really has.
	for i := range st.Nodes {
		for j := range st.Nodes[i].Inventory.Cabling.Sightings {
			s := &st.Nodes[i].Inventory.Cabling.Sightings[j]
			far, _ := st.Nodes[1-i].Inventory.NIC(s.Peer.NIC)
			s.Peer.MAC = far.MAC
		}
	}
	return st
}

// StatusIs is a cluster that only answers status.
func StatusIs(st wire.Status, err error) *FakeCluster {
	return &FakeCluster{OnStatus: func(wire.StatusRequest) (wire.Status, error) { return st, err }}
}

// SweepHead is the head of sparkrun's own sweep.
const SweepHead = `# sparkrun sweep 1 torch=2.11.0 nccl=2.28.9 backend=nccl
# Collective test starting: all_gather
# Using devices
#  Rank  0 on spark1 device 0 NVIDIA GB10
#  Rank  1 on spark2 device 0 NVIDIA GB10
#       size         count      type   redop    root        time    algbw    busbw  #wrong
`

// SweepGood is a complete sweep of a pair at the expected rate.
const SweepGood = SweepHead + `   536870912      67108864     float    none      -1    11650.00   46.083   23.041       0
  4294967296     536870912     float    none      -1    93500.00   45.935   22.968       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 23.005
`
