package envgen

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"
)

// An inventory is gossiped about, sent and stored: nothing may be lost on the way.
func TestInventoryTravels(t *testing.T) {
	inv := with(spark("spark1", "172.16.10.160/24", "192.168.100.11/24", "192.168.101.11/24"), wifi(true, "fd00::1/64"))
	inv = changeHCA(inv, "rocep1s0f0", func(h *HCA) {
		h.RateMbps, h.PCIeGTps, h.PCIeLanes, h.PhysFn = new(200000), new(32.0), new(4), pci("0000:01:00.7")
	})
	for name, codec := range map[string]struct {
		marshal   func(any) ([]byte, error)
		unmarshal func([]byte, any) error
	}{
		"json": {json.Marshal, json.Unmarshal},
		"cbor": {cbor.Marshal, cbor.Unmarshal},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := codec.marshal(inv)
			if err != nil {
				t.Fatal(err)
			}
			var got Inventory
			if err := codec.unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(inv, got, byValue); diff != "" {
				t.Errorf("(-sent +received):\n%s", diff)
			}
			m, err := Meet([]NodeView{view(inv), view(spark("spark2", "172.16.10.161/24", "192.168.100.12/24"))})
			if err != nil {
				t.Fatal(err)
			}
			if data, err = codec.marshal(m); err != nil {
				t.Fatal(err)
			}
			var met Meeting
			if err := codec.unmarshal(data, &met); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(m, met, byValue); diff != "" {
				t.Errorf("(-sent +received):\n%s", diff)
			}
		})
	}
}

func TestPorts(t *testing.T) {
	device := func(name, address string) HCA {
		h := HCA{Name: name}
		if address != "" {
			h.PCI = pci(address)
		}
		return h
	}
	virtual := device("mlx5_9", "0000:01:00.2")
	virtual.PhysFn = pci("0000:01:00.0")
	for name, tc := range map[string]struct {
		devices []HCA
		want    string
	}{
		"none": {nil, ""},
		"spark, any names": {[]HCA{device("mlx5_3", "0002:01:00.1"), device("b", "0000:01:00.0"), device("a", "0002:01:00.0"), device("z", "0000:01:00.1")},
			"0 01:00.0: b a; 1 01:00.1: z mlx5_3; "},
		"server": {[]HCA{device("mlx5_1", "0000:3a:00.0"), device("mlx5_0", "0000:18:00.0"), device("mlx5_2", "0000:18:00.1")},
			"0 18:00.0: mlx5_0; 0 3a:00.0: mlx5_1; 1 18:00.1: mlx5_2; "},
		"a virtual function": {[]HCA{virtual, device("pf", "0000:01:00.0")}, "0 01:00.0: pf; "},
		"software":           {[]HCA{device("rxe1", ""), device("rxe0", ""), device("x", "0000:01:00.1")}, "1 01:00.1: x; - rxe0: rxe0; - rxe1: rxe1; "},
	} {
		var got strings.Builder
		for _, p := range Ports(Inventory{Devices: tc.devices}) {
			number := "-"
			if p.Number != nil {
				number = fmt.Sprint(*p.Number)
			}
			var twins []string
			for _, h := range p.Twins {
				twins = append(twins, h.Name)
			}
			fmt.Fprintf(&got, "%s %s: %s; ", number, p.Slot, strings.Join(twins, " "))
		}
		if got.String() != tc.want {
			t.Errorf("%s: got %q, want %q", name, got.String(), tc.want)
		}
	}
}

func TestParsePCIAddress(t *testing.T) {
	for text, want := range map[string]PCIAddress{
		"0000:01:00.0":  {0, 1, 0, 0},
		"0002:01:00.1":  {2, 1, 0, 1},
		"10000:e1:1f.7": {0x10000, 0xe1, 0x1f, 7}, // VMD
	} {
		got, err := ParsePCIAddress(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q: %+v (%s), %v; want %+v", text, got, got, err, want)
		}
	}
	for _, text := range []string{"", "virtio2", "01:00.0", "0000:01:00", "0000:01:20.0", "0000:01:00.8", "0000:1:00.0", "000g:01:00.0", "0000:01:00.0/", "+000:01:00.0", "aa:bb:cc:dd:ee:ff"} {
		if got, err := ParsePCIAddress(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

func FuzzParsePCIAddress(f *testing.F) {
	for _, s := range []string{"0000:01:00.0", "0002:01:00.1", "10000:e1:1f.7", "virtio2", "::."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParsePCIAddress(text)
		if err != nil {
			return
		}
		b, err := ParsePCIAddress(a.String())
		if err != nil || a != b {
			t.Fatalf("%q -> %v -> %v, %v", text, a, b, err)
		}
	})
}
