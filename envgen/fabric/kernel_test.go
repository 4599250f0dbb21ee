package fabric

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric/fabrictest"
	"github.com/sparkrun/sparkrun/scripts/apart"
)

// asNobody is set in the copy of this test program that has no rights.
const asNobody = "FABRIC_TEST_AS_NOBODY"

func TestMain(m *testing.M) {
	if apart.Inside() || os.Getenv(asNobody) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// The machine the test runs on always has loopback.
func TestReadThisMachine(t *testing.T) {
	r, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	inv, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lo, ok := inv.Holder(netip.MustParseAddr("127.0.0.1"))
	if !ok || !lo.Loopback || lo.Physical || lo.DefaultRoute || !lo.HasCarrier() {
		t.Errorf("lo is %+v", lo)
	}
	host, _ := os.Hostname()
	if inv.Host != host {
		t.Errorf("host %q, want %q", inv.Host, host)
	}
	if id, err := r.BootID(); err != nil || len(id) != 36 {
		t.Errorf("boot id %q, %v", id, err)
	}
}

// TestLiveNamespace runs TestInsideNamespace in a network namespace of its own, where links may be made and cut.
func TestLiveNamespace(t *testing.T) {
	apart.Run(t, "TestInsideNamespace", unix.CLONE_NEWNET)
}

// TestInsideNamespace pulls and plugs a cable (a veth) under a simulated Spark and takes the time of the news.
func TestInsideNamespace(t *testing.T) {
	if !apart.Inside() {
		return // run by TestLiveNamespace
	}
	defer goleak.VerifyNone(t)
	fx := loadFixture(t, "spark-one-cable")
	r, err := New(Config{FS: fabrictest.Tree{ReadLinkFS: dirFS(fx.Plant(t))}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	news := make(chan envgen.Inventory, 100)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, func(inv envgen.Inventory) { news <- inv }) }()

	await := func(what string, ok func(envgen.NIC, bool) bool) {
		t.Helper()
		begin := time.Now()
		deadline := time.After(30 * time.Second)
		for {
			select {
			case inv := <-news:
				if nic, there := inv.NIC("enp1s0f0np0"); ok(nic, there) {
					took := time.Since(begin)
					t.Logf("%s: known after %v", what, took.Round(time.Millisecond))
					if took > 10*time.Second {
						t.Errorf("%s: known after %v, want within 1 s on a quiet machine", what, took)
					}
					return
				}
			case <-deadline:
				t.Fatalf("%s: not told within 30 s", what)
			}
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link := func(name string) netlink.Link {
		t.Helper()
		l, err := netlink.LinkByName(name)
		do(err)
		return l
	}

	await("an empty namespace", func(_ envgen.NIC, there bool) bool { return !there })
	do(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "enp1s0f0np0", MTU: 9000}, PeerName: "far-end"}))
	await("a link set down", func(n envgen.NIC, there bool) bool {
		// A veth with a device link in the tree is hardware; one set down has no known carrier.
		return there && !n.Up && n.Carrier == nil && n.Physical && n.MTU == 9000 && n.Kind == "veth" && n.PCI.String() == "0000:01:00.0" && n.MAC != ""
	})
	do(netlink.LinkSetUp(link("enp1s0f0np0")))
	await("set up, no cable", func(n envgen.NIC, _ bool) bool { return n.Up && n.Carrier != nil && !*n.Carrier })
	do(netlink.LinkSetUp(link("far-end")))
	await("cable plugged", func(n envgen.NIC, _ bool) bool { return n.HasCarrier() && n.OperState == "up" && n.SpeedMbps != nil })

	first, second := "10.10.1.11/24", "10.10.1.9/24"
	for _, a := range []string{first, second} {
		addr, err := netlink.ParseAddr(a)
		do(err)
		do(netlink.AddrAdd(link("enp1s0f0np0"), addr))
	}
	await("two addresses, the primary first", func(n envgen.NIC, _ bool) bool {
		var v4 []netip.Prefix
		for _, p := range n.Addresses {
			if p.Addr().Is4() {
				v4 = append(v4, p)
			}
		}
		return slices.Equal(v4, []netip.Prefix{netip.MustParsePrefix(first), netip.MustParsePrefix(second)})
	})
	route := &netlink.Route{Gw: net.IPv4(10, 10, 1, 1), LinkIndex: link("enp1s0f0np0").Attrs().Index}
	do(netlink.RouteAdd(route))
	await("a default route", func(n envgen.NIC, _ bool) bool { return n.DefaultRoute })
	do(netlink.RouteDel(route))
	await("the default route gone", func(n envgen.NIC, _ bool) bool { return !n.DefaultRoute })
	do(netlink.LinkSetDown(link("far-end")))
	await("cable pulled", func(n envgen.NIC, _ bool) bool { return n.Carrier != nil && !*n.Carrier && n.SpeedMbps == nil })
	do(netlink.LinkDel(link("enp1s0f0np0")))
	await("the link gone", func(_ envgen.NIC, there bool) bool { return !there })

	cancel(errStopped)
	if err := <-done; !errors.Is(err, errStopped) {
		t.Errorf("Run gave %v, want the cause", err)
	}
}

