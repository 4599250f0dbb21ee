package checkup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/envgen/netplan"
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
		if _, err := u.Mend(t.Context(), c, wire.MendRequest{Mends: []doctor.Mend{{Kind: doctor.MendCache}}}); !errors.Is(err, wire.ErrDenied) {
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
		mend    doctor.Mend
		mgmt    string
		does    string
		refuses string
	}{
		{doctor.Mend{Kind: doctor.MendUp, NIC: "enp1s0f0np0"}, "enP7s7", "up enp1s0f0np0", ""},
		{doctor.Mend{Kind: doctor.MendMTU, NIC: "enp1s0f0np0"}, "enP7s7", "mtu enp1s0f0np0", ""},
		{doctor.Mend{Kind: doctor.MendCache}, "", "cache", ""},
		{doctor.Mend{Kind: doctor.MendMTU, NIC: "enP7s7"}, "enP7s7", "", "carry management"},
		{doctor.Mend{Kind: doctor.MendUp, NIC: "enp1s0f0np0"}, "enp1s0f0np0", "", "carry management"}, // by --management
		{doctor.Mend{Kind: doctor.MendUp, NIC: "enp1s0f0np0"}, "", "", "carry management"},            // which NIC does is not known
		{doctor.Mend{Kind: doctor.MendUp, NIC: "enP7s7"}, "other", "", "no NIC of the fabric"},
		{doctor.Mend{Kind: doctor.MendUp, NIC: "eth9"}, "enP7s7", "", "no NIC"},
		{doctor.Mend{Kind: "reboot", NIC: "enp1s0f0np0"}, "enP7s7", "", "unknown"},
	}
	for _, tc := range tests {
		did = nil
		err := h.mend(spark(), tc.mgmt, tc.mend)
		if got := strings.Join(did, ","); got != tc.does || (err != nil) != (tc.refuses != "") || err != nil && !strings.Contains(err.Error(), tc.refuses) {
			t.Errorf("%+v with management on %q: did %q, %v", tc.mend, tc.mgmt, got, err)
		}
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
