package checkup

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	envhost "github.com/sparkrun/sparkrun/envgen/host"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/envgen/reach"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// What changes machines is root's, and a member's word alone is not enough.
func TestMendIsRoots(t *testing.T) {
	t.Parallel()
	u := New(Config{})
	ada := wire.Caller{User: &wire.User{Name: "ada", UID: 1000}}
	if _, err := u.Doctor(t.Context(), ada, wire.DoctorRequest{Fix: true}); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("--fix for ada: %v", err)
	}
	for _, c := range []wire.Caller{ada, {Node: "member"}, {Node: "member", User: ada.User}} {
		if _, err := u.Mend(t.Context(), c, wire.MendRequest{Mends: []wire.Mend{{Kind: wire.MendCache}}}); !errors.Is(err, wire.ErrDenied) {
			t.Errorf("mend for %+v: %v", c, err)
		}
	}
}

// spark is an inventory with one port of two twins and a management NIC.
func spark() envgen.Inventory {
	inv := envgen.Inventory{Host: "spark1", NICs: []envgen.NIC{
		{Name: "enP7s7", MTU: 1500, Up: true, Carrier: new(true), Physical: true, MAC: "02:00:00:00:00:07"},
	}}
	for i, name := range []string{"enp1s0f0np0", "enP2p1s0f0np0"} {
		pci := envgen.PCIAddress{Domain: uint32(2 * i), Bus: 1}
		inv.NICs = append(inv.NICs, envgen.NIC{Name: name, PCI: &pci, PCIVendor: envgen.VendorMellanox, MTU: 1500, Up: true, Carrier: new(true), Physical: true})
		inv.Devices = append(inv.Devices, envgen.HCA{Name: "roce" + name, PCI: &pci, Netdev: name, LinkLayer: envgen.LayerEthernet, State: envgen.StateActive})
	}
	return inv
}

func TestMendDoesThreeThings(t *testing.T) {
	t.Parallel()
	var did []string
	h := hands{
		up:    func(nic string) error { did = append(did, "up "+nic); return nil },
		mtu:   func(nic string, n int) error { did = append(did, "mtu "+nic); return nil },
		cache: func() error { did = append(did, "cache"); return nil },
	}
	tests := []struct {
		mend    wire.Mend
		mgmt    string
		does    string
		refuses string
	}{
		{wire.Mend{Kind: wire.MendUp, NIC: "enp1s0f0np0"}, "enP7s7", "up enp1s0f0np0", ""},
		{wire.Mend{Kind: wire.MendMTU, NIC: "enp1s0f0np0"}, "enP7s7", "mtu enp1s0f0np0", ""},
		{wire.Mend{Kind: wire.MendCache}, "", "cache", ""},
		{wire.Mend{Kind: wire.MendMTU, NIC: "enP7s7"}, "enP7s7", "", "carry management"},
		{wire.Mend{Kind: wire.MendUp, NIC: "enp1s0f0np0"}, "enp1s0f0np0", "", "carry management"}, // by --management
		{wire.Mend{Kind: wire.MendUp, NIC: "enp1s0f0np0"}, "", "", "carry management"},            // which NIC does is not known
		{wire.Mend{Kind: wire.MendUp, NIC: "enP7s7"}, "other", "", "no NIC of the fabric"},
		{wire.Mend{Kind: wire.MendUp, NIC: "eth9"}, "enP7s7", "", "no NIC"},
		{wire.Mend{Kind: "reboot", NIC: "enp1s0f0np0"}, "enP7s7", "", "unknown"},
	}
	for _, tc := range tests {
		did = nil
		err := h.mend(spark(), tc.mgmt, tc.mend)
		if got := strings.Join(did, ","); got != tc.does || (err != nil) != (tc.refuses != "") || err != nil && !strings.Contains(err.Error(), tc.refuses) {
			t.Errorf("%+v with management on %q: did %q, %v", tc.mend, tc.mgmt, got, err)
		}
	}
}

