package node

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// sparkOnTwoNets is a machine with a cabled port, whose second one is on the office LAN,
// and an unplugged management interface.
func sparkOnTwoNets() envgen.Inventory {
	nic := func(name, mac string, carrier bool, addrs ...string) envgen.NIC {
		n := envgen.NIC{Name: name, MAC: mac, Up: true, Physical: true, Carrier: &carrier}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, netip.MustParsePrefix(a))
		}
		return n
	}
	hca := func(name, pci, netdev string) envgen.HCA {
		addr, err := envgen.ParsePCIAddress(pci)
		if err != nil {
			panic(err)
		}
		return envgen.HCA{Name: name, PCI: &addr, State: envgen.StateActive, LinkLayer: envgen.LayerEthernet, Netdev: netdev}
	}
	lan := nic("enp1s0f1np1", "02:00:00:00:00:02", true, "10.9.0.1/16")
	lan.DefaultRoute = true
	return envgen.Inventory{Host: "spark1",
		NICs: []envgen.NIC{
			{Name: "lo", Loopback: true, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
			nic("enP7s7", "02:00:00:00:00:00", false, "172.30.0.11/24", "fe80::7/64"),
			nic("enp1s0f0np0", "02:00:00:00:00:01", true, "fe80::1/64", "192.168.100.11/24", "169.254.1.1/16"),
			lan,
		},
		Devices: []envgen.HCA{hca("rocep1s0f0", "0000:01:00.0", "enp1s0f0np0"), hca("rocep1s0f1", "0000:01:00.1", "enp1s0f1np1")},
	}
}

func TestFabricOnlyNamesTheCulprit(t *testing.T) {
	member := func(host string, over bool, inv envgen.Inventory) wire.NodeStatus {
		return wire.NodeStatus{ID: launcher.NodeID("id-" + host), Host: host, Addr: netip.MustParseAddr("172.30.0.11"), State: "ready", FabricOnly: over, Inventory: inv}
	}
	whole := sparkOnTwoNets()
	yes := true
	whole.NICs[1].Carrier = &yes
	for name, tc := range map[string]struct {
		nodes []wire.NodeStatus
		want  string // of each finding: its host, and a part of its text
	}{
		"nobody":               {[]wire.NodeStatus{member("a", false, whole), member("b", false, whole)}, ""},
		"a member's cable":     {[]wire.NodeStatus{member("a", false, whole), member("b", true, sparkOnTwoNets()), member("c", false, whole)}, "b: enP7s7 of b has no link"},
		"the leader's cable":   {[]wire.NodeStatus{member("a", false, sparkOnTwoNets()), member("b", true, whole), member("c", true, whole)}, "a: reaches b, c over the fabric only; enP7s7 of a has no link"},
		"the switch":           {[]wire.NodeStatus{member("a", false, whole), member("b", true, whole), member("c", true, whole)}, "a: reaches b, c over the fabric only; look at the switch"},
		"a pair's other cable": {[]wire.NodeStatus{member("a", false, whole), member("b", true, sparkOnTwoNets())}, "b: enP7s7 of b has no link"},
	} {
		findings := checkup.Seen(wire.Status{Leader: "a", Nodes: tc.nodes}).FabricOnly()
		if tc.want == "" {
			if len(findings) != 0 {
				t.Errorf("%s: %+v", name, findings)
			}
			continue
		}
		host, texts, _ := strings.Cut(tc.want, ": ")
		if len(findings) != 1 || findings[0].Host != host || findings[0].Remedy == "" {
			t.Errorf("%s: want one finding at %s, got %+v", name, host, findings)
			continue
		}
		for text := range strings.SplitSeq(texts, "; ") {
			if !strings.Contains(findings[0].Text, text) {
				t.Errorf("%s: want %q in %q", name, text, findings[0].Text)
			}
		}
	}
	if !slices.ContainsFunc(doctor.Explanations(), func(e envgen.Explanation) bool { return e.Code == "fabric-only" }) {
		t.Error("doctor --explain does not know fabric-only")
	}
}

// A newcomer with the name or the address of a member that is there is refused.
func TestJoinUnderAnothersNameOrAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	cl := c.hosts[0].client()
	defer cl.Close()
	token, err := wire.Token.Call(t.Context(), cl, wire.TokenRequest{Uses: 1, TTL: 60e9})
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.hosts[1].cfg
	base := t.TempDir()
	cfg.Paths = Paths{State: base + "/state", Run: base + "/run", Sysfs: "/sys", Socket: base + "/agent.sock"}
	cfg.Management = strings.TrimSuffix(c.hosts[1].addr, "11") + "99"
	if _, err := Join(t.Context(), cfg, c.hosts[0].addr, token.Token); !errors.Is(err, rendezvous.ErrHostTaken) || !strings.Contains(err.Error(), c.hosts[1].addr) {
		t.Errorf("a second %s: %v", cfg.Host, err)
	}
	cfg.Host, cfg.Management = "spark9", c.hosts[1].addr
	if _, err := Join(t.Context(), cfg, c.hosts[0].addr, token.Token); !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), "it is spark2's") {
		t.Errorf("a second %s: %v", cfg.Management, err)
	}
	if out := c.hosts[0].run(command(2, 1, "true")); out.End != rendezvous.Completed {
		t.Errorf("then %+v", out)
	}
}
