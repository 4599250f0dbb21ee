package fabric

import (
	"context"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric/fabrictest"
)

// FuzzTree puts any text into any file of a Spark's tree, and lets any link lead anywhere: the rest is read as before,
// and what comes out is an inventory that the rules can work with.
func FuzzTree(f *testing.F) {
	host := fabrictest.New()
	for _, line := range []string{"spark 2e:bf 172.16.10.160/24", "port 0 10.10.1.11/24 10.10.2.11/24", "card 0000:01:00.2 physfn=0000:01:00.0"} {
		if err := host.Line(line); err != nil {
			f.Fatal(err)
		}
	}
	var names []string
	for name := range host.Files {
		names = append(names, name)
	}
	slices.Sort(names)
	var links []Link
	for _, l := range host.Links {
		links = append(links, Link(l))
	}
	for i := range names {
		f.Add(uint16(i), uint16(i+1), "", "9: \x00")
	}
	f.Add(uint16(0), uint16(1), "RoCE v2\nRoCE v2", "../../../..")
	f.Fuzz(func(t *testing.T, first, second uint16, a, b string) {
		tree := fstest.MapFS{}
		for name, file := range host.Files {
			tree[name] = file
		}
		for i, text := range map[uint16]string{first: a, second: b} {
			name := names[int(i)%len(names)]
			file := *tree[name]
			file.Data = []byte(text)
			tree[name] = &file
		}
		r, err := New(Config{FS: tree, Hostname: func() (string, error) { return "spark1", nil },
			Links: func(context.Context) ([]Link, error) { return links, nil }})
		if err != nil {
			t.Fatal(err)
		}
		inv, err := r.Read(t.Context())
		if err != nil {
			return // class/infiniband itself was no folder
		}
		checkInventory(t, inv)
	})
}

// checkInventory holds an inventory to what its fields promise, and has the rules and the printers work with it.
func checkInventory(t *testing.T, inv envgen.Inventory) {
	t.Helper()
	for _, h := range inv.Devices {
		if h.Name == "" || h.RateMbps != nil && (*h.RateMbps < 0 || *h.RateMbps > maxMbps) || h.PCIeLanes != nil && *h.PCIeLanes < 1 || h.PCIeGTps != nil && !(*h.PCIeGTps > 0) {
			t.Fatalf("device %+v", h)
		}
		for i, g := range h.GIDs {
			if g.Addr.IsUnspecified() || !g.Addr.Is6() || g.Type == "" || i > 0 && h.GIDs[i-1].Index >= g.Index {
				t.Fatalf("%s has rows %+v", h.Name, h.GIDs)
			}
		}
	}
	for _, n := range inv.NICs {
		if n.SpeedMbps != nil && (*n.SpeedMbps <= 0 || !n.HasCarrier()) || n.PCI == nil && n.PCIVendor != "" {
			t.Fatalf("interface %+v", n)
		}
	}
	ports := envgen.Ports(inv)
	envgen.Roles(inv, ports, envgen.RoleSettings{Mgmt: netip.MustParseAddr("172.16.10.160")})
	for name, at := range envgen.PortsByName(ports) {
		if at < 0 || at >= len(ports) {
			t.Fatalf("port %q is number %d of %d", name, at, len(ports))
		}
	}
	envgen.CableNICs(inv)
	envgen.ShowGIDs(inv)
	if lines := strings.Count(envgen.IBDev2Netdev(inv), " port 1 ==> "); lines < len(inv.Devices) {
		t.Fatalf("%d lines for %d devices", lines, len(inv.Devices))
	}
}

// FuzzLinkTarget lets a device's link lead anywhere: it is followed within the tree only, and never for ever.
func FuzzLinkTarget(f *testing.F) {
	for _, target := range []string{"../../0000:01:00.0", "../../../virtio2", "..", ".", "device", "/sys/devices/0000:01:00.0", "../../../../../..", "a/../device", "\x00"} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		s := sysfs{fstest.MapFS{"class/net/a/device": &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}}}
		addr := s.linkPCI("class/net/a/device")
		if want, err := parsePCITarget(target); err == nil && (addr == nil || *addr != want) {
			t.Fatalf("a link to %q leads to %v, want %v", target, addr, want)
		}
		if real, err := s.realpath("class/net/a/device"); err == nil && (path.IsAbs(real) || real == ".." || strings.HasPrefix(real, "../")) {
			t.Fatalf("a link to %q leads out of the tree: %q", target, real)
		}
	})
}

