package nccltest

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// A cluster of made-up Sparks: their ports cabled as told, with addresses on both twins.
type cluster struct {
	nodes  []topology.Node
	cables []envgen.Cable
}

var twinsOf = [2][2]struct{ hca, nic, pci string }{
	{{"rocep1s0f0", "enp1s0f0np0", "0000:01:00.0"}, {"roceP2p1s0f0", "enP2p1s0f0np0", "0002:01:00.0"}},
	{{"rocep1s0f1", "enp1s0f1np1", "0000:01:00.1"}, {"roceP2p1s0f1", "enP2p1s0f1np1", "0002:01:00.1"}},
}

func newCluster(t testing.TB, n int) *cluster {
	t.Helper()
	c := &cluster{}
	for i := range n {
		host := fmt.Sprintf("spark%d", i+1)
		mgmt := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		inv := envgen.Inventory{Host: host, NICs: []envgen.NIC{{
			Name: "enP7s7", MTU: 1500, Up: true, Carrier: new(true), Kind: "device", Physical: true,
			Addresses: []netip.Prefix{netip.PrefixFrom(mgmt, 24)},
		}}}
		for _, twins := range twinsOf {
			for _, d := range twins {
				addr, err := envgen.ParsePCIAddress(d.pci)
				if err != nil {
					t.Fatal(err)
				}
				inv.Devices = append(inv.Devices, envgen.HCA{
					Name: d.hca, PCI: &addr, LinkLayer: envgen.LayerEthernet, Netdev: d.nic, State: envgen.StateDown,
					PhysState: "Polling",
					PCIeGTps:  new(32.0), PCIeLanes: new(4),
				})
				inv.NICs = append(inv.NICs, envgen.NIC{
					Name: d.nic, PCI: &addr, PCIVendor: envgen.VendorMellanox, MTU: 9000, Up: true,
					Carrier: new(false), Kind: "device", Physical: true,
				})
			}
		}
		c.nodes = append(c.nodes, topology.Node{ID: host, Host: host, Mgmt: mgmt, Inventory: inv})
	}
	return c
}

// cable plugs port pa of node a into pb of b; net numbers the two subnets of its twins.
func (c *cluster) cable(a, pa, b, pb, net int) *cluster {
	for i, end := range [2][2]int{{a, pa}, {b, pb}} {
		for twin := range 2 {
			h, n := c.device(end[0], end[1], twin)
			ip := netip.AddrFrom4([4]byte{192, 168, byte(100 + 2*net + twin), byte(10*end[0] + i + 11)})
			h.State, h.PhysState = envgen.StateActive, "LinkUp"
			h.GIDs = []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Addr: netip.AddrFrom16(ip.As16()), Netdev: n.Name}}
			n.Carrier, n.SpeedMbps = new(true), new(200000)
			n.Addresses = []netip.Prefix{netip.PrefixFrom(ip, 24)}
		}
	}
	return c
}

func (c *cluster) device(node, port, twin int) (*envgen.HCA, *envgen.NIC) {
	inv := &c.nodes[node].Inventory
	d := twinsOf[port][twin]
	var h *envgen.HCA
	var n *envgen.NIC
	for i := range inv.Devices {
		if inv.Devices[i].Name == d.hca {
			h = &inv.Devices[i]
		}
	}
	for i := range inv.NICs {
		if inv.NICs[i].Name == d.nic {
			n = &inv.NICs[i]
		}
	}
	return h, n
}

func (c *cluster) each(fn func(h *envgen.HCA, n *envgen.NIC)) *cluster {
	for i := range c.nodes {
		for port := range 2 {
			for twin := range 2 {
				fn(c.device(i, port, twin))
			}
		}
	}
	return c
}

