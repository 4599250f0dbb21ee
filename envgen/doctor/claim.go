package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	etherARP = 0x0806
	// claimAttempts is RFC 5227's PROBE_NUM; claimAgain is shorter than its interval, since the holder of an
	// address answers at once.
	claimAttempts = 3
	claimAgain    = 300 * time.Millisecond
	// claimLast is how long to listen after the last attempt.
	claimLast = 700 * time.Millisecond
)

// claim asks by ARP on the address's own NIC who has it, and gives the MACs that answer, except this node's. An
// error says that it has no right to ask.
func claim(ctx context.Context, e End) ([]string, error) {
	link, err := net.InterfaceByName(e.NIC)
	if err != nil || len(link.HardwareAddr) != 6 || !e.Addr.Is4() {
		return nil, nil // gone since the plan was made, or not Ethernet
	}
	f, err := openARP(link.Index)
	if err != nil {
		return nil, noRight("ask by ARP on "+e.NIC, err)
	}
	ours := ownMACs()
	heard := make(chan string)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { f.Close() })
	go func() { // ends when f is closed
		defer close(heard)
		listenARP(f, e.Addr, func(mac string) {
			select {
			case heard <- mac:
			case <-ctx.Done():
			}
		})
	}()
	var holders []string
	take := func(d time.Duration) {
		for over := time.After(d); ; {
			select {
			case mac, open := <-heard:
				if !open {
					return
				}
				// Twins hear each other, and Linux answers on each NIC for all of the machine's
				// addresses.
				if !slices.Contains(ours, mac) && !slices.Contains(holders, mac) {
					holders = append(holders, mac)
				}
			case <-over:
				return
			}
		}
	}
	for range claimAttempts {
		if err := sendARP(f, link, e.Addr); err != nil {
			break // the NIC went down
		}
		take(claimAgain)
	}
	take(claimLast)
	cancel()
	for range heard { // until the reader has ended
	}
	slices.Sort(holders)
	return holders, nil
}

func ownMACs() []string {
	links, _ := net.Interfaces()
	var out []string
	for _, l := range links {
		out = append(out, l.HardwareAddr.String())
	}
	return out
}

func networkOrder(n uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], n)
	return binary.BigEndian.Uint16(b[:])
}

// openARP opens a packet socket for ARP on one NIC. It is in the poller, so that Close ends a Read.
func openARP(index int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(etherARP), Ifindex: index}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("arp:%d", index)), nil
}

// sendARP broadcasts a probe: a request whose sender has no address, so that no ARP table changes.
func sendARP(f *os.File, link *net.Interface, addr netip.Addr) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	to := unix.SockaddrLinklayer{Protocol: networkOrder(etherARP), Ifindex: link.Index, Halen: 6,
		Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	var sent error
	if err := raw.Control(func(fd uintptr) {
		sent = unix.Sendto(int(fd), arpProbe(link.HardwareAddr, addr), 0,
			&to)
	}); err != nil {
		return err
	}
	return sent
}

// arpProbe is an ARP request (RFC 826) without a sender address.
func arpProbe(mac net.HardwareAddr, addr netip.Addr) []byte {
	b := make([]byte, 28)
	copy(b, []byte{0, 1, 8, 0, 6, 4, 0, 1}) // Ethernet, IPv4, their lengths, request
	copy(b[8:14], mac)
	target := addr.As4()
	copy(b[24:], target[:])
	return b
}

// parseARP gives the sender's MAC and IPv4 address of an ARP packet over Ethernet.
func parseARP(b []byte) (mac net.HardwareAddr, addr netip.Addr, ok bool) {
	if len(b) < 28 || [6]byte(b[:6]) != [6]byte{0, 1, 8, 0, 6, 4} {
		return nil, addr, false
	}
	return net.HardwareAddr(b[8:14]), netip.AddrFrom4([4]byte(b[14:18])), true
}

// listenARP tells the MAC of every host that claims addr, until the socket is closed.
func listenARP(f *os.File, addr netip.Addr, tell func(mac string)) {
	b := make([]byte, 128)
	for {
		n, err := f.Read(b)
		if err != nil {
			return
		}
		if mac, has, ok := parseARP(b[:n]); ok && has == addr {
			tell(mac.String())
		}
	}
}
