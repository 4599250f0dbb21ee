package envgen

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func wifi(carrier bool, addr string) NIC {
	n := NIC{Name: "wlP9s9", PCI: pci("0009:01:00.0"), Up: true, Carrier: new(carrier), Kind: "device", Physical: true, Wireless: true}
	if addr != "" {
		n.Addresses = []netip.Prefix{netip.MustParsePrefix(addr)}
	}
	return n
}

func virtual(name, kind, addr string, defaultRoute bool) NIC {
	return NIC{Name: name, Kind: kind, Up: true, Carrier: new(true), DefaultRoute: defaultRoute,
		Addresses: []netip.Prefix{netip.MustParsePrefix(addr)}}
}

func with(inv Inventory, nics ...NIC) Inventory {
	inv.NICs = append(append([]NIC(nil), inv.NICs...), nics...)
	return inv
}

func TestManagement(t *testing.T) {
	docker := virtual("docker0", "bridge", "172.17.0.1/16", false)
	full := with(spark("spark1", "172.16.10.160/24", "192.168.100.11/24"), wifi(true, "10.1.1.1/24"), docker)
	noCable := change(full, "enP7s7", func(n *NIC) { n.Carrier = new(false) })
	usb := NIC{Name: "enx0", Up: true, Carrier: new(true), Physical: true, Addresses: []netip.Prefix{netip.MustParsePrefix("10.2.2.2/24")}}
	addresses := func(texts ...string) func(*NIC) {
		return func(n *NIC) {
			n.Addresses = nil
			for _, s := range texts {
				n.Addresses = append(n.Addresses, netip.MustParsePrefix(s))
			}
		}
	}
	for name, tc := range map[string]struct {
		inv       Inventory
		override  string
		nic, addr string
		warning   string
	}{
		"spark":                        {full, "", "enP7s7", "172.16.10.160", ""},
		"default route lies elsewhere": {change(full, "enp1s0f0np0", func(n *NIC) { n.DefaultRoute = true }), "", "enP7s7", "172.16.10.160", ""},
		"wi-fi alone":                  {with(spark("spark1", "", "192.168.100.11/24"), wifi(true, "10.1.1.1/24")), "", "wlP9s9", "10.1.1.1", "Wi-Fi"},
		"cable pulled, wi-fi there":    {noCable, "", "wlP9s9", "10.1.1.1", "Wi-Fi"},
		"cable pulled, nothing else":   {change(spark("spark1", "10.0.0.1/24"), "enP7s7", func(n *NIC) { n.Carrier = new(false) }), "", "enP7s7", "10.0.0.1", "no link"},
		"ipv6 alone":                   {change(full, "enP7s7", addresses("fe80::1/64", "fd00::7/64")), "", "enP7s7", "fd00::7", ""},
		"ipv4 before ipv6":             {change(full, "enP7s7", addresses("fd00::7/64", "10.3.3.3/24")), "", "enP7s7", "10.3.3.3", ""},
		"first ipv4 is the primary":    {change(full, "enP7s7", addresses("10.3.3.9/24", "10.3.3.3/24")), "", "enP7s7", "10.3.3.9", ""},
		"link-local does not count":    {change(full, "enP7s7", addresses("169.254.1.1/16", "fe80::1/64")), "", "wlP9s9", "10.1.1.1", "Wi-Fi"},
		"two wired: the one on PCI":    {with(spark("spark1", "10.0.0.1/24"), usb), "", "enP7s7", "10.0.0.1", ""},
		"two wired: default route":     {with(spark("spark1", "10.0.0.1/24"), usbWithRoute(usb)), "", "enx0", "10.2.2.2", ""},
		"vm":                           {with(machine("vm", ""), NIC{Name: "eth0", Kind: "device", Up: true, Carrier: new(true), Physical: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24")}}, docker), "", "eth0", "192.0.2.2", ""},
		"lab: a veth with a device":    {change(full, "enP7s7", func(n *NIC) { n.Kind = "veth" }), "", "enP7s7", "172.16.10.160", ""},
		"container":                    {with(machine("c", ""), docker, virtual("eth0", "veth", "172.18.0.5/16", true)), "", "eth0", "172.18.0.5", "no hardware"},
		"by name":                      {full, "enp1s0f0np0", "enp1s0f0np0", "192.168.100.11", ""},
		"by name, link-local":          {spark("s", "", "169.254.3.4/16"), "enp1s0f0np0", "enp1s0f0np0", "169.254.3.4", ""},
		"by address":                   {full, "192.168.100.11", "enp1s0f0np0", "192.168.100.11", ""},
		"by loopback address":          {full, "127.0.0.5", "lo", "127.0.0.5", ""},
		"by name, pulled":              {noCable, "enP7s7", "enP7s7", "172.16.10.160", "no link"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Management(tc.inv, tc.override)
			if err != nil {
				t.Fatal(err)
			}
			if got.NIC != tc.nic || got.Addr.String() != tc.addr {
				t.Errorf("got %s %s, want %s %s", got.NIC, got.Addr, tc.nic, tc.addr)
			}
			if (got.Warning == "") != (tc.warning == "") || !strings.Contains(got.Warning, tc.warning) {
				t.Errorf("warning %q, want one with %q", got.Warning, tc.warning)
			}
		})
	}
}

func usbWithRoute(n NIC) NIC {
	n.DefaultRoute = true
	return n
}

func TestManagementErrors(t *testing.T) {
	fabricOnly := with(spark("spark1", "", "192.168.100.11/24"),
		virtual("docker0", "bridge", "172.17.0.1/16", false), wifi(true, ""))
	noDriver := fabricOnly
	noDriver.Devices = nil // the vendor alone tells
	for name, tc := range map[string]struct {
		inv      Inventory
		override string
		want     []string
		none     bool
	}{
		"fabric only":    {fabricOnly, "", []string{"spark1", "lo (loopback)", "enp1s0f0np0 (fabric)", "docker0 (virtual", "wlP9s9 (no address)", "--management IFACE|ADDR"}, true},
		"no rdma driver": {noDriver, "", []string{"enp1s0f0np0 (fabric)"}, true},
		"nothing":        {Inventory{Host: "x"}, "", []string{"no interfaces at all"}, true},
		"set down":       {change(spark("s", "10.0.0.1/24"), "enP7s7", func(n *NIC) { n.Up, n.Carrier = false, nil }), "", []string{"enP7s7 (set down)"}, true},
		"unknown name":   {fabricOnly, "eth7", []string{"no interface eth7", "enp1s0f0np0 192.168.100.11", "--management"}, true},
		"unknown addr":   {fabricOnly, "10.9.9.9", []string{"no interface has address 10.9.9.9", "enp1s0f0np0 192.168.100.11"}, true},
		"without addr":   {fabricOnly, "wlP9s9", []string{"wlP9s9 has no address"}, true},
		"everything":     {fabricOnly, "0.0.0.0", []string{"want one address of this node"}, false},
		"everything v6":  {fabricOnly, "::", []string{"want one address of this node"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Management(tc.inv, tc.override)
			if err == nil {
				t.Fatalf("got %+v, want an error", got)
			}
			if errors.Is(err, ErrNoManagement) != tc.none {
				t.Errorf("errors.Is(%v, ErrNoManagement) = %v", err, !tc.none)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}
