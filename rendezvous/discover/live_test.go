package discover

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/scripts/apart"
)

// patience bounds what a busy machine may need.
const patience = 60 * time.Second

func TestLiveLinks(t *testing.T) { apart.Run(t, "TestInsideNamespace", unix.CLONE_NEWNET) }

// TestInsideNamespace has two links, and real sockets.
func TestInsideNamespace(t *testing.T) {
	if !apart.Inside() {
		return // run by TestLiveLinks
	}
	lo, err := netlink.LinkByName("lo")
	do(t, err)
	do(t, netlink.LinkSetUp(lo))
	m4 := link(t, "m0", "10.9.1.1/24", "10.9.1.2/24")
	x4 := link(t, "x0", "10.9.2.1/24")
	m6 := m4
	m6.Addr = netip.MustParseAddr("fd09::1")
	addAddr(t, "m0", "fd09::1/64")
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()

	// As avahi has it: bound to all addresses, before us; joined on every interface.
	avahi := avahiSocket(t)
	for _, name := range []string{"m0", "x0"} {
		joinAs(t, avahi, name)
	}

	t.Run("found on its link", func(t *testing.T) {
		run, stop := context.WithCancel(ctx)
		one, two := member("spark1", "10.9.1.1:7940"), member("spark2", "10.9.1.2:7940")
		six := member("spark3", "[fd09::1]:7940")
		var ended []<-chan error
		for _, a := range []struct {
			on Link
			m  Member
		}{{m4, one}, {m4, two}, {m6, six}} {
			ended = append(ended, announcing(run, a.on, a.m))
		}
		found(ctx, t, m4, Cluster{clusterA, pinA, []Found{{"spark1", one.Addr}, {"spark2", two.Addr}}})
		found(ctx, t, m6, Cluster{clusterA, pinA, []Found{{"spark3", six.Addr}}})
		// Others have joined the group on x0, so the kernel would give us what comes there.
		if got, err := Browse(ctx, Members, []Link{x4}); err != nil || len(got) != 0 {
			t.Errorf("on another link it found %+v, %v", got, err)
		}
		stop()
		for _, e := range ended {
			if err := <-e; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if got, err := Browse(ctx, Members, []Link{m4, m6}); err != nil || len(got) != 0 {
			t.Errorf("after the end it found %+v, %v", got, err)
		}
	})

	t.Run("the port is shared", func(t *testing.T) {
		w, err := open(m4)
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		// What is sent to this host alone is avahi's still, though our socket is the newer one.
		c, err := net.Dial("udp4", "10.9.1.1:5353")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("for avahi")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, maxPacket)
		if err := avahi.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := avahi.Read(buf)
			if err != nil {
				t.Fatal("avahi does not get what is sent to this host: ", err)
			}
			if string(buf[:n]) == "for avahi" {
				return
			}
		}
	})

	t.Run("the port is not to be had", func(t *testing.T) {
		avahi.Close()
		c, err := net.ListenPacket("udp4", ":5353")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := Announce(ctx, m4, member("spark1", "10.9.1.1:7940")); !errors.Is(err, syscall.EADDRINUSE) ||
			!strings.Contains(err.Error(), "5353 for mDNS on m0") {
			t.Errorf("announce: %v", err)
		}
		if _, err := Browse(ctx, Members, []Link{m4}); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("browse: %v", err)
		}
	})

	t.Run("links", func(t *testing.T) {
		got, err := Links()
		if diff := cmp.Diff([]Link{m4, x4}, got, cmp.Comparer(func(a, b Link) bool { return a == b })); diff != "" ||
			err != nil {
			t.Errorf("%v, -want +got:\n%s", err, diff)
		}
		if _, err := LinkOf("lo", netip.MustParseAddr("127.0.0.1")); !errors.Is(err, ErrNoMulticast) {
			t.Errorf("lo: %v", err)
		}
		if _, err := Browse(ctx, SSH, nil); err == nil || !strings.Contains(err.Error(), "no network interface") {
			t.Errorf("without a link: %v", err)
		}
	})
}

func announcing(ctx context.Context, on Link, m Member) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- Announce(ctx, on, m) }()
	return ended
}

// found browses until a link has told of just that cluster.
func found(ctx context.Context, t *testing.T, on Link, want Cluster) {
	t.Helper()
	for until := time.Now().Add(patience); ; {
		in, err := Browse(ctx, Members, []Link{on})
		if err != nil {
			t.Fatal(err)
		}
		diff := cmp.Diff([]Cluster{want}, Clusters(in), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
		if diff == "" {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("on %s %s, -want +got:\n%s", on.Name, on.Addr, diff)
		}
	}
}

// link makes an interface with a carrier.
func link(t *testing.T, name string, addrs ...string) Link {
	t.Helper()
	do(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "far"}))
	for _, n := range []string{name, name + "far"} {
		l, err := netlink.LinkByName(n)
		do(t, err)
		do(t, netlink.LinkSetUp(l))
	}
	for _, a := range addrs {
		addAddr(t, name, a)
	}
	on, err := LinkOf(name, netip.MustParsePrefix(addrs[0]).Addr())
	do(t, err)
	return on
}

func addAddr(t *testing.T, name, addr string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	do(t, err)
	a, err := netlink.ParseAddr(addr)
	do(t, err)
	a.Flags = unix.IFA_F_NODAD
	do(t, netlink.AddrAdd(l, a))
}

// avahiSocket is opened as avahi-daemon opens its own.
func avahiSocket(t *testing.T) *net.UDPConn {
	t.Helper()
	conf := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if ctl := c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		}); ctl != nil {
			return ctl
		}
		return err
	}}
	c, err := conf.ListenPacket(t.Context(), "udp4", "0.0.0.0:5353")
	do(t, err)
	return c.(*net.UDPConn)
}

func joinAs(t *testing.T, c *net.UDPConn, name string) {
	t.Helper()
	ifi, err := net.InterfaceByName(name)
	do(t, err)
	raw, err := c.SyscallConn()
	do(t, err)
	do(t, raw.Control(func(fd uintptr) {
		do(t, unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreqn{Multiaddr: group4.As4(), Ifindex: int32(ifi.Index)}))
	}))
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
