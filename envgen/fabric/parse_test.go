package fabric

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParsers(t *testing.T) {
	show := func(v any, err error) string {
		if err != nil {
			return "error"
		}
		return fmt.Sprint(v)
	}
	gid := func(s string) (any, error) {
		a, filled, err := parseGID(s)
		return fmt.Sprint(a, " ", filled), err
	}
	for _, tc := range []struct {
		parser string
		parse  func(string) (any, error)
		cases  map[string]string
	}{
		{"state", func(s string) (any, error) { return parseState(s) }, map[string]string{
			"4: ACTIVE\n": "ACTIVE", "1: DOWN": "DOWN", "5: LinkUp": "LinkUp", "6: Link error recovery": "Link error recovery", "3: <unknown>": "<unknown>",
			"": "error", "ACTIVE": "error", "4:ACTIVE": "error", "4: ": "error", ": ACTIVE": "error", "-1: X": "error", "4: A\n1: B": "error",
		}},
		{"rate", func(s string) (any, error) { return parseRate(s) }, map[string]string{
			"200 Gb/sec (4X HDR)\n": "200000", "200 Gb/sec (2X NDR)": "200000", "2.5 Gb/sec (1X SDR)": "2500", "40 Gb/sec (4X QDR)": "40000", "0 Gb/sec": "0",
			"": "error", "200": "error", "200 Gb/s": "error", "-1 Gb/sec": "error", "NaN Gb/sec": "error", "Inf Gb/sec": "error", "1e9 Gb/sec": "error", "200 Gb/secs": "error",
		}},
		{"gid", gid, map[string]string{
			"0000:0000:0000:0000:0000:ffff:c0a8:640a\n": "::ffff:192.168.100.10 true", "fe80:0000:0000:0000:4ebb:47ff:fe2e:bf42": "fe80::4ebb:47ff:fe2e:bf42 true",
			"0000:0000:0000:0000:0000:0000:0000:0000": ":: false",
			"": "error", "fe80::1": "error", "fe80:0000:0000:0000:4ebb:47ff:fe2e:bf4": "error", "fe80-0000:0000:0000:4ebb:47ff:fe2e:bf42": "error", "fe80:0000:0000:0000:4ebb:47ff:fe2e:+f42": "error",
		}},
		{"link speed", func(s string) (any, error) { return parseLinkSpeed(s) }, map[string]string{
			"32.0 GT/s PCIe\n": "32", "2.5 GT/s PCIe": "2.5", "8 GT/s": "8", "Unknown": "error", "": "error", "32": "error", "0 GT/s": "error", "NaN GT/s": "error", "32.0 GT/s USB": "error",
		}},
		{"link width", func(s string) (any, error) { return parseLinkWidth(s) }, map[string]string{
			"4\n": "4", "16": "16", "0": "error", "63": "error", "255": "error", "x4": "error", "": "error",
		}},
		{"speed", func(s string) (any, error) { return parseSpeed(s) }, map[string]string{
			"200000\n": "200000", "10000": "10000", "-1": "error", "0": "error", "65535": "error", "4294967295": "error", "": "error",
		}},
		{"device target", func(s string) (any, error) { return parsePCITarget(s) }, map[string]string{
			"../../../0000:01:00.0": "0000:01:00.0", "0002:01:00.1": "0002:01:00.1", "../../../virtio2": "error", "../..": "error", "": "error",
		}},
	} {
		for text, want := range tc.cases {
			if got := show(tc.parse(text)); got != want {
				t.Errorf("%s of %q: %s, want %s", tc.parser, text, got, want)
			}
		}
	}
}

func FuzzParseState(f *testing.F) {
	for _, s := range []string{"4: ACTIVE", "5: LinkUp", "1: DOWN\n", "4:", ": "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		word, err := parseState(text)
		if err == nil && (word == "" || strings.Contains(word, "\n")) {
			t.Fatalf("%q gives %q", text, word)
		}
	})
}

func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"200 Gb/sec (4X HDR)", "2.5 Gb/sec (1X SDR)", "1e300 Gb/sec", "-0 Gb/sec"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		mbps, err := parseRate(text)
		if err == nil && (mbps < 0 || mbps > maxMbps) {
			t.Fatalf("%q gives %d Mb/s", text, mbps)
		}
	})
}

func FuzzParseGID(f *testing.F) {
	f.Add("0000:0000:0000:0000:0000:ffff:c0a8:640a")
	f.Add("fe80:0000:0000:0000:4ebb:47ff:fe2e:bf42\n")
	f.Fuzz(func(t *testing.T, text string) {
		addr, filled, err := parseGID(text)
		if err != nil {
			return
		}
		if filled == addr.IsUnspecified() {
			t.Fatalf("%q gives %v, filled %v", text, addr, filled)
		}
		// The standard library reads the same text, but for its zone and dotted forms.
		if want, err := netip.ParseAddr(strings.TrimSpace(text)); err != nil || want != addr {
			t.Fatalf("%q gives %v, want %v (%v)", text, addr, want, err)
		}
	})
}

func FuzzParseLink(f *testing.F) {
	f.Add("32.0 GT/s PCIe")
	f.Add("4")
	f.Add("200000")
	f.Add("18446744073709551615")
	f.Add("N/A (no PMA)")
	f.Fuzz(func(t *testing.T, text string) {
		if gtps, err := parseLinkSpeed(text); err == nil && (gtps <= 0 || math.IsNaN(gtps) || gtps > 1024) {
			t.Fatalf("%q gives %v GT/s", text, gtps)
		}
		if lanes, err := parseLinkWidth(text); err == nil && (lanes < 1 || lanes > 32) {
			t.Fatalf("%q gives %d lanes", text, lanes)
		}
		if mbps, err := parseSpeed(text); err == nil && mbps <= 0 {
			t.Fatalf("%q gives %d Mb/s", text, mbps)
		}
		if n, err := parseCounter(text); err == nil && strings.TrimLeft(strings.TrimSpace(text), "0") != strings.TrimLeft(fmt.Sprint(n), "0") {
			t.Fatalf("%q counts %d", text, n)
		}
	})
}

// Trees not made by a kernel have other links than it makes; a link must never be followed out of the root.
func TestLinkPCI(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"devices/pci0000:00/0000:01:00.0/infiniband/a", "devices/pci0000:00/0000:00:03.0/virtio2/net/eth0", "class/net", "class/infiniband", "plain/device"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"class/infiniband/a": "../../devices/pci0000:00/0000:01:00.0/infiniband/a",
		"devices/pci0000:00/0000:01:00.0/infiniband/a/device": "../..",
		"class/net/eth0": "../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0",
		"devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/device": "../../../virtio2",
		"plain/absolute": "/sys/devices/pci0000:00/0000:09:00.0",
		"plain/outside":  "../../../../virtio9",
		"plain/loop":     "loop",
		"plain/dangling": "../nowhere",
	} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := sysfs{dirFS(root)}
	for name, want := range map[string]string{
		"class/infiniband/a/device": "0000:01:00.0",
		"class/net/eth0/device":     "0000:00:03.0",
		"plain/absolute":            "0000:09:00.0",
		"plain/outside":             "",
		"plain/loop":                "",
		"plain/dangling":            "",
		"plain/device":              "", // a folder
		"plain/missing":             "",
	} {
		got := ""
		if addr := s.linkPCI(name); addr != nil {
			got = addr.String()
		}
		if got != want {
			t.Errorf("%s leads to %q, want %q", name, got, want)
		}
	}
}
