package doctor

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

var addr = netip.MustParseAddr

// onSwitch is a topology of three nodes on a switch, one twin each.
func onSwitch() envgen.Topology {
	t := envgen.Topology{Lanes: []envgen.Lane{{Subnet: netip.MustParsePrefix("10.0.1.0/24")}}}
	for i, h := range []string{"spark1", "spark2", "spark3"} {
		last := string(rune('1' + i))
		fabric := addr("10.0.1.1" + last)
		t.Nodes = append(t.Nodes,
			envgen.TopologyNode{ID: "id" + last, Host: h, Mgmt: addr("172.16.0.1" + last), MgmtNIC: "enP7s7",
				Ports: []envgen.PortState{{
					Slot: "01:00.0", Role: envgen.RoleFabric, Live: true,
					Devices: []envgen.DeviceState{{HCA: "rocep1s0f0", NIC: "enp1s0f0np0", Up: true, Carrier: new(true),
						MTU: new(9000), Addresses: []netip.Prefix{netip.PrefixFrom(fabric, 24)}}},
				}}})
		t.Lanes[0].Ends = append(t.Lanes[0].Ends,
			envgen.LaneEnd{Node: "id" + last,
				Path: envgen.Path{HCA: "rocep1s0f0", NIC: "enp1s0f0np0", Slot: "01:00.0", Addr: fabric}})
	}
	return t
}

func everybody(string) bool { return true }

func TestPlan(t *testing.T) {
	listeners := []Listener{{Node: "id1", Addr: netip.MustParseAddrPort("172.16.0.11:7940"), What: "calls"},
		{Node: "gone", Addr: netip.MustParseAddrPort("172.16.0.99:7940")}}
	got := Plan(onSwitch(), listeners, everybody)
	for id, peers := range map[string][]string{"id1": {"10.0.1.12", "10.0.1.13"}, "id2": {"10.0.1.11", "10.0.1.13"},
		"id3": {"10.0.1.11", "10.0.1.12"}} {
		var to, claims []string
		for _, e := range got[id].Echoes {
			to = append(to, e.To.Addr.String())
			if e.From.Node != id || e.From.MTU != 9000 || e.From.Port != "01:00.0" || e.From.NIC != "enp1s0f0np0" {
				t.Errorf("%s pings from %+v", id, e.From)
			}
		}
		for _, c := range got[id].Claims {
			claims = append(claims, c.End.NIC+" "+c.End.Addr.String())
		}
		last := id[2:]
		if diff := cmp.Diff(peers, to); diff != "" {
			t.Errorf("%s pings: %s", id, diff)
		}
		if diff := cmp.Diff([]string{"enp1s0f0np0 10.0.1.1" + last, "enP7s7 172.16.0.1" + last}, claims); diff != "" {
			t.Errorf("%s claims: %s", id, diff)
		}
		if want := map[string]int{"id1": 0, "id2": 1, "id3": 1}[id]; len(got[id].Dials) != want {
			t.Errorf("%s dials %+v", id, got[id].Dials)
		}
	}
}

// Nothing is sent to who is known to be away, and no member but the members is
// ever in a plan.
func TestPlanLeavesOut(t *testing.T) {
	got := Plan(onSwitch(), nil, func(id string) bool { return id != "id3" })
	if len(got) != 2 || len(got["id1"].Echoes) != 1 || got["id1"].Echoes[0].To.Node != "id2" {
		t.Errorf("without id3: %+v", got)
	}
	top := onSwitch()
	top.Lanes[0].Ends[1].Path.Addr = top.Lanes[0].Ends[0].Path.Addr // one address on two nodes
	if got := Plan(top, nil, everybody); len(got["id1"].Echoes) != 1 {
		t.Errorf("pings an address of its own: %+v", got["id1"].Echoes)
	}
	top.Nodes[0].Ports[0].Role = envgen.RoleLAN
	if got := Plan(top, nil, everybody); len(got["id1"].Claims) != 1 {
		t.Errorf("claims on the LAN: %+v", got["id1"].Claims)
	}
}

