package why

import (
	"cmp"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	awaitsMost = 16 // connections of a rank in which its threads wait
	askersMost = 16 // threads of a process of which it is noted at each glance whom they ask
)

// waiter is who waits for a socket: a main thread of a rank's program goes before others, who reads it before one who
// waits for any of several.
type waiter struct {
	pid   int
	main  bool
	anyOf bool
}

// waiting notes for which sockets a thread waits.
func (w *Why) waiting(k *watched, pid, tid int, at string) {
	if !slices.ContainsFunc([]string{"poll", "select", "sk_wait", "tcp_", "inet_", "skb_wait", "wait_woken"},
		func(part string) bool { return strings.Contains(at, part) }) {
		return
	}
	fds, anyOf := w.cfg.Proc.WaitsOn(pid, tid)
	for _, fd := range fds {
		is := waiter{pid: pid, main: tid == k.look.PID, anyOf: anyOf}
		inode, ok := proc.SocketOf(w.cfg.Proc.File(pid, fd))
		if was, known := k.waits[inode]; ok && (!known || is.main && !was.main || was.anyOf && !anyOf && !was.main) {
			k.waits[inode] = is
		}
	}
}

// asking notes whom threads of a rank ask by UDP at this moment.
func (w *Why) asking(k *watched, udp map[uint64]wire.Await) {
	if len(udp) == 0 {
		return
	}
	seen := map[netip.AddrPort]bool{}
	for _, pid := range k.pids[:min(len(k.pids), askersMost)] {
		for _, t := range w.cfg.Proc.Threads(pid, askersMost) {
			if !strings.Contains(w.cfg.Proc.WaitsIn(pid, t.TID), "poll") {
				continue
			}
			fds, _ := w.cfg.Proc.WaitsOn(pid, t.TID)
			for _, fd := range fds {
				inode, _ := proc.SocketOf(w.cfg.Proc.File(pid, fd))
				if a, ok := udp[inode]; ok && !seen[a.Remote] {
					a.Main = pid == t.TID
					seen[a.Remote] = true
					k.asks[a.Remote] = append(k.asks[a.Remote], a)
				}
			}
		}
	}
}

// asks are this host's UDP sockets that have another end, by inode.
func asks() map[uint64]wire.Await {
	found := map[uint64]wire.Await{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		all, _ := netlink.SocketDiagUDP(family)
		for _, s := range all {
			if s.ID.DestinationPort != 0 && s.INode != 0 {
				found[uint64(s.INode)] = wire.Await{Local: addrPort(s.ID.Source, s.ID.SourcePort),
					Remote: addrPort(s.ID.Destination, s.ID.DestinationPort), Asks: true}
			}
		}
	}
	return found
}

// awaits are the connections in which threads of a rank wait for others than itself: not those that others have made to
// it, as it may have nothing to do, nor those that have had an answer, if it has others, or the thread is not its main
// one: who has subscribed to something waits so, and who serves several clients.
func (w *Why) awaits(k *watched, now map[uint64]*netlink.InetDiagTCPInfoResp) (out []wire.Await) {
	listens, own := map[uint16]bool{}, map[netip.AddrPort]bool{}
	for _, c := range now {
		if c.InetDiagMsg.State == netlink.TCP_LISTEN {
			listens[c.InetDiagMsg.ID.SourcePort] = true
		}
	}
	for _, pid := range k.pids {
		for _, inode := range w.cfg.Proc.Sockets(pid) {
			c := now[inode]
			if c != nil && c.InetDiagMsg.State == netlink.TCP_LISTEN { // what it counts then is the queue (inet_diag)
				k.look.Backlog = max(k.look.Backlog, int(c.InetDiagMsg.RQueue))
			}
			if c != nil && len(own) < 1<<12 {
				own[addrPort(c.InetDiagMsg.ID.Source, c.InetDiagMsg.ID.SourcePort)] = true
			}
		}
	}
	for inode, by := range k.waits {
		c := now[inode]
		if c == nil || c.InetDiagMsg.State == netlink.TCP_LISTEN {
			continue
		}
		s, t := c.InetDiagMsg, c.TCPInfo
		a := wire.Await{Local: addrPort(s.ID.Source, s.ID.SourcePort), Remote: addrPort(s.ID.Destination, s.ID.DestinationPort),
			Main: by.main, Connects: s.State == netlink.TCP_SYN_SENT, Idle: idle(t)}
		answered := !a.Connects && t.Bytes_received > 0 && t.Last_data_sent >= t.Last_data_recv
		a.Client = listens[s.ID.SourcePort]
		if own[a.Remote] || (a.Client || answered) && (by.anyOf || !by.main) {
			continue
		}
		a.Setting = setting(w.cfg.Proc, by.pid, a.Remote)
		out = append(out, a)
	}
	for _, seen := range k.asks {
		if a := seen[len(seen)-1]; len(seen) > k.seen/2 {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b wire.Await) int {
		if a.Main != b.Main {
			return map[bool]int{true: -1, false: 1}[a.Main]
		}
		return cmp.Or(cmp.Compare(b.Idle, a.Idle), a.Remote.Compare(b.Remote))
	})
	return out[:min(len(out), awaitsMost)]
}

// idle is for how long no byte has gone over a connection. One that nothing has taken has tried for at least the sum of
// the times between its attempts: a second each (tcp_syn_linear_timeouts), then twice as long as the one before.
func idle(t *netlink.TCPInfo) time.Duration {
	if t.State == netlink.TCP_SYN_SENT {
		linear := time.Duration(t.Retransmits-min(t.Retransmits, t.Backoff)) * time.Second
		return max(0, linear+time.Duration(t.Rto)*time.Microsecond-time.Second)
	}
	return time.Duration(min(t.Last_data_sent, t.Last_data_recv)) * time.Millisecond
}

// setting is the variable that names a proxy at this address, or at this port of a host by name; empty: none does. Its
// value may have a password in it, and stays here.
func setting(fs proc.FS, pid int, at netip.AddrPort) string {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy",
		"HF_ENDPOINT"} {
		value, _ := fs.Env(pid, name)
		if value != "" && !strings.Contains(value, "://") {
			value = "http://" + value
		}
		u, err := url.Parse(value)
		if err != nil || value == "" {
			continue
		}
		port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
		addr, err := netip.ParseAddr(u.Hostname())
		if port == strconv.Itoa(int(at.Port())) && (err != nil || addr.Unmap() == at.Addr()) {
			return name
		}
	}
	return ""
}
