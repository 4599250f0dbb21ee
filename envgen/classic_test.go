package envgen

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// onePort is a Spark with one cable in the port of function f: the machines of
// the notes that show ibdev2netdev.
func onePort(f int) Inventory {
	var inv Inventory
	for _, d := range []struct {
		hca, nic string
		function int
	}{
		{"roceP2p1s0f1", "enP2p1s0f1np1", 1}, {"rocep1s0f0", "enp1s0f0np0", 0},
		{"rocep1s0f1", "enp1s0f1np1", 1}, {"roceP2p1s0f0", "enP2p1s0f0np0", 0},
	} {
		nic := NIC{Name: d.nic, OperState: "down"}
		if d.function == f {
			nic.OperState = "up"
		}
		inv.NICs = append(inv.NICs, nic)
		inv.Devices = append(inv.Devices, HCA{Name: d.hca, Netdev: d.nic})
	}
	return inv
}

func TestIBDev2Netdev(t *testing.T) {
	for f, want := range map[int]string{
		0: "rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)\nrocep1s0f1 port 1 ==> enp1s0f1np1 (Down)\n" +
			"roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Up)\nroceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Down)\n",
		1: "rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)\nrocep1s0f1 port 1 ==> enp1s0f1np1 (Up)\n" +
			"roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)\nroceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)\n",
	} {
		if diff := cmp.Diff(want, IBDev2Netdev(onePort(f))); diff != "" {
			t.Errorf("cable in port %d (-want +got):\n%s", f, diff)
		}
	}
}

func TestShowGIDs(t *testing.T) {
	gid := netip.MustParseAddr
	inv := Inventory{Devices: []HCA{{Name: "rocep1s0f0", GIDs: []GID{
		{Index: 0, Type: GIDTypeIBorRoCEv1, Addr: gid("fe80::4ebb:47ff:fe2e:bf42"), Netdev: "enp1s0f0np0"},
		{Index: 2, Type: GIDTypeIBorRoCEv1, Addr: gid("::ffff:192.168.100.10"), Netdev: "enp1s0f0np0"},
		{Index: 3, Type: GIDTypeRoCEv2, Addr: gid("::ffff:192.168.100.10"), Netdev: "enp1s0f0np0"},
		{Index: 10, Type: GIDTypeRoCEv2, Addr: gid("fe80::"), Netdev: "enp1s0f0np0"},
	}}}}
	want := "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4 \t\tVER\tDEV\n" +
		"---\t----\t-----\t---\t\t\t\t\t------------ \t---\t---\n" +
		"rocep1s0f0\t1\t0\tfe80:0000:0000:0000:4ebb:47ff:fe2e:bf42\t\t\tv1\tenp1s0f0np0\n" +
		"rocep1s0f0\t1\t2\t0000:0000:0000:0000:0000:ffff:c0a8:640a\t192.168.100.10 \tv1\tenp1s0f0np0\n" +
		"rocep1s0f0\t1\t3\t0000:0000:0000:0000:0000:ffff:c0a8:640a\t192.168.100.10 \tv2\tenp1s0f0np0\n" +
		"n_gids_found=3\n"
	if diff := cmp.Diff(want, ShowGIDs(inv)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzShowGIDs prints any table: each row is a line with its columns where scripts look for them, and is counted.
func FuzzShowGIDs(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xc0\xa8\x64\x0a\x03v"), "RoCE v2", "enp1s0f0np0")
	f.Add([]byte("\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0a-and one more row of the table"), "IB/RoCE v1", "")
	f.Fuzz(func(t *testing.T, table []byte, kind, nic string) {
		if strings.ContainsAny(kind+nic, "\t\n ") && kind != GIDTypeRoCEv2 && kind != GIDTypeIBorRoCEv1 {
			return // no kernel's
		}
		nic = strings.Join(strings.Fields(nic), "")
		h := HCA{Name: "mlx5_0", Netdev: nic}
		for ; len(table) >= 17; table = table[17:] {
			h.GIDs = append(h.GIDs, GID{Index: int(table[16]), Type: kind, Addr: netip.AddrFrom16([16]byte(table)), Netdev: nic})
		}
		lines := strings.Split(strings.TrimSuffix(ShowGIDs(Inventory{Devices: []HCA{h}}), "\n"), "\n")
		rows := lines[2 : len(lines)-1]
		if lines[len(lines)-1] != fmt.Sprintf("n_gids_found=%d", len(rows)) || len(rows) > len(h.GIDs) {
			t.Fatalf("%d rows make %q", len(h.GIDs), lines)
		}
		for _, line := range rows {
			columns := strings.Split(line, "\t")
			addr, err := netip.ParseAddr(columns[3])
			if err != nil || columns[0] != "mlx5_0" || columns[1] != "1" || columns[len(columns)-1] != nic ||
				!slices.ContainsFunc(h.GIDs, func(g GID) bool { return g.Addr == addr && fmt.Sprint(g.Index) == columns[2] }) {
				t.Fatalf("no row is %q (%v)", line, err)
			}
			if (columns[4] != "") != addr.Is4In6() {
				t.Fatalf("%q: the IPv4 column of %v", line, addr)
			}
		}
	})
}