func (c *cluster) setting(t testing.TB, traffic ...nettest.Traffic) Setting {
	t.Helper()
	top, err := topology.Derive(topology.Input{Nodes: c.nodes, Cables: c.cables})
	if err != nil {
		t.Fatal(err)
	}
	s := Setting{Setting: nettest.Setting{Topology: top, Inventories: map[string]envgen.Inventory{}, Traffic: traffic}}
	for _, n := range c.nodes {
		s.Nodes = append(s.Nodes, n.ID)
		s.Inventories[n.ID] = n.Inventory
	}
	return s
}

func pair(t testing.TB) *cluster { return newCluster(t, 2).cable(0, 0, 1, 0, 0) }

// ring is three nodes, port 0 of each to port 1 of the next.
func ring(t testing.TB) *cluster {
	return newCluster(t, 3).cable(0, 0, 1, 1, 0).cable(1, 0, 2, 1, 1).cable(2, 0, 0, 1, 2)
}

const big = 16 << 30

// result is a right one, of one size.
func result(ranks int, bytes int64, bus float64) Table {
	t := Table{Tool: "nccl-tests 2.19.6", Op: "all_gather", Backend: "nccl", OutOfBounds: &Bounds{OK: true}}
	for r := range ranks {
		t.Devices = append(t.Devices, Device{Rank: r, Host: fmt.Sprintf("spark%d", r+1), Name: "NVIDIA GB10"})
	}
	p := Point{Micros: 1, Alg: bus * 2, Bus: bus, Wrong: new(0.0)}
	q := p
	t.Rows = []Row{{Bytes: bytes, Type: "float", Out: &p, In: &q}}
	return t
}

func ofLog(lines ...string) (l Log) {
	for _, text := range lines {
		l.Line(text)
	}
	return l
}

var (
	overRDMA = []string{
		"spark1:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB " +
			"enp1s0f0np0:192.168.100.11<0>",
		"spark2:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB " +
			"enp1s0f0np0:192.168.100.22<0>",
		"spark1:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0",
	}
	overTCP = []string{
		"spark1:1:1 [0] NCCL INFO NET/IB : No device found.",
		"spark1:1:1 [0] NCCL INFO NET/IB : Using [RO]; OOB enp1s0f0np0:192.168.100.11<0>",
		"spark1:1:1 [0] NCCL INFO NET/Socket : Using [0]enp1s0f0np0:192.168.100.11<0>",
		"spark1:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
	}
	overManagement = []string{
		"spark1:1:1 [0] NCCL INFO NET/Socket : Using [0]enP7s7:10.0.0.1<0>",
		"spark1:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
	}
	oneDevice = []string{
		"spark1:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB " +
			"enp1s0f0np0:192.168.100.11<0>",
		"spark2:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.100.22<0>",
		"spark1:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0",
	}
)

// What NCCL warns of, as 2.30 and 2.28 print it.
const (
	gotError = "[2026-03-01 12:00:00] spark1:605:611 [0] transport/net_ib/p2p.cc:688 (ncclIbCompletionEvent) NCCL " +
		"WARN NET/IB: Got completion from peer 192.168.100.12<4791> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=0 " +
		"vendor_err=129"
	noPath = "[2026-03-01 12:00:00] spark2:504:504 [0] misc/ibvwrap.cc:302 NCCL WARN Call to ibv_modify_qp failed " +
		"with 110 Connection timed out, on dev rocep1s0f0:1"
)

