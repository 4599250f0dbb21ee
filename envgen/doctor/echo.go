package doctor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	echoRequest, echoReply = 8, 0
	icmpHeader, ipHeader   = 8, 20
	// smallEcho is ping's usual payload, in bytes.
	smallEcho = 56
	// echoAgain is the pause between attempts, echoAttempts their number: the first may be lost to ARP.
	echoAgain    = 400 * time.Millisecond
	echoAttempts = 4
)

// echo sends both pings until both have come back. An error says that it has no right
// to send.
func echo(ctx context.Context, e Echo) (EchoResult, error) {
	r := EchoResult{Echo: e}
	c, err := dialEcho(ctx, e)
	if err != nil {
		r.Why = err.Error()
		return r, noRight("ping", err)
	}
	defer c.Close()
	id := uint16(rand.Uint32())
	small := echoPacket(id, 1, smallEcho)
	large := echoPacket(id, 2, max(e.From.MTU-ipHeader-icmpHeader, smallEcho))
	answers := make(chan uint16)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) }) // fails only if closed
	go func() {                                                               // ends with the deadline, which cancel sets
		defer close(answers)
		listenEcho(c, id, len(large), func(seq uint16) (more bool) {
			select {
			case answers <- seq:
			case <-ctx.Done():
			}
			return true
		})
	}()
	for range echoAttempts {
		if !r.Small {
			if _, err := c.Write(small); err != nil {
				r.Why = unwrapped(err)
			}
		}
		if !r.Large {
			if _, err := c.Write(large); err != nil {
				r.Why = unwrapped(err)
			}
		}
		for again := time.After(echoAgain); again != nil && !(r.Small && r.Large); {
			select {
			case seq, open := <-answers:
				r.Small, r.Large = r.Small || seq == 1, r.Large || seq == 2
				if !open {
					return r, nil
				}
			case <-again:
				again = nil
			}
		}
		if r.Small && r.Large {
			r.Why = ""
			break
		}
	}
	cancel()
	for range answers { // until the reader has ended
	}
	return r, nil
}

// Narrow is how large the packets are, in bytes, that are lost between an address of this machine and another one while
// small ones are not: as large as the MTU of the NIC that has it. 0: they are not lost, or small ones are too. Where they
// are it takes 1.6 s.
func Narrow(ctx context.Context, from, to netip.Addr) int {
	links, _ := net.Interfaces()
	for _, l := range links {
		if !slices.ContainsFunc(addresses(l), func(p netip.Prefix) bool { return p.Addr() == from }) {
			continue
		}
		if r, err := echo(ctx, Echo{From: End{NIC: l.Name, Addr: from, MTU: l.MTU}, To: End{Addr: to}}); err == nil && r.Small && !r.Large {
			return l.MTU
		}
	}
	return 0
}

// Ping sends addr one ping by a NIC, whatever the routes say, and waits for the answer until ctx ends.
func Ping(ctx context.Context, nic string, addr netip.Addr) error {
	if !addr.Is4() {
		return fmt.Errorf("ping %s on %s: want an IPv4 address", addr, nic)
	}
	c, err := dialEcho(ctx, Echo{From: End{NIC: nic, Addr: addressFor(nic, addr)}, To: End{Addr: addr}})
	if err != nil {
		return fmt.Errorf("ping %s on %s: %w", addr, nic, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
	id := uint16(rand.Uint32())
	if _, err := c.Write(echoPacket(id, 1, smallEcho)); err != nil {
		return fmt.Errorf("ping %s on %s: %w", addr, nic, err)
	}
	answered := false
	listenEcho(c, id, icmpHeader+smallEcho, func(uint16) (more bool) { answered = true; return false })
	if !answered {
		return fmt.Errorf("ping %s on %s: no echo", addr, nic)
	}
	return nil
}

// addressFor is a NIC's own address in the subnet of another; invalid where it has none.
func addressFor(nic string, other netip.Addr) netip.Addr {
	link, err := net.InterfaceByName(nic)
	if err != nil {
		return netip.Addr{}
	}
	for _, p := range addresses(*link) { // without one the kernel chooses
		if p.Contains(other) {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// addresses are a NIC's, each with its subnet.
func addresses(link net.Interface) (all []netip.Prefix) {
	addrs, _ := link.Addrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// unwrapped is the kernel's error without "write ip 10.0.0.1->10.0.0.2: sendto:".
func unwrapped(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// dialEcho opens a raw socket that sends by one NIC and receives one peer's echo replies. It is not bound to the
// NIC: twins are on one wire and answer ARP for each other, so a reply may arrive at the other one.
func dialEcho(ctx context.Context, e Echo) (*net.IPConn, error) {
	d := net.Dialer{
		Control: func(_, _ string, raw syscall.RawConn) error {
			var err error
			if ctlErr := raw.Control(func(fd uintptr) { err = prepareEcho(int(fd), e.From.NIC) }); ctlErr != nil {
				return ctlErr
			}
			return err
		},
	}
	if e.From.Addr.IsValid() {
		d.LocalAddr = &net.IPAddr{IP: e.From.Addr.AsSlice()}
	}
	c, err := d.DialContext(ctx, "ip4:icmp", e.To.Addr.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.IPConn), nil
}

func prepareEcho(fd int, nic string) error {
	link, err := net.InterfaceByName(nic)
	if err != nil {
		return err
	}
	var index [4]byte // IP_UNICAST_IF wants it in network order (ip(7))
	binary.BigEndian.PutUint32(index[:], uint32(link.Index))
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_UNICAST_IF,
		int(binary.NativeEndian.Uint32(index[:]))); err != nil {
		return os.NewSyscallError("send by "+nic, err)
	}
	// PROBE is DO, the don't-fragment bit, but ignores the path MTU that was learnt before.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE); err != nil {
		return os.NewSyscallError("set don't-fragment", err)
	}
	// ICMP_FILTER (raw(7)) is a mask of the types to drop.
	const solRaw, icmpFilter = 255, 1
	return os.NewSyscallError("filter icmp", unix.SetsockoptInt(fd, solRaw, icmpFilter, ^(1<<echoReply)))
}

// echoPacket makes an echo request with that many bytes of payload.
func echoPacket(id, seq uint16, payload int) []byte {
	b := make([]byte, icmpHeader+payload)
	b[0] = echoRequest
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	for i := range payload {
		b[icmpHeader+i] = byte(i)
	}
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

// checksum is the internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// parseEcho reads an echo reply without its IP header.
func parseEcho(b []byte) (id, seq uint16, err error) {
	switch {
	case len(b) < icmpHeader:
		return 0, 0, fmt.Errorf("echo reply of %d bytes", len(b))
	case b[0] != echoReply:
		return 0, 0, fmt.Errorf("icmp type %d", b[0])
	case checksum(b) != 0:
		return 0, 0, errors.New("icmp checksum")
	}
	return binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:]), nil
}

// listenEcho tells the numbers of replies to id until the connection's deadline, or until tell wants no more.
// largest is the length of the longest packet sent.
func listenEcho(c *net.IPConn, id uint16, largest int, tell func(seq uint16) (more bool)) {
	b := make([]byte, largest+60) // 60: the largest IP header, which ReadFromIP takes off
	for {
		n, _, err := c.ReadFromIP(b)
		if err != nil {
			return
		}
		if got, seq, err := parseEcho(b[:n]); err == nil && got == id && !tell(seq) {
			return
		}
	}
}
