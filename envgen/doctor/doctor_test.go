package doctor

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

// cabled is an inventory with one port of two twins and a management NIC.
func cabled() envgen.Inventory {
	inv := envgen.Inventory{Host: "spark1", NICs: []envgen.NIC{
		{Name: "enP7s7", MTU: 1500, Up: true, Carrier: new(true), Physical: true, MAC: "02:00:00:00:00:07"},
	}}
	for i, name := range []string{"enp1s0f0np0", "enP2p1s0f0np0"} {
		pci := envgen.PCIAddress{Domain: uint32(2 * i), Bus: 1}
		inv.NICs = append(inv.NICs,
			envgen.NIC{Name: name, PCI: &pci, PCIVendor: envgen.VendorMellanox, MTU: 1500, Up: true,
				Carrier: new(true), Physical: true})
		inv.Devices = append(inv.Devices,
			envgen.HCA{Name: "roce" + name, PCI: &pci, Netdev: name, LinkLayer: envgen.LayerEthernet, State: envgen.StateActive})
	}
	return inv
}

func TestMendsFollowFindings(t *testing.T) {
	t.Parallel()
	inv := cabled()
	inv.NICs[1].Up, inv.NICs[1].Carrier = false, nil
	slot := envgen.Ports(inv)[0].Slot
	cluster := Cluster{Nodes: []Node{{ID: "a", Host: "spark1", Inventory: inv}}}
	f := func(code, port, device string) envgen.Finding {
		return envgen.Finding{Code: code, Node: "a", Host: "spark1", Port: port, Device: device}
	}
	got := cluster.Mends([]envgen.Finding{
		f(topology.CodeTwinDown, slot, "roceenp1s0f0np0"), f(topology.CodeNoLink, slot, "roceenp1s0f0np0"), // one NIC, twice
		f(topology.CodeMTULow, slot, "enP2p1s0f0np0"), f(codePathMTU, slot, "enP2p1s0f0np0"),
		f(codePageCache, "", ""), f(topology.CodeLinkSpeed, slot, "enP2p1s0f0np0"), f(codeMemoryLow, "", ""),
		{Code: codePageCache, Node: "stranger"},
	})
	want := map[string][]Mend{"a": {{Kind: MendUp, NIC: "enp1s0f0np0"}, {Kind: MendMTU, NIC: "enP2p1s0f0np0"},
		{Kind: MendCache}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A switch that takes less than the NIC already offers is no business of the NIC's.
	inv.NICs[2].MTU = 9000
	if got := cluster.Mends([]envgen.Finding{f(codePathMTU, slot, "enP2p1s0f0np0")}); len(got) != 0 {
		t.Errorf("mends a NIC that is right: %v", got)
	}
}

// A witness has no fabric, and a doctor that knows it for one misses none. Nor
// does it take a lost witness for a lost place to launch.
func TestWitnessNeedsNoFabric(t *testing.T) {
	t.Parallel()
	nic := func(name, addr string) envgen.NIC {
		return envgen.NIC{Name: name, Up: true, Carrier: new(true), Physical: true, MTU: 1500,
			Addresses: []netip.Prefix{netip.MustParsePrefix(addr)}}
	}
	sparks := envgen.Inventory{NICs: []envgen.NIC{nic("enP7s7", "10.0.0.1/24")},
		Devices: []envgen.HCA{{Name: "rocep1s0f0", PCI: &envgen.PCIAddress{Bus: 1}, State: envgen.StateDown}}}
	look := func(witness bool, facts *Facts) (out []envgen.Finding) {
		c := Cluster{Leader: "spark1", Nodes: []Node{
			{ID: "a", Host: "spark1", State: "ready", Addr: netip.MustParseAddr("10.0.0.1"), Inventory: sparks, Facts: &Facts{}},
			{ID: "c", Host: "pi", State: "ready", Addr: netip.MustParseAddr("10.0.0.9"), Witness: witness,
				Inventory: envgen.Inventory{NICs: []envgen.NIC{nic("eth0", "10.0.0.9/24")}}, Facts: facts},
		}}
		if err := c.Derive(); err != nil {
			t.Fatal(err)
		}
		return c.Findings("pi")
	}
	if got := look(true, &Facts{}); len(got) > 0 {
		t.Errorf("of a witness: %+v", got)
	}
	if got := look(false, &Facts{}); !slices.ContainsFunc(got,
		func(f envgen.Finding) bool { return f.Code == topology.CodeNoRDMADevice }) {
		t.Errorf("of another machine: %+v", got)
	}
	if got := look(true, nil); len(got) != 1 || got[0].Severity != envgen.SeverityWarning ||
		strings.Contains(got[0].Text, "launched") {
		t.Errorf("of a witness that is away: %+v", got)
	}
}

func TestEachMistakeOnce(t *testing.T) {
	t.Parallel()
	got := once([]envgen.Finding{
		{Code: topology.CodeMTUUnequal, Severity: envgen.SeverityWarning, Node: "a", Host: "spark1", Device: "x"},
		{Code: "note", Severity: envgen.SeverityInfo},
		{Code: topology.CodeMTUUnequal, Severity: envgen.SeverityWarning, Node: "b", Host: "spark2", Device: "x"},
		{Code: codePathMTU, Severity: envgen.SeverityWarning, Node: "a", Host: "spark1", Device: "x"},
		{Code: "bad", Severity: envgen.SeverityError, Node: "b", Host: "spark2"},
	})
	var codes []string
	for _, f := range got {
		codes = append(codes, f.Code+f.Node)
	}
	if diff := cmp.Diff([]string{"badb", "path-mtua", "mtu-unequalb", "note"}, codes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Every code that a finding can have can be looked up, and means one thing.
func TestExplanationsAreUnique(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, e := range Explanations() {
		if seen[e.Code] || e.Text == "" {
			t.Errorf("%+v", e)
		}
		seen[e.Code] = true
	}
}
