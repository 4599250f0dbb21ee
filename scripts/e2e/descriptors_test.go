package e2e

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// descriptors are what a process has open, by name, and how often. Of a connection
// the name has whom it is with, and not the port that the kernel drew for it.
type descriptors map[string]int

// between begins the names of connections that agents have with each other.
const between = "agents' connection "

// openOf looks at an agent's descriptors, from outside of its host.
func (l *lab) openOf(host string) descriptors {
	l.t.Helper()
	open := descriptors{}
	pids := l.find(host, "sparkrun agent", "")
	if len(pids) == 0 {
		l.t.Fatalf("no agent on %s", host)
	}
	dir := fmt.Sprintf("/proc/%d/", pids[0])
	sockets := socketsOf(dir + "net/")
	fds, err := os.ReadDir(dir + "fd")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, fd := range fds {
		link, err := os.Readlink(dir + "fd/" + fd.Name())
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			if name, ok := sockets[strings.TrimSuffix(inode, "]")]; ok {
				link = name
			} else {
				link = between + "that is over" // raft keeps one until it wants it again
			}
		}
		link, _, _ = strings.Cut(link, ":[") // pipe:[4711]
		open[link]++
	}
	return open
}

// socketsOf reads a network namespace's sockets: inode -> name. One of TCP that the other end has reset, and that nobody
// has closed yet, is in no table.
func socketsOf(net string) map[string]string {
	names := map[string]string{}
	for _, kind := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "raw6", "icmp", "icmp6", "unix", "netlink", "packet"} {
		b, _ := os.ReadFile(net + kind)
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			switch {
			case kind == "unix" && len(f) >= 7:
				names[f[6]] = "unix " + strings.Join(f[7:], " ")
			case (kind == "netlink" || kind == "packet") && len(f) >= 9: // their inode is the last
				names[f[len(f)-1]] = kind
			case len(f) >= 10 && strings.Contains(f[1], ":"):
				here, there := endpoint(f[1]), endpoint(f[2])
				name := fmt.Sprintf("%s %s, state %s", kind, here, f[3])
				switch {
				case there.Port() == agentPort:
					name = between + fmt.Sprintf("to %s", there.Addr())
				case here.Port() == agentPort && there.Port() != 0:
					name = between + fmt.Sprintf("from %s", there.Addr())
				case there.Port() != 0:
					name += fmt.Sprintf(" with %s", there)
				}
				names[f[9]] = name
			}
		}
	}
	return names
}

const agentPort = 7940

// endpoint reads `0B001EAC:1F04`: words of an address in this machine's order.
func endpoint(s string) netip.AddrPort {
	addr, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(addr)
	p, err2 := hex.DecodeString(port)
	if err != nil || err2 != nil || len(p) != 2 {
		return netip.AddrPort{}
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, uint16(p[0])<<8|uint16(p[1]))
}

// more is what there is now beyond what there was: connections between agents, and all else.
func (was descriptors) more(now descriptors) (connections, rest int, names []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		n := now[name] - was[name]
		if n <= 0 {
			continue
		}
		if names = append(names, fmt.Sprintf("%d x %s", n, name)); strings.HasPrefix(name, between) {
			connections += n
		} else {
			rest += n
		}
	}
	return connections, rest, names
}