// Made-up results, each with the cause that a person who knows would give.
func TestVerdicts(t *testing.T) {
	mtu := func(c *cluster, bytes int) *cluster {
		return c.each(func(_ *envgen.HCA, n *envgen.NIC) { n.MTU = bytes })
	}
	mtu1500 := func(c *cluster) *cluster { return mtu(c, 1500) }
	tests := map[string]struct {
		cluster *cluster
		table   Table
		log     []string
		traffic []nettest.Traffic
		grade   nettest.Grade
		cause   string
		says    string // in text, evidence or remedy
	}{
		"good pair": {pair(t), result(2, big, 22.96), overRDMA, nil, nettest.Good, "",
			"96 % of the 23.99 that one cable between two nodes should give"},
		"just the mark": {pair(t), result(2, big, 21.9), overRDMA, nil, nettest.Good, "", ""},
		"two cables": {pair(t).cable(0, 1, 1, 1, 1), result(2, big, 25.6), overRDMA[2:], nil, nettest.Good,
			"", "2 cables"},
		"two cables, one lost": {pair(t).cable(0, 1, 1, 1, 1), result(2, big, 13), oneDevice, nil, nettest.Low,
			nettest.CauseOneTwin, "Using rocep1s0f0"},
		"three on a switch": {newCluster(t, 3).cable(0, 0, 1, 0, 0).cable(1, 0, 2, 0, 0), result(3, big, 23),
			overRDMA[2:], nil, nettest.Good, "", "one cable to each node"},
		"ring":               {ring(t), result(3, big, 11.2), overRDMA[2:], nil, nettest.Good, "", "a ring of 3 nodes"},
		"ring by management": {ring(t), result(3, big, 1.1), overManagement, nil, nettest.Low, CauseRing, "2.30.7"},
		"ring, slow": {ring(t), result(3, big, 8), overRDMA[2:], nil, nettest.Low, nettest.CauseUnknown,
			"80 % of the 10.00"},
		"twin without address": {noAddress(pair(t)), result(2, big, 12.8), overRDMA, nil, nettest.Low,
			nettest.CauseOneTwin, "roceP2p1s0f0 of spark2 has no IPv4 address"},
		"twin not there": {noTwin(pair(t)), result(2, big, 12.8), overRDMA, nil, nettest.Low,
			nettest.CauseOneTwin, "spark2 lacks a twin of rocep1s0f0"},
		"a text alone, deep": {pair(t), result(2, big, 2.6), nil, nil, nettest.Low, nettest.CauseUnknown,
			"not known: the transport (no lines of NCCL_DEBUG=INFO), losses"},
		"a text alone": {pair(t), result(2, big, 15), nil, nil, nettest.Low, nettest.CauseUnknown,
			"twins, speed, PCIe and MTU are as they should be; not known: the transport"},
		"a text without name": {pair(t), named(result(2, big, 23), ""), overRDMA, nil, nettest.Unjudged, "",
			"sparkrun launch nccl-test all_gather --read FILE"},
		"twin not used by NCCL": {pair(t), result(2, big, 12.8), oneDevice, nil, nettest.Low, nettest.CauseOneTwin,
			"NCCL on spark2: NET/IB : Using rocep1s0f0"},
		"twin that is silent": {pair(t), result(2, big, 12.8), overRDMA[2:], []nettest.Traffic{
			{Host: "spark1", Device: "rocep1s0f0", RDMA: true, Sent: 40 << 30},
			{Host: "spark1", Device: "roceP2p1s0f0", RDMA: true, Sent: 4000},
		}, nettest.Low, nettest.CauseOneTwin, "roceP2p1s0f0 of spark1 carried nothing"},
		"MTU 1500": {mtu1500(pair(t)), result(2, big, 19.8), overRDMA, nil, nettest.Low,
			nettest.CauseMTU, "enp1s0f0np0 mtu 1500"},
		"MTU 1500 and one twin": {mtu1500(noAddress(pair(t))), result(2, big, 12), overRDMA, nil, nettest.Low,
			nettest.CauseOneTwin, ""},
		"MTU 2200": {mtu(pair(t), 2200), result(2, big, 21), overRDMA, nil, nettest.Low,
			nettest.CauseMTU, "RoCE packets of 2048 bytes"},
		"MTU 4200 is enough": {mtu(pair(t), 4200), result(2, big, 15), overRDMA[2:], nil, nettest.Low,
			nettest.CauseUnknown, ""},
		"sockets": {pair(t), result(2, big, 3), overTCP, nil, nettest.Low, CauseSockets,
			"NET/IB : No device found."},
		"sockets, management": {pair(t), result(2, big, 1.1), overManagement, nil, nettest.Low, CauseManagement, "enP7s7"},
		"sockets, and MTU":    {mtu1500(pair(t)), result(2, big, 2.5), overTCP, nil, nettest.Low, CauseSockets, ""},
		"degraded": {pair(t), result(2, big, 1.6), overRDMA, nil, nettest.Low, nettest.CauseDegraded,
			"12.8 Gb/s over RDMA"},
		"degraded, and MTU": {mtu1500(pair(t)), result(2, big, 1.6), overRDMA, nil, nettest.Low,
			nettest.CauseDegraded, "wall"},
		"100G link": {link(pair(t), 100000), result(2, big, 11.8), overRDMA, nil, nettest.Low,
			nettest.CauseSpeed, "speed 100000 Mb/s"},
		"PCIe x2": {pcie(pair(t)), result(2, big, 12.5), overRDMA, nil, nettest.Low, nettest.CausePCIe,
			"32 GT/s x2"},
		"losses": {pair(t), result(2, big, 15), overRDMA,
			[]nettest.Traffic{{Host: "spark1", Device: "rocep1s0f0", RDMA: true, Sent: 9 << 30, Lost: 900,
				LostWords: "packet_seq_err +900"}}, nettest.Low, nettest.CauseLosses, "packet_seq_err +900"},
		"broken path": {pair(t), result(2, big, 9),
			append([]string{"spark1:1:1 [0] NCCL WARN Got completion from peer 192.168.100.22 with status=12"},
				overRDMA...), nil, nettest.Low, nettest.CauseLosses, "status=12"},
		"no reason": {pair(t), result(2, big, 15), overRDMA, nil, nettest.Low, nettest.CauseUnknown, ""},
		"small messages": {pair(t), result(2, 1<<20, 4), overRDMA, nil, nettest.Unjudged, nettest.CauseSmall,
			"--max 1G"},
		"small, yet by sockets": {pair(t), result(2, 1<<20, 0.5), overTCP, nil, nettest.Low, CauseSockets, ""},
		"64 MiB on a good pair": {pair(t), result(2, 64<<20, 21.5), overRDMA, nil, nettest.Good, "", ""},
		"64 MiB by one twin": {noAddress(pair(t)), result(2, 64<<20, 12), overRDMA, nil, nettest.Low,
			nettest.CauseOneTwin, ""},
		"nothing cabled": {newCluster(t, 2), result(2, big, 1.1), overManagement, nil, nettest.Unjudged,
			CauseManagement, "no cable between these nodes"},
		"one node": {newCluster(t, 1), result(1, big, 400), nil, nil, nettest.Unjudged, "", "no link to judge"},
		"gloo": {pair(t), gloo(result(2, big, 24)), nil, nil, nettest.Unjudged, "",
			"over gloo, without NCCL"},
		"operation without mark": {pair(t), named(result(2, big, 24), "hypercube"), overRDMA, nil, nettest.Unjudged,
			"", "hypercube"},
		"0 bytes":             {pair(t), result(2, 0, 0), overRDMA, nil, nettest.Unjudged, nettest.CauseSmall, ""},
		"0 bytes by TCP":      {pair(t), result(2, 0, 0), overTCP, nil, nettest.Unjudged, nettest.CauseSmall, ""},
		"no bandwidth at all": {pair(t), result(2, big, 0), overRDMA, nil, nettest.Low, nettest.CauseDegraded, "0.0 Gb/s"},
		"errors, by a warning": {pair(t), result(2, big, 15), append(slices.Clone(overRDMA), gotError), nil,
			nettest.Low, nettest.CauseLosses, "status=IBV_WC_RETRY_EXC_ERR(12)"},
		"no end, and errors": {pair(t), bounds(result(2, big, 24), nil), []string{gotError}, nil, nettest.Failed,
			CauseIncomplete, "status=IBV_WC_RETRY_EXC_ERR(12)"},
		"nothing, and errors": {pair(t), Table{Backend: "nccl"}, []string{noPath}, nil, nettest.Failed,
			CauseIncomplete, "ibv_modify_qp failed with 110"},
		"nothing, says the test": {pair(t), Table{Backend: "nccl"},
			[]string{"spark1: Test NCCL failure common.cu:1670 'unhandled system error / socketProgress'"}, nil,
			nettest.Failed, CauseIncomplete, "unhandled system error"},
		"each by itself": {pair(t), twice(result(2, big, 0)), overRDMA, nil, nettest.Failed, CauseAlone,
			"rank 0 is there twice, on spark1 and spark2"},
		"one by itself": {pair(t), result(1, big, 0), overRDMA, nil, nettest.Failed, CauseAlone,
			"1 of the ranks of 2 machines"},
		"a machine of others": {pair(t), result(3, big, 24), overRDMA, nil, nettest.Unjudged, "",
			"not all of its machines are this cluster's"},
		"ring, each one way": {ring(t), result(3, big, 8), overRDMA[2:], []nettest.Traffic{
			{Host: "spark1", Device: "rocep1s0f0", RDMA: true, Sent: 40 << 30, Received: 1 << 20},
			{Host: "spark1", Device: "roceP2p1s0f0", RDMA: true, Sent: 40 << 30, Received: 1 << 20},
			{Host: "spark1", Device: "rocep1s0f1", RDMA: true, Sent: 1 << 20, Received: 40 << 30},
			{Host: "spark1", Device: "roceP2p1s0f1", RDMA: true, Sent: 1 << 20, Received: 40 << 30},
		}, nettest.Low, nettest.CauseUnknown, "80 % of the 10.00"},
		"wrong sum": {pair(t), wrong(result(2, big, 24), 3), overRDMA, nil, nettest.Failed, CauseWrong,
			"elements of 16 GiB messages are wrong"},
		"not a number of them": {pair(t), wrong(result(2, big, 24), math.NaN()), overRDMA, nil, nettest.Failed,
			CauseWrong, ""},
		"out of bounds": {pair(t), bounds(result(2, big, 24), &Bounds{Count: 2}), overRDMA, nil, nettest.Failed,
			CauseWrong, "2 values"},
		"FAILED": {pair(t), bounds(result(2, big, 24), &Bounds{}), overRDMA, nil, nettest.Failed,
			CauseWrong, ""},
		"no end": {pair(t), bounds(result(2, big, 24), nil), overRDMA, nil, nettest.Failed,
			CauseIncomplete, "Out of bounds values"},
		"nothing": {pair(t), Table{Backend: "nccl"}, nil, nil, nettest.Failed, CauseIncomplete, "sparkrun logs"},
		"unchecked": {pair(t), unchecked(result(2, big, 24)), overRDMA, nil, nettest.Failed, CauseUnchecked,
			"-c 0"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			v := Evaluate(tc.table, ofLog(tc.log...), tc.cluster.setting(t, tc.traffic...))
			code, all := "", v.Text
			if v.Cause != nil {
				code = v.Cause.Code
				all += " " + v.Cause.Text + " " + v.Cause.Evidence + " " + v.Cause.Remedy
				if v.Cause.Evidence == "" || v.Cause.Remedy == "" {
					t.Errorf("a cause needs evidence and remedy: %+v", v.Cause)
				}
			}
			if v.Grade == nettest.Unjudged && (v.Part != nil || v.Expected != nil) {
				t.Errorf("nothing was judged, and a part of what is expected is told: %+v", v)
			}
			if _, err := json.Marshal(v); err != nil {
				t.Error(err)
			}
			if v.Grade != tc.grade || code != tc.cause || !strings.Contains(all, tc.says) {
				t.Errorf("%s by %q: %s\nwant %s by %q with %q", v.Grade, code, all, tc.grade, tc.cause, tc.says)
			}
			if strings.Contains(all, "NaN") && tc.grade != nettest.Failed || strings.Contains(all, "Inf") {
				t.Errorf("%s", all)
			}
		})
	}
}

