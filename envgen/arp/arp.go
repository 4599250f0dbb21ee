// Package arp asks on an Ethernet link who has an IPv4 address, and announces who has it now (RFC 826, RFC 5227).
//
// It must not decide what follows from an answer.
package arp

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
	// probes is RFC 5227's PROBE_NUM; probeAgain is shorter than its interval, since the holder of an
	// address answers at once.
	probes     = 3
	probeAgain = 300 * time.Millisecond
	// probeLast is how long to listen after the last attempt.
	probeLast = 700 * time.Millisecond
)

// Holders asks on a NIC who has an address, and gives the MACs that answer, except this machine's, sorted. It takes
// 1.6 s. An error says that this process may not ask.
func Holders(ctx context.Context, nic string, addr netip.Addr) ([]string, error) {
	link, err := net.InterfaceByName(nic)
	if err != nil || len(link.HardwareAddr) != 6 || !addr.Is4() {
		return nil, nil //nolint:nilerr // gone since, or not Ethernet
	}
	f, err := open(link.Index)
	if err != nil {
		return nil, err
	}
	ours := ownMACs()
	heard := make(chan string)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { f.Close() })
	go func() { // ends when f is closed
		defer close(heard)
		listen(f, addr, func(mac string) {
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
	for range probes {
		if err := broadcast(f, link, request(link.HardwareAddr, netip.Addr{}, addr)); err != nil {
			break // the NIC went down
		}
		take(probeAgain)
	}
	take(probeLast)
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

// Announce tells all hosts of a NIC's network that this machine has the address now: those that know another MAC
// take this one (RFC 5227, 2.3).
func Announce(nic string, addr netip.Addr) error {
	link, err := net.InterfaceByName(nic)
	if err != nil {
		return err
	}
	f, err := open(link.Index)
	if err != nil {
		return err
	}
	defer f.Close()
	return broadcast(f, link, request(link.HardwareAddr, addr, addr))
}

// open opens a packet socket for ARP on one NIC. It is in the poller, so that Close ends a Read.
func open(index int) (*os.File, error) {
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

func broadcast(f *os.File, link *net.Interface, packet []byte) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	to := unix.SockaddrLinklayer{Protocol: networkOrder(etherARP), Ifindex: link.Index, Halen: 6,
		Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), packet, 0, &to) }); err != nil {
		return err
	}
	return sent
}

// request is an ARP request (RFC 826). A probe has no sender address, so that no ARP table changes.
func request(mac net.HardwareAddr, sender, target netip.Addr) []byte {
	b := make([]byte, 28)
	copy(b, []byte{0, 1, 8, 0, 6, 4, 0, 1}) // Ethernet, IPv4, their lengths, request
	copy(b[8:14], mac)
	if sender.Is4() {
		copy(b[14:18], sender.AsSlice())
	}
	copy(b[24:], target.AsSlice())
	return b
}

// parse gives the sender's MAC and IPv4 address of an ARP packet over Ethernet.
func parse(b []byte) (mac net.HardwareAddr, addr netip.Addr, ok bool) {
	if len(b) < 28 || [6]byte(b[:6]) != [6]byte{0, 1, 8, 0, 6, 4} {
		return nil, addr, false
	}
	return net.HardwareAddr(b[8:14]), netip.AddrFrom4([4]byte(b[14:18])), true
}

// listen tells the MAC of every host that claims addr, until the socket is closed.
func listen(f *os.File, addr netip.Addr, tell func(mac string)) {
	b := make([]byte, 128)
	for {
		n, err := f.Read(b)
		if err != nil {
			return
		}
		if mac, has, ok := parse(b[:n]); ok && has == addr {
			tell(mac.String())
		}
	}
}