// reports are those of a plan in which fail decides what is lost.
func reports(fail func(from, to End) (small, large bool)) map[string]Report {
	out := map[string]Report{}
	for id, o := range Plan(onSwitch(), nil, everybody) {
		var r Report
		for _, e := range o.Echoes {
			s, l := fail(e.From, e.To)
			r.Echoes = append(r.Echoes, EchoResult{Echo: e, Small: !s, Large: !l})
		}
		out[id] = r
	}
	return out
}

func TestPackets(t *testing.T) {
	all := func(End, End) (bool, bool) { return true, true }
	touches := func(host string, small bool) func(from, to End) (bool, bool) {
		return func(from, to End) (bool, bool) {
			hit := from.Host == host || to.Host == host
			return hit && small, hit
		}
	}
	tests := map[string]struct {
		fail  func(from, to End) (bool, bool)
		codes []string // "code host"
		says  string
	}{
		"all is well": {func(End, End) (bool, bool) { return false, false }, nil, ""},
		"the MTU towards spark2": {touches("spark2", false), []string{"path-mtu spark2"},
			"ping -M do -s 8972 -c 3 -I enp1s0f0np0 10.0.1.1"},
		"spark3 is cut off": {touches("spark3", true), []string{"peer-unreachable spark3"},
			"spark1, enp1s0f0np0 of spark2"},
		"one pair only": {func(from, to End) (bool, bool) {
			return from.Host == "spark3" && to.Host == "spark2", false
		}, []string{"peer-unreachable spark2"}, "spark3"},
		"nobody reaches anybody": {all, []string{"peer-unreachable spark1", "peer-unreachable spark2"}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var codes []string
			text := ""
			for _, f := range packets(reports(tc.fail), nil) {
				codes = append(codes, f.Code+" "+f.Host)
				text += f.Text + f.Evidence + f.Remedy
				if f.Device != "enp1s0f0np0" || f.Port != "01:00.0" || f.Severity != envgen.SeverityError {
					t.Errorf("got %+v", f)
				}
			}
			if diff := cmp.Diff(tc.codes, codes); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if !strings.Contains(text, tc.says) {
				t.Errorf("%q does not say %q", text, tc.says)
			}
		})
	}
}

// Where the MTUs differ the smaller end is to be mended, however few failures
// it shares, and it is no error: TCP and RoCE settle on the smaller.
func TestPacketsUnequalMTU(t *testing.T) {
	big, low := End{Node: "id1", Host: "spark1", NIC: "a", MTU: 9000, Addr: addr("10.0.1.11")},
		End{Node: "id2", Host: "spark2", NIC: "b", MTU: 1500, Addr: addr("10.0.1.12")}
	found := packets(map[string]Report{"id1": {Echoes: []EchoResult{{Echo: Echo{From: big, To: low}, Small: true}}}}, nil)
	if len(found) != 1 || found[0].Host != "spark2" || found[0].Severity != envgen.SeverityWarning ||
		found[0].Remedy != "sudo ip link set dev b mtu 9000" ||
		!strings.Contains(found[0].Text, "spark1") {
		t.Errorf("got %+v", found)
	}
}

