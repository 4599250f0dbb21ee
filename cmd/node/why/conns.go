package why

import (
	"cmp"
	"context"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// connsMost bounds the connections of a rank that are told of: those with most trouble, then those that move most.
const connsMost = 64

// connections are this host's TCP connections by inode, and where it listens; empty where the kernel does not tell
// (INET_DIAG).
func connections() map[uint64]*netlink.InetDiagTCPInfoResp {
	found := map[uint64]*netlink.InetDiagTCPInfoResp{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		all, _ := netlink.SocketDiagTCPInfo(family)
		for _, c := range all {
			if s := c.InetDiagMsg; s != nil && c.TCPInfo != nil && s.INode != 0 {
				found[uint64(s.INode)] = c
			}
		}
	}
	return found
}

// connsOf are those of some processes, how they changed, and how many bytes waited in each at most; and where they
// listen.
func connsOf(fs proc.FS, pids []int, before, after map[uint64]*netlink.InetDiagTCPInfoResp,
	queued map[uint64]uint32) (out []wire.Conn, listens []netip.AddrPort) {
	seen := map[uint64]bool{}
	for _, pid := range pids {
		for _, inode := range fs.Sockets(pid) {
			c := after[inode]
			if c == nil || seen[inode] {
				continue
			}
			seen[inode] = true
			t, s := c.TCPInfo, c.InetDiagMsg
			if s.State == netlink.TCP_LISTEN {
				listens = append(listens, addrPort(s.ID.Source, s.ID.SourcePort))
				continue
			}
			conn := wire.Conn{
				Local: addrPort(s.ID.Source, s.ID.SourcePort), Remote: addrPort(s.ID.Destination, s.ID.DestinationPort),
				RTT: time.Duration(t.Rtt) * time.Microsecond, MinRTT: leastRTT(t),
				Total: t.Data_segs_out, TotalAgain: again(t), Tries: t.Retransmits, Queued: max(s.WQueue, queued[inode]),
				Idle: idle(t), Connects: s.State == netlink.TCP_SYN_SENT, Moved: bytesOf(t),
			}
			if was := before[inode]; was != nil {
				conn.Sent, conn.Again = t.Data_segs_out-was.TCPInfo.Data_segs_out, again(t)-min(again(t), again(was.TCPInfo))
				conn.Moved -= min(conn.Moved, bytesOf(was.TCPInfo))
			}
			out = append(out, conn)
		}
	}
	slices.SortStableFunc(out, func(a, b wire.Conn) int {
		return cmp.Or(cmp.Compare(b.Tries, a.Tries), cmp.Compare(b.Again, a.Again), cmp.Compare(b.Queued, a.Queued),
			cmp.Compare(b.Moved, a.Moved))
	})
	slices.SortFunc(listens, netip.AddrPort.Compare)
	return out[:min(len(out), connsMost)], listens[:min(len(listens), connsMost)]
}

// narrow asks by pings whether large packets alone are lost where nothing has come back for several times.
func narrow(ctx context.Context, ranks []*watched) {
	type ends struct{ from, to netip.Addr }
	byEnds := map[ends][]*wire.Conn{}
	for _, k := range ranks {
		for i, c := range k.look.Conns {
			if e := (ends{c.Local.Addr(), c.Remote.Addr()}); c.Tries >= unanswered && c.MinRTT > 0 && e.from.Is4() && !e.to.IsLoopback() {
				byEnds[e] = append(byEnds[e], &k.look.Conns[i])
			}
		}
	}
	var asked sync.WaitGroup
	for e, conns := range byEnds {
		asked.Go(func() {
			lost := doctor.Narrow(ctx, e.from, e.to)
			for _, c := range conns {
				c.Narrow = lost
			}
		})
	}
	asked.Wait()
}

// leastRTT is 0 where nothing has come back yet: the kernel has all bits set then (tcp_min_rtt, tcp_init_sock).
func leastRTT(t *netlink.TCPInfo) time.Duration {
	if t.Min_rtt == math.MaxUint32 {
		return 0
	}
	return time.Duration(t.Min_rtt) * time.Microsecond
}

// bytesOf are the bytes that have gone either way, and were received.
func bytesOf(t *netlink.TCPInfo) uint64 { return t.Bytes_acked + t.Bytes_received }

// again counts segments that had to be sent again: not those of which the other end said that it had them (DSACK), as
// when it was slow to answer.
func again(t *netlink.TCPInfo) uint32 { return t.Total_retrans - min(t.Total_retrans, t.Dsack_dups) }

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}
