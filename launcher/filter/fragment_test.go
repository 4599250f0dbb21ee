package filter

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// fragments are a SYN of a stranger to port 29500, with data, in two fragments (RFC
// 8200, section 4.5; RFC 9293, section 3.1): of those that Linux puts together
// none is smaller than the first.
func fragments() [2][]byte {
	from, to := netip.MustParseAddr(strange6).As16(), netip.MustParseAddr(nodeAddr6).As16()
	tcp := make([]byte, 24+8)
	binary.BigEndian.PutUint16(tcp[0:], 45678)
	binary.BigEndian.PutUint16(tcp[2:], 29500)
	binary.BigEndian.PutUint32(tcp[4:], uint32(time.Now().UnixNano()))
	tcp[12], tcp[13] = 6<<4, 0x02
	binary.BigEndian.PutUint16(tcp[14:], 64000)
	copy(tcp[20:], []byte{1, 1, 1, 0}) // options: none
	pseudo := append(append(append([]byte{}, from[:]...), to[:]...), 0, 0, 0, 32, 0, 0, 0, unix.IPPROTO_TCP)
	sum := uint32(0)
	for _, part := range [][]byte{pseudo, tcp} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	packet := func(offset int, more uint16, part []byte) []byte {
		p := make([]byte, 48, 48+len(part))
		p[0] = 6 << 4
		binary.BigEndian.PutUint16(p[4:], uint16(8+len(part)))
		p[6], p[7] = unix.IPPROTO_FRAGMENT, 64
		copy(p[8:], from[:])
		copy(p[24:], to[:])
		p[40] = unix.IPPROTO_TCP
		binary.BigEndian.PutUint16(p[42:], uint16(offset)|more)
		copy(p[44:], tcp[4:8])
		return append(p, part...)
	}
	return [2][]byte{packet(0, 1, tcp[:24]), packet(24, 0, tcp[24:])}
}

// answered sends them and tells whether a SYN-ACK comes back.
func (w *wire) answered(within time.Duration) (yes bool) {
	w.t.Helper()
	err := w.in(w.peer, func() error {
		nic, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		out, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) // headers are ours: ipv6(7)
		if err != nil {
			return err
		}
		defer unix.Close(out)
		in, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC,
			int(binary.BigEndian.Uint16([]byte{unix.ETH_P_IPV6 & 0xff, unix.ETH_P_IPV6 >> 8})))
		if err != nil {
			return err
		}
		defer unix.Close(in)
		tv := unix.NsecToTimeval(int64(100 * time.Millisecond))
		if err := unix.SetsockoptTimeval(in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		to := &unix.SockaddrInet6{Addr: netip.MustParseAddr(nodeAddr6).As16(), ZoneId: uint32(nic.Index)}
		for _, f := range fragments() {
			if err := unix.Sendto(out, f, 0, to); err != nil {
				return os.NewSyscallError("sendto", err)
			}
		}
		b := make([]byte, 2048)
		for until := time.Now().Add(within); time.Now().Before(until) && !yes; {
			n, _, err := unix.Recvfrom(in, b, 0)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return err
			}
			yes = n >= 60 && b[6] == unix.IPPROTO_TCP && binary.BigEndian.Uint16(b[40:]) == 29500 && b[53]&0x12 == 0x12
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return yes
}

// A SYN in fragments gets no further than a whole one: IPv6 puts packets together
// behind the rules.
func TestFilterFragments(t *testing.T) {
	w := newWire(t)
	first := w.rank("first", "29500")
	w.expect("the cable", "29500", map[string]bool{strange6: true})
	if !w.answered(30 * time.Second) {
		t.Fatal("without a filter a SYN in fragments is not answered: this test proves nothing")
	}
	w.apply(map[launcher.Key]launcher.Filter{key("first"): {Cgroup: first, Members: addrs(member6)}})
	if w.answered(refused) {
		t.Error("a stranger's SYN in two fragments is answered")
	}
}
