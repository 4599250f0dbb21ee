package why

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// refusals has the kernel tell of each TCP connection of this host that is over, and counts those that nobody took at
// some ports. Such a one is gone before it could be seen, and the kernel does not say whose it was.
type refusals struct {
	socket *nl.NetlinkSocket
	counts chan map[netip.AddrPort]int
}

// Groups of sk_diag (linux/sock_diag.h).
const tcpOver, tcp6Over = 1, 3

func watchRefusals(ports map[uint16]bool) *refusals {
	r := &refusals{counts: make(chan map[netip.AddrPort]int, 1)}
	var err error
	if r.socket, err = nl.Subscribe(unix.NETLINK_INET_DIAG, tcpOver, tcp6Over); err != nil {
		close(r.counts)
		return r
	}
	go func() {
		defer close(r.counts)
		counts := map[netip.AddrPort]int{}
		for {
			all, _, err := r.socket.Receive()
			if err != nil {
				r.counts <- counts
				return
			}
			for _, m := range all {
				if at, ok := refused(m.Data); ok && ports[at.Port()] && len(counts) < connsMost {
					counts[at]++
				}
			}
		}
	}()
	return r
}

// end tells of those that were seen, the most frequent first; once.
func (r *refusals) end() (out []wire.Refused) {
	if r.socket != nil {
		r.socket.Close()
	}
	for at, n := range <-r.counts {
		out = append(out, wire.Refused{At: at, Count: n})
	}
	slices.SortFunc(out, func(a, b wire.Refused) int { return cmp.Or(b.Count-a.Count, a.At.Compare(b.At)) })
	return out
}

// refused reads an inet_diag_msg with its INET_DIAG_INFO: where a connection was to go that was over before a byte, or an
// acknowledgement, came.
func refused(b []byte) (at netip.AddrPort, ok bool) {
	const head = 72 // 4 of bytes, 2+2 of ports, 16+16 of addresses, ...
	if len(b) < head {
		return at, false
	}
	port := binary.BigEndian.Uint16(b[6:8])
	addr := netip.AddrFrom16([16]byte(b[24:40])).Unmap()
	if b[0] == unix.AF_INET {
		addr = netip.AddrFrom4([4]byte(b[24:28]))
	}
	for b = b[head:]; len(b) >= 4; {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < 4 || size > len(b) {
			break
		}
		if kind&nl.NLA_TYPE_MASK == netlink.INET_DIAG_INFO && size >= 4+136 {
			info := b[4:size]
			acked, received := binary.NativeEndian.Uint64(info[120:]), binary.NativeEndian.Uint64(info[128:])
			return netip.AddrPortFrom(addr, port), acked == 0 && received == 0
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return at, false
}
