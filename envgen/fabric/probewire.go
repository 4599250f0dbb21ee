package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
)

// ErrNoFrame is what Receive returns when no frame is there.
var ErrNoFrame = errors.New("no frame has arrived")

// Wire sends and receives frames of one kind on one NIC. One goroutine uses it.
type Wire interface {
	// Send sends the content of a frame to the multicast group of all probes.
	Send(payload []byte) error
	// Receive gives the content of the next frame that has arrived, cut to the buffer, and its sender. It does not wait.
	Receive(payload []byte) (n int, from [6]byte, err error)
	Close() error
}

const (
	// EtherTypeProbe is IEEE 802's local experimental type 1. NVIDIA's set-up scripts use it too, for a moment;
	// their frames lack our magic and are ignored.
	EtherTypeProbe uint16 = 0x88b5
	// EtherTypeARP is ARP for IPv4.
	EtherTypeARP uint16 = 0x0806
)

// probeGroup is where probes go: a group address (the lowest bit) of local administration (the next), then "SPARK".
// It is none of 01:80:c2:00:00:0X, which switches and bridges do not forward, and none of IP's, which they prune.
var probeGroup = [8]byte{0x03, 'S', 'P', 'A', 'R', 'K'}

// packetWire is an AF_PACKET socket. The runtime's poller does not know it: that would wake at each frame.
type packetWire struct {
	fd int
	to unix.SockaddrLinklayer
}

// isDenied tells a missing right from a NIC that is not there now. The last error is that of a service manager's
// filter on address families.
func isDenied(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EAFNOSUPPORT)
}

// openPacketWire needs CAP_NET_RAW in the network namespace's user namespace.
func openPacketWire(nic envgen.NIC, etherType uint16) (Wire, error) {
	link, err := net.InterfaceByName(nic.Name)
	if err != nil {
		return nil, fmt.Errorf("open packet socket on %s: %w", nic.Name, err)
	}
	// Made with protocol 0 it receives nothing until bind has named the interface.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket on %s: %w", nic.Name, err)
	}
	var swapped [2]byte
	binary.NativeEndian.PutUint16(swapped[:], etherType)
	w := &packetWire{fd: fd, to: unix.SockaddrLinklayer{
		Protocol: binary.BigEndian.Uint16(swapped[:]), Ifindex: link.Index, Halen: 6, Addr: probeGroup}}
	err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: w.to.Protocol, Ifindex: link.Index})
	if err == nil && etherType == EtherTypeProbe {
		// The NIC's filter must accept the group.
		err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(link.Index), Type: unix.PACKET_MR_MULTICAST, Alen: 6, Address: probeGroup})
	}
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("open packet socket on %s: %w", nic.Name, err)
	}
	return w, nil
}

func (w *packetWire) Close() error {
	fd := w.fd
	w.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// Send loses the frame if the queue is full, as a wire might: the next one is sent in two seconds.
func (w *packetWire) Send(payload []byte) error {
	return os.NewSyscallError("sendto", unix.Sendto(w.fd, payload, 0, &w.to))
}

func (w *packetWire) Receive(payload []byte) (n int, from [6]byte, err error) {
	for {
		n, addr, err := unix.Recvfrom(w.fd, payload, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return 0, from, ErrNoFrame
		case err != nil:
			return 0, from, os.NewSyscallError("recvfrom", err)
		}
		ll, ok := addr.(*unix.SockaddrLinklayer)
		if !ok || ll.Pkttype == unix.PACKET_OUTGOING || ll.Halen != 6 {
			continue // our own frame, being sent
		}
		copy(from[:], ll.Addr[:6])
		return n, from, nil
	}
}
