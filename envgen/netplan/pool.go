package netplan

import (
	"encoding/binary"
	"iter"
	"net/netip"
)

// hostBase is added to a node's number: node 1 is .11, as in the guides that owners have followed so
// far.
const hostBase = 10

// blocks yields the first octets of each block of ten /24 subnets, in the order in which they are given out:
// first the guides' own 192.168.177, .187, ..., .247, then private ranges that routers and Docker seldom use, and
// last the range for benchmarks (RFC 2544), which no LAN uses.
func blocks() iter.Seq[[3]byte] {
	return func(yield func([3]byte) bool) {
		for third := 177; third <= 247; third += 10 {
			if !yield([3]byte{192, 168, byte(third)}) {
				return
			}
		}
		for _, r := range []struct{ first, low, high int }{{10, 177, 196}, {172, 28, 31}, {198, 18, 19}} {
			for second := r.low; second <= r.high; second++ {
				for third := 0; third <= 240; third += 10 {
					if !yield([3]byte{byte(r.first), byte(second), byte(third)}) {
						return
					}
				}
			}
		}
	}
}

// takeBlock finds count adjacent subnets of which none overlaps what is taken.
func takeBlock(count int, taken func(netip.Prefix) bool) ([]netip.Prefix, bool) {
block:
	for b := range blocks() {
		subnets := make([]netip.Prefix, count)
		for lane := range subnets {
			subnets[lane] = netip.PrefixFrom(netip.AddrFrom4([4]byte{b[0], b[1], b[2] + byte(lane), 0}), 24)
			if taken(subnets[lane]) {
				continue block
			}
		}
		return subnets, true
	}
	return nil, false
}

// hostAddr is the address in a subnet for a node's number; where that is taken or does not fit, the first free one
// after it, then the first before it.
func hostAddr(subnet netip.Prefix, number int, taken map[netip.Addr]bool) (netip.Addr, bool) {
	base := binary.BigEndian.Uint32(subnet.Masked().Addr().AsSlice())
	last := uint32(1)<<(32-subnet.Bits()) - 2 // the one before the broadcast address
	at := func(host uint32) netip.Addr {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], base+host)
		return netip.AddrFrom4(a)
	}
	first := uint32(hostBase + number)
	if first > last {
		first = last
	}
	for host := first; host <= last; host++ {
		if !taken[at(host)] {
			return at(host), true
		}
	}
	for host := uint32(1); host < first; host++ {
		if !taken[at(host)] {
			return at(host), true
		}
	}
	return netip.Addr{}, false
}