// noAddress takes the address of a twin of the second node.
func noAddress(c *cluster) *cluster {
	h, n := c.device(1, 0, 1)
	h.GIDs, n.Addresses = nil, nil
	return c
}

// noTwin takes the whole second device of the second node's first port.
func noTwin(c *cluster) *cluster {
	h, _ := c.device(1, 0, 1)
	name, inv := h.Name, &c.nodes[1].Inventory
	inv.Devices = slices.DeleteFunc(inv.Devices, func(d envgen.HCA) bool { return d.Name == name })
	return c
}

func link(c *cluster, mbps int) *cluster {
	return c.each(func(_ *envgen.HCA, n *envgen.NIC) {
		if n.HasCarrier() {
			n.SpeedMbps = &mbps
		}
	})
}

func pcie(c *cluster) *cluster {
	h, _ := c.device(1, 0, 1)
	h.PCIeLanes = new(2)
	return c
}

func gloo(t Table) Table              { t.Backend = "gloo"; return t }
func twice(t Table) Table             { t.Devices[1].Rank = 0; return t }
func named(t Table, op string) Table  { t.Op = op; return t }
func bounds(t Table, b *Bounds) Table { t.OutOfBounds = b; return t }
func wrong(t Table, n float64) Table  { t.Rows[0].In.Wrong = &n; return t }
func unchecked(t Table) Table         { t.Rows[0].In.Wrong, t.Rows[0].Out.Wrong = nil, nil; return t }