func TestMendsFollowFindings(t *testing.T) {
	t.Parallel()
	inv := spark()
	inv.NICs[1].Up, inv.NICs[1].Carrier = false, nil
	slot := envgen.Ports(inv)[0].Slot
	views := []envgen.NodeView{{ID: "a", Host: "spark1", Inventory: inv}}
	f := func(code, port, device string) envgen.Finding {
		return envgen.Finding{Code: code, Node: "a", Host: "spark1", Port: port, Device: device}
	}
	got := mendsFor([]envgen.Finding{
		f(topology.CodeTwinDown, slot, "roceenp1s0f0np0"), f(topology.CodeNoLink, slot, "roceenp1s0f0np0"), // one NIC, twice
		f(topology.CodeMTULow, slot, "enP2p1s0f0np0"), f(reach.CodePathMTU, slot, "enP2p1s0f0np0"),
		f(envhost.CodePageCache, "", ""), f(topology.CodeLinkSpeed, slot, "enP2p1s0f0np0"), f(envhost.CodeMemoryLow, "", ""),
		{Code: envhost.CodePageCache, Node: "stranger"},
	}, views)
	want := map[string][]wire.Mend{"a": {{Kind: wire.MendUp, NIC: "enp1s0f0np0"}, {Kind: wire.MendMTU, NIC: "enP2p1s0f0np0"}, {Kind: wire.MendCache}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A switch that takes less than the NIC already offers is no business of the NIC's.
	inv.NICs[2].MTU = 9000
	if got := mendsFor([]envgen.Finding{f(reach.CodePathMTU, slot, "enP2p1s0f0np0")}, views); len(got) != 0 {
		t.Errorf("mends a NIC that is right: %v", got)
	}
}

// A witness has no fabric, and a doctor that knows it for one misses none. Nor
// does it take a lost witness for a lost place to launch.
func TestWitnessNeedsNoFabric(t *testing.T) {
	t.Parallel()
	nic := func(name, addr string) envgen.NIC {
		return envgen.NIC{Name: name, Up: true, Carrier: new(true), Physical: true, MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix(addr)}}
	}
	sparks := envgen.Inventory{NICs: []envgen.NIC{nic("enP7s7", "10.0.0.1/24")}, Devices: []envgen.HCA{{Name: "rocep1s0f0", PCI: &envgen.PCIAddress{Bus: 1}, State: envgen.StateDown}}}
	look := func(witness bool, facts *envhost.Facts) (out []envgen.Finding) {
		v := &visit{status: wire.Status{Leader: "spark1"}, patients: []*patient{
			{NodeStatus: wire.NodeStatus{ID: "a", Host: "spark1", State: "ready", Addr: netip.MustParseAddr("10.0.0.1"), Inventory: sparks}, answer: wire.ExamineResponse{Facts: &envhost.Facts{}}},
			{NodeStatus: wire.NodeStatus{ID: "c", Host: "pi", State: "ready", Addr: netip.MustParseAddr("10.0.0.9"), Witness: witness,
				Inventory: envgen.Inventory{NICs: []envgen.NIC{nic("eth0", "10.0.0.9/24")}}}, answer: wire.ExamineResponse{Facts: facts}},
		}}
		var err error
		if v.topology, err = v.derive(); err != nil {
			t.Fatal(err)
		}
		return about(v.findings(), "pi")
	}
	if got := look(true, &envhost.Facts{}); len(got) > 0 {
		t.Errorf("of a witness: %+v", got)
	}
	if got := look(false, &envhost.Facts{}); !slices.ContainsFunc(got, func(f envgen.Finding) bool { return f.Code == topology.CodeNoRDMADevice }) {
		t.Errorf("of another machine: %+v", got)
	}
	if got := look(true, nil); len(got) != 1 || got[0].Severity != envgen.SeverityWarning || strings.Contains(got[0].Text, "launched") {
		t.Errorf("of a witness that is away: %+v", got)
	}
}

func TestEachMistakeOnce(t *testing.T) {
	t.Parallel()
	got := once([]envgen.Finding{
		{Code: topology.CodeMTUUnequal, Severity: envgen.SeverityWarning, Node: "a", Host: "spark1", Device: "x"},
		{Code: "note", Severity: envgen.SeverityInfo},
		{Code: topology.CodeMTUUnequal, Severity: envgen.SeverityWarning, Node: "b", Host: "spark2", Device: "x"},
		{Code: reach.CodePathMTU, Severity: envgen.SeverityWarning, Node: "a", Host: "spark1", Device: "x"},
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

func TestNetplanMentions(t *testing.T) {
	t.Parallel()
	const stock = "network: {version: 2, ethernets: {enp1s0f0np0: {addresses: [10.0.0.1/24]}}}\n"
	const other = "network: {version: 2, ethernets: {enp1s0f0np0: {addresses: [10.0.9.1/24]}, enP7s7: {dhcp4: true}}}\n"
	tests := map[string]struct {
		files map[string]string
		want  []string // path, blocks
	}{
		"one file":          {map[string]string{"40-cx7.yaml": stock}, nil},
		"another's alone":   {map[string]string{"99-dgx-cluster.yaml": stock}, nil},
		"ours and another":  {map[string]string{"40-cx7.yaml": stock, "99-dgx-cluster.yaml": other}, []string{"/etc/netplan/99-dgx-cluster.yaml true"}},
		"two of others":     {map[string]string{"50-a.yaml": stock, "99-b.yaml": other}, []string{"/etc/netplan/50-a.yaml false", "/etc/netplan/99-b.yaml false"}},
		"one is broken":     {map[string]string{"40-cx7.yaml": stock, "99-b.yaml": "network: ["}, nil},
		"management's NICs": {map[string]string{"40-cx7.yaml": stock, "00-installer.yaml": "network: {ethernets: {enP7s7: {dhcp4: true}}}"}, nil},
	}
	for name, tc := range tests {
		root := t.TempDir()
		dir := filepath.Join(root, "etc/netplan")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range tc.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, m := range netplanMentions(netplan.Disk{Root: root}, spark()) {
			word := m.Path + " false"
			if m.Blocks {
				word = m.Path + " true"
			}
			got = append(got, word)
			if m.NIC != "enp1s0f0np0" || m.Effect == "" || m.Remedy == "" || m.Line == 0 {
				t.Errorf("%s: %+v", name, m)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}