func TestPacketsClaims(t *testing.T) {
	end := End{Node: "id1", Host: "spark1", NIC: "enp1s0f0np0", Addr: addr("10.0.1.11")}
	views := []envgen.NodeView{{ID: "id2", Host: "spark2", Inventory: envgen.Inventory{NICs: []envgen.NIC{
		{Name: "x", MAC: "02:00:00:00:00:02", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.12/24")}},
		{Name: "y", MAC: "02:00:00:00:00:03", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.11/24")}},
	}}}}
	for _, tc := range []struct {
		holder string
		says   string // empty: not told
	}{
		{"aa:bb:cc:dd:ee:ff", "aa:bb:cc:dd:ee:ff answered"},
		{"02:00:00:00:00:02", ""}, // the member has the address on another NIC: told by the topology
	} {
		found := packets(map[string]Report{"id1": {Claims: []ClaimResult{{Claim: Claim{end},
			Holders: []string{tc.holder}}}}}, views)
		if (len(found) > 0) != (tc.says != "") || tc.says != "" &&
			(found[0].Code != codeAddressTaken || !strings.Contains(found[0].Evidence, tc.says)) {
			t.Errorf("%s: %+v", tc.holder, found)
		}
	}
}

func TestPacketsPorts(t *testing.T) {
	d := Dial{To: End{Node: "id2", Host: "spark2", NIC: "enP7s7"}, Addr: netip.MustParseAddrPort("172.16.0.12:7940"),
		What: "calls"}
	found := packets(map[string]Report{
		"id1": {Dials: []DialResult{{Dial: d, Why: "no answer"}}}, "id2": {},
		"id3": {Dials: []DialResult{{Dial: d, OK: true}}},
	}, nil)
	if len(found) != 1 || found[0].Code != codePortUnreachable || found[0].Host != "spark2" ||
		!strings.Contains(found[0].Text, "by 1 of 2 nodes") ||
		found[0].Remedy != "sudo ufw allow 7940/tcp" {
		t.Errorf("got %+v", found)
	}
}

// Without the right to send, nothing is said of peers.
func TestPacketsUntried(t *testing.T) {
	r := reports(func(End, End) (bool, bool) { return true, true })
	for id, one := range r {
		for i := range one.Echoes {
			one.Echoes[i].Why = "socket: operation not permitted"
		}
		one.Trouble = []string{"ping: operation not permitted"}
		r[id] = one
	}
	for _, f := range packets(r, nil) {
		if f.Code != codeUntried || f.Severity != envgen.SeverityInfo {
			t.Errorf("got %+v", f)
		}
	}
}

func TestDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	if r := Probe(t.Context(), Orders{Dials: []Dial{{Addr: at}}}); !r.Dials[0].OK {
		t.Errorf("what listens is not reached: %+v", r)
	}
	l.Close()
	if r := Probe(t.Context(), Orders{Dials: []Dial{{Addr: at}}}); r.Dials[0].OK ||
		!strings.Contains(r.Dials[0].Why, "refused") {
		t.Errorf("what does not listen is reached: %+v", r)
	}
}

func TestEchoPacket(t *testing.T) {
	b := echoPacket(0x1234, 2, 8972)
	if len(b) != 8980 || checksum(b) != 0 || b[0] != echoRequest {
		t.Fatalf("%d bytes, checksum of the whole %#x", len(b), checksum(b))
	}
	if _, _, err := parseEcho(b); err == nil {
		t.Error("takes a request for a reply")
	}
	reply := slices.Clone(b)
	reply[0], reply[2], reply[3] = echoReply, 0, 0
	sum := checksum(reply)
	reply[2], reply[3] = byte(sum>>8), byte(sum)
	if id, seq, err := parseEcho(reply); err != nil || id != 0x1234 || seq != 2 {
		t.Errorf("reply %#x %d %v", id, seq, err)
	}
	reply[100]++
	if _, _, err := parseEcho(reply); err == nil {
		t.Error("takes a damaged reply")
	}
}

// Needs root: the rest of what it does is seen in scripts/e2e.
func TestPing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := Ping(ctx, "lo", addr("127.0.0.1")); err != nil {
		t.Errorf("this machine over lo: %v", err)
	}
	if err := Ping(ctx, "none", addr("127.0.0.1")); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("over an interface that is not there: %v", err)
	}
	if err := Ping(ctx, "lo", netip.Addr{}); err == nil {
		t.Error("no address was asked")
	}
	over, end := context.WithCancel(ctx)
	end()
	if err := Ping(over, "lo", addr("127.0.0.1")); err == nil {
		t.Error("asked although nobody waits")
	}
}

func FuzzPackets(f *testing.F) {
	f.Add(echoPacket(1, 1, 8))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := parseEcho(b); err == nil && len(b) < icmpHeader {
			t.Errorf("a reply of %d bytes", len(b))
		}
	})
}