// The log of a real NCCL without RDMA names "NET/IB : Using" all the same.
func TestRealLog(t *testing.T) {
	text, err := os.ReadFile("testdata/2.19.6-socket-log.txt")
	if err != nil {
		t.Fatal(err)
	}
	var l Log
	n := 0
	for line := range strings.Lines(string(text)) {
		if l.Line(strings.TrimSuffix(line, "\n")) {
			n++
		}
	}
	if n < 50 || !l.NoIB || len(l.Using) != 0 || len(l.Sockets) != 2 || l.Via["NET/Socket"] != 8 || !l.overSockets() ||
		l.Version != "2.28.3+cuda13.0" {
		t.Errorf("%d lines: %+v", n, l)
	}
}

// Lines of NCCL of many versions, by its src/debug.cc; each is read whatever stands before it.
func TestLogLines(t *testing.T) {
	const text = "NET/IB: Got completion from peer 192.168.100.12<4791> with status=12"
	for _, line := range []string{
		"spark1:605:611 [0] transport/net_ib.cc:1295 NCCL WARN " + text,                           // up to 2.25
		"[2026-03-01 12:00:00] spark1:605:611 [0] transport/net_ib.cc:2470 NCCL WARN " + text,     // 2.26
		"[2026-03-01 12:00:00] spark1:605:611 [0] net_ib/p2p.cc:688 (f) NCCL WARN " + text + "\r", // 2.30
		"[1,0]<stdout>:spark1:605:611 [-1] NCCL INFO " + text,                                     // mpirun --tag-output
	} {
		if l := ofLog(line); !l.Seen || len(l.Bad) != 1 || l.Bad[0] != text {
			t.Errorf("%s: %+v", line, l)
		}
	}
	l := ofLog("[2026-03-01 12:00:00] spark1:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1:0:2/RoCE " +
		"[1]roceP2p1s0f0:1/RoCE [RO]; OOB x:192.168.100.11<0>")
	if got := l.Using["spark1:1"]; !slices.Equal(got, []string{"rocep1s0f0", "roceP2p1s0f0"}) {
		t.Errorf("%v", got)
	}
}