// dice reads a listing of the kernel's out of bytes.
type dice []byte

func (d *dice) n(limit int) int {
	if len(*d) == 0 {
		return 0
	}
	v := int((*d)[0])
	*d = (*d)[1:]
	return v % limit
}

// ipnet is a network as netlink gives it: also none, with an odd mask, or of no length at all.
func (d *dice) ipnet() *net.IPNet {
	length := []int{4, 16, 0, 4, 16, 5}[d.n(6)]
	ip := make(net.IP, length)
	for i := range ip {
		ip[i] = byte(d.n(256))
	}
	switch d.n(5) {
	case 0:
		return nil
	case 1:
		return &net.IPNet{IP: ip, Mask: net.IPMask{0xff, 0, 0xff, 0}}
	case 2:
		return &net.IPNet{IP: ip}
	}
	return &net.IPNet{IP: ip, Mask: net.CIDRMask(d.n(length*8+1), length*8)}
}

// FuzzAssemble joins any three listings: they are of three moments, so an address may be of a link that has gone or was
// not there yet.
func FuzzAssemble(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 1, 3, 1, 2, 3, 2, 4, 1, 0, 10, 0, 0, 1, 4, 24, 2, 1, 0, 0, 0, 0, 0, 0, 1, 1})
	f.Add([]byte("the kernel says many things, and not always what was asked for; some of it twice over"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := dice(data)
		var links []netlink.Link
		var addrs []netlink.Addr
		var routes []netlink.Route
		flags := []uint32{0, unix.IFF_UP, unix.IFF_UP | unix.IFF_LOWER_UP, unix.IFF_LOOPBACK | unix.IFF_UP | unix.IFF_LOWER_UP, unix.IFF_LOWER_UP}
		for range d.n(6) {
			attrs := netlink.LinkAttrs{Index: d.n(6), Name: string(rune('a' + d.n(6))), RawFlags: flags[d.n(len(flags))], MTU: d.n(256), HardwareAddr: make(net.HardwareAddr, d.n(21)), OperState: netlink.LinkOperState(d.n(9))}
			links = append(links, []netlink.Link{&netlink.Device{LinkAttrs: attrs}, &netlink.Bond{LinkAttrs: attrs}, &netlink.GenericLink{LinkAttrs: attrs, LinkType: "new"}}[d.n(3)])
		}
		for range d.n(8) {
			addrs = append(addrs, netlink.Addr{LinkIndex: d.n(8), IPNet: d.ipnet(), Flags: 1 << d.n(9)})
		}
		for range d.n(8) {
			r := netlink.Route{LinkIndex: d.n(8), Dst: d.ipnet(), Type: []int{unix.RTN_UNICAST, unix.RTN_UNREACHABLE, unix.RTN_LOCAL}[d.n(3)]}
			for range d.n(3) {
				r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: d.n(8)})
			}
			routes = append(routes, r)
		}
		got := assemble(links, addrs, routes)
		if len(got) != len(links) {
			t.Fatalf("%d links make %d", len(links), len(got))
		}
		total := 0
		for i, l := range got {
			total += len(l.Addresses)
			if l.Name != links[i].Attrs().Name || (l.Carrier != nil) != l.Up || l.DefaultRoute && (l.Loopback || len(routes) == 0) {
				t.Fatalf("link %d is %+v, of %+v", i, l, links[i].Attrs())
			}
			for _, p := range l.Addresses {
				if !p.IsValid() || p.Addr().Is4In6() {
					t.Fatalf("%s has the address %v", l.Name, p)
				}
			}
		}
		if total > len(addrs) {
			t.Fatalf("%d addresses of %d", total, len(addrs))
		}
		// And the reader takes it as it is.
		r, err := New(Config{FS: fstest.MapFS{}, Hostname: func() (string, error) { return "h", nil }, Links: func(context.Context) ([]Link, error) { return got, nil }})
		if err != nil {
			t.Fatal(err)
		}
		inv, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		checkInventory(t, inv)
		_, _ = envgen.Management(inv, "")
	})
}
