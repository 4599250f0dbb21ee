package discover

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const port = 5353

var (
	group4 = netip.MustParseAddr("224.0.0.251")
	group6 = netip.MustParseAddr("ff02::fb")
)

// wire is the group on one link.
type wire interface {
	// receive fills buf with the next packet. It ends with an error when the wire is closed.
	receive(buf []byte) (n int, from netip.AddrPort, err error)
	send(packet []byte) error
	close()
}

// socket is a wire of the kernel's.
type socket struct {
	conn  *net.UDPConn
	group netip.AddrPort
}

// open joins the group on one link. DESIGN.md tells why it is bound as it is.
func open(on Link) (wire, error) {
	s, err := openSocket(on)
	if err != nil {
		return nil, fmt.Errorf("open port %d for mDNS on %s: %w", port, on.Name, err)
	}
	return s, nil
}

func openSocket(on Link) (*socket, error) {
	domain, group := unix.AF_INET, group4
	if !on.Addr.Is4() {
		domain, group = unix.AF_INET6, group6.WithZone(on.Name)
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "mdns")
	defer file.Close() // the connection has its own descriptor
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if group.Is4() {
		err = join4(fd, on)
	} else {
		err = join6(fd, on)
	}
	if err != nil {
		return nil, err
	}
	conn, err := net.FilePacketConn(file)
	if err != nil {
		return nil, err
	}
	return &socket{conn: conn.(*net.UDPConn), group: netip.AddrPortFrom(group, port)},
		nil //nolint:forcetypeassert // it is a datagram socket
}

// join4 sends from the link's address with TTL 255 (RFC 6762, 11), to programs of this host too.
func join4(fd int, on Link) error {
	mreq := &unix.IPMreqn{Multiaddr: group4.As4(), Address: on.Addr.As4(), Ifindex: int32(on.Index)}
	for _, set := range []struct {
		what string
		do   func() error
	}{
		{"IP_MULTICAST_ALL", func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0) }},
		{"IP_ADD_MEMBERSHIP", func() error {
			return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
				mreq)
		}},
		{"IP_MULTICAST_IF", func() error { return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, mreq) }},
		{"IP_MULTICAST_TTL", func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, 255) }},
		{"IP_MULTICAST_LOOP", func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 1) }},
		{"bind", func() error { return unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: group4.As4()}) }},
	} {
		if err := set.do(); err != nil {
			return os.NewSyscallError(set.what, err)
		}
	}
	return nil
}

// join6 does the same. The kernel takes the link's link-local address to send from.
func join6(fd int, on Link) error {
	mreq := &unix.IPv6Mreq{Multiaddr: group6.As16(), Interface: uint32(on.Index)}
	for _, set := range []struct {
		what string
		do   func() error
	}{
		{"IPV6_V6ONLY", func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1) }},
		{"IPV6_MULTICAST_ALL", func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0) }},
		{"IPV6_JOIN_GROUP", func() error {
			return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
				mreq)
		}},
		{"IPV6_MULTICAST_IF", func() error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF,
				on.Index)
		}},
		{"IPV6_MULTICAST_HOPS", func() error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6,
				unix.IPV6_MULTICAST_HOPS, 255)
		}},
		{"IPV6_MULTICAST_LOOP", func() error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6,
				unix.IPV6_MULTICAST_LOOP, 1)
		}},
		{"bind", func() error {
			return unix.Bind(fd, &unix.SockaddrInet6{Port: port, Addr: group6.As16(), ZoneId: uint32(on.Index)})
		}},
	} {
		if err := set.do(); err != nil {
			return os.NewSyscallError(set.what, err)
		}
	}
	return nil
}

func (s *socket) receive(buf []byte) (int, netip.AddrPort, error) {
	n, from, err := s.conn.ReadFromUDPAddrPort(buf)
	return n, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), err
}

// sendTimeout bounds a send on a NIC whose queue does not move.
const sendTimeout = time.Second

func (s *socket) send(packet []byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, err := s.conn.WriteToUDPAddrPort(packet, s.group)
	return err
}

func (s *socket) close() { s.conn.Close() }