// More is never judged worse, and the mark rises with the message.
func TestMarkRises(t *testing.T) {
	for _, m := range []Mark{{Full: oneCable}, {Full: twoCables}, {Full: ringOf}} {
		for _, op := range []string{"all_gather", "all_reduce", "sendrecv"} {
			last := 0.0
			for bytes := int64(4 << 10); bytes <= 64<<30; bytes *= 2 {
				p := m.part(op, bytes, 3)
				if p <= last || p > 1 {
					t.Fatalf("%s %d: %g after %g", op, bytes, p, last)
				}
				last = p
			}
			if last < 0.99 {
				t.Errorf("%s: the largest message reaches %g only", op, last)
			}
		}
	}
}

func TestHistory(t *testing.T) {
	now := Record{Cluster: "c", Op: "all_gather", Tool: "torch", Hosts: []string{"a", "b"}, Bytes: big, Bus: 22}
	lines := `{"cluster":"c","op":"all_gather","tool":"torch","hosts":["a","b"],"bytes":17179869184,"bus_gbps":20}
{"cluster":"c","op":"all_gather","tool":"torch","hosts":["a","b"],"bytes":17179869184,"bus_gbps":23}
broken {
{"cluster":"d","op":"all_gather","tool":"torch","hosts":["a","b"],"bytes":17179869184,"bus_gbps":1}
{"cluster":"c","op":"all_reduce","tool":"torch","hosts":["a","b"],"bytes":17179869184,"bus_gbps":2}
{"cluster":"c","op":"all_gather","tool":"torch","hosts":["a","c"],"bytes":17179869184,"bus_gbps":3}
{"cluster":"c","op":"all_gather","tool":"nccl-tests","hosts":["a","b"],"bytes":17179869184,"bus_gbps":4}
`
	last := Last([]byte(lines), now)
	if last == nil || last.Bus != 23 {
		t.Fatalf("%+v", last)
	}
	if change, ok := Compare(now, *last); !ok || math.Abs(change+1.0/23) > 1e-9 {
		t.Errorf("%g %t", change, ok)
	}
	failed := `{"cluster":"c","op":"all_gather","tool":"torch","hosts":["a","b"],"bytes":17179869184,"bus_gbps":5,"grade":"failed"}` + "\n"
	zeros := strings.Repeat("\x00", 2<<20) + "\n" // as a power cut leaves them
	if last := Last([]byte(zeros+lines+failed), now); last == nil || last.Bus != 23 {
		t.Errorf("behind what a power cut has left, before a test that failed: %+v", last)
	}
	if got := Last(nil, now); got != nil {
		t.Errorf("%+v", got)
	}
}

