package gossip

import (
	"bytes"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestMetaRoundTrip(t *testing.T) {
	for _, m := range []Meta{
		{ID: nodeID(1), Host: "a"},
		{ID: nodeID(2), Host: strings.Repeat("h", maxHost), RPCPort: 65535, Epoch: math.MaxUint64,
			Version: strings.Repeat("v", maxVersion), InventoryHash: strings.Repeat("f", maxHash), Leaving: true,
			Fabric: fabric("fe80::1 fd00::2 fd00::3 fd00::4 fd00::5 fd00::6 fd00::7 fd00::8 fd00::9").Fabric},
		fabric("192.168.1.2 fe80::1 192.168.2.2"),
	} {
		b, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if len(b) >= maxMeta {
			t.Errorf("%d bytes", len(b))
		}
		got, err := decodeMeta(b)
		if err != nil || got != m {
			t.Errorf("%+v, %v, want %+v", got, err, m)
		}
		// A newer node tells more.
		if got, err = decodeMeta(append(b, 200, 3, 1, 2, 3)); err != nil || got != m {
			t.Errorf("with a new field: %+v, %v", got, err)
		}
	}
}

// fabric is a node with these addresses.
func fabric(text string) Meta {
	var addrs []netip.Addr
	for _, a := range strings.Fields(text) {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return Meta{ID: nodeID(1), Host: "a"}.WithFabric(addrs)
}

func TestFabricAddresses(t *testing.T) {
	got := fabric("fe80::1%eth0 192.168.1.2 ::ffff:192.168.2.2 192.168.3.2").FabricAddrs()
	want := []netip.Addr{netip.MustParseAddr("192.168.1.2"), netip.MustParseAddr("192.168.2.2"),
		netip.MustParseAddr("192.168.3.2"), netip.MustParseAddr("fe80::1")}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMetaRefused(t *testing.T) {
	good := Meta{ID: nodeID(1), Host: "spark1"}
	for name, tc := range map[string]struct {
		spoil func(*Meta)
		large bool
	}{
		"host":           {func(m *Meta) { m.Host = strings.Repeat("h", maxHost+1) }, true},
		"version":        {func(m *Meta) { m.Version = strings.Repeat("1", maxVersion+1) }, true},
		"inventory hash": {func(m *Meta) { m.InventoryHash = strings.Repeat("1", maxHash+1) }, true},
		"id":             {func(m *Meta) { m.ID = strings.ToUpper("abcdefab-0000-4000-8000-000000000001") }, false},
		"option":         {func(m *Meta) { m.Host = "-rf" }, false},
		"newline":        {func(m *Meta) { m.Version = "1\n2" }, false},
	} {
		m := good
		tc.spoil(&m)
		if _, err := m.Encode(); err == nil || errors.Is(err, ErrMetaTooLarge) != tc.large {
			t.Errorf("%s: %v", name, err)
		}
	}
	b, _ := good.Encode()
	for name, bad := range map[string][]byte{
		"nothing":      nil,
		"cut":          b[:len(b)-1],
		"twice":        append(bytes.Clone(b), b...),
		"huge":         bytes.Repeat(b, 30),
		"no id":        b[18:],
		"short id":     {tagID, 3, 1, 2, 3},
		"bad port":     append(bytes.Clone(b[:26]), tagRPCPort, 1, 1),
		"half address": append(bytes.Clone(b), tagFabric4, 2, 10, 0),
		"too many":     append(append(bytes.Clone(b), tagFabric4, 36), bytes.Repeat([]byte{10, 0, 0, 1}, 9)...),
		"no address":   append(bytes.Clone(b), tagFabric4, 4, 0, 0, 0, 0),
		"mapped":       append(append(bytes.Clone(b), tagFabric6, 16), netip.MustParseAddr("::ffff:10.0.0.1").AsSlice()...),
		"endless uint": append(bytes.Clone(b[:26]), tagEpoch, 2, 0x80, 0x00),
	} {
		if m, err := decodeMeta(bad); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// Whatever peers send: what is accepted is within the limits and says the same
// when it is told on.
func FuzzMeta(f *testing.F) {
	for _, m := range []Meta{{ID: nodeID(1), Host: "a"},
		{ID: nodeID(1), Host: "b", RPCPort: 1, Epoch: 300, Version: "v", InventoryHash: "h", Leaving: true},
		fabric("10.0.0.1 fd00::1")} {
		b, err := m.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			if m != (Meta{}) && !errors.Is(err, ErrMetaTooLarge) && m.check() == nil {
				t.Fatalf("an error with a good value: %+v", m)
			}
			return
		}
		again, err := m.Encode()
		if err != nil {
			t.Fatalf("%+v was accepted: %v", m, err)
		}
		if got, err := decodeMeta(again); err != nil || got != m {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
	})
}