func TestDumpRepeats(t *testing.T) {
	calls := 0
	got, err := dump(t.Context(), func() (int, error) {
		if calls++; calls < 3 {
			return 0, netlink.ErrDumpInterrupted
		}
		return calls, nil
	})
	if got != 3 || err != nil {
		t.Errorf("got %d, %v after %d calls", got, err, calls)
	}
	calls = 0
	if _, err := dump(t.Context(), func() (int, error) { calls++; return 0, netlink.ErrDumpInterrupted }); !errors.Is(err, netlink.ErrDumpInterrupted) || calls != dumpAttempts {
		t.Errorf("%v after %d calls, want the interruption after %d", err, calls, dumpAttempts)
	}
	calls = 0
	if _, err := dump(t.Context(), func() (int, error) { calls++; return 0, unix.EPERM }); !errors.Is(err, unix.EPERM) || calls != 1 {
		t.Errorf("%v after %d calls, want EPERM at once", err, calls)
	}
}

// The kernel's three listings, with what only some machines have: multipath and unreachable defaults, addresses in
// passing, a link that went between the listings.
func TestAssemble(t *testing.T) {
	ipnet := func(s string) *net.IPNet {
		addr, err := netlink.ParseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		return addr.IPNet
	}
	up := uint32(unix.IFF_UP | unix.IFF_LOWER_UP)
	links := []netlink.Link{
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo", RawFlags: up | unix.IFF_LOOPBACK}},
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 2, Name: "a", RawFlags: up, MTU: 1500, OperState: netlink.OperUp}},
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: 3, Name: "b", RawFlags: unix.IFF_UP}},
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 4, Name: "c"}},
	}
	addrs := []netlink.Addr{
		{LinkIndex: 2, IPNet: ipnet("10.0.0.1/24")},
		{LinkIndex: 2, IPNet: ipnet("10.0.0.2/24"), Flags: unix.IFA_F_SECONDARY},
		{LinkIndex: 2, IPNet: ipnet("fd00::1/64")},
		{LinkIndex: 2, IPNet: ipnet("fd00::2/64"), Flags: unix.IFA_F_TENTATIVE},
		{LinkIndex: 2, IPNet: ipnet("fd00::3/64"), Flags: unix.IFA_F_TEMPORARY},
		{LinkIndex: 2, IPNet: ipnet("fd00::4/64"), Flags: unix.IFA_F_DADFAILED},
		{LinkIndex: 9, IPNet: ipnet("10.9.9.9/24")},
		{LinkIndex: 2},
	}
	routes := []netlink.Route{
		{LinkIndex: 2, Dst: ipnet("10.0.0.0/24"), Type: unix.RTN_UNICAST},
		{LinkIndex: 1, Dst: ipnet("::/0"), Type: unix.RTN_UNREACHABLE},
		{Dst: ipnet("0.0.0.0/0"), Type: unix.RTN_UNICAST, MultiPath: []*netlink.NexthopInfo{{LinkIndex: 3}, {LinkIndex: 9}}},
	}
	want := []Link{
		{Name: "lo", Up: true, Carrier: new(true), OperState: "unknown", Kind: "device", Loopback: true},
		{Name: "a", MTU: 1500, Up: true, Carrier: new(true), OperState: "up", Kind: "device",
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("fd00::1/64")}},
		{Name: "b", Up: true, Carrier: new(false), OperState: "unknown", Kind: "bridge", DefaultRoute: true},
		{Name: "c", OperState: "unknown", Kind: "device"},
	}
	if diff := cmp.Diff(want, assemble(links, addrs, routes), byValue); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