// Two hosts whose NCCL went by TCP, as real ones logged it among the table's lines.
func TestRealRunIsSockets(t *testing.T) {
	text, err := os.ReadFile("testdata/2.19.6-two-hosts-log.txt")
	if err != nil {
		t.Fatal(err)
	}
	table, err := Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var l Log
	for line := range strings.Lines(string(text)) {
		l.Line(strings.TrimSuffix(line, "\n"))
	}
	v := Evaluate(table, l, pair(t).setting(t))
	if v.Grade != nettest.Low || v.Cause == nil || v.Cause.Code != CauseSockets ||
		!strings.Contains(v.Cause.Evidence, "Using enp1s0f0np0") {
		t.Errorf("%+v", v)
	}
}

// A rounded size goes up a unit, and an axis has no digits of binary fractions.
func TestFiguresForPeople(t *testing.T) {
	for n, want := range map[int64]string{1<<20 - 1: "1.0 MiB", 1 << 20: "1 MiB", 1023: "1023 B", 1<<30 - 1: "1.0 GiB",
		1536: "1.5 KiB"} {
		if got := nettest.Size(n); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
	svg := string(Drawing{Table: result(2, big, 0.021), Ranks: 2}.SVG())
	if !strings.Contains(svg, ">0.01875<") {
		t.Errorf("the axis: %s", svg)
	}
}
