package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/roads"
)

// openRoads makes the ways to other members: management first, then the fabric.
func (n *node) openRoads() (err error) {
	n.roads, err = roads.New(roads.Config{
		Roads: func(id string) ([]roads.Road, error) { return n.roadsTo(launcher.NodeID(id)) },
		Connect: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		},
		Handshake: func(ctx context.Context, c net.Conn, id, proto string) (net.Conn, error) {
			t := tls.Client(c, n.gate.Client(id, proto))
			return t, t.HandshakeContext(ctx)
		},
		Proto: protoCalls, Acked: acked, Cut: n.linkIsCut,
		OnChange: func(string) { n.detours.Store(struct{}{}) },
		OnBetter: func(id string) { n.moveBack(launcher.NodeID(id)) },
		Logger:   n.log,
	})
	return err
}

// acked asks the kernel what the peer's kernel has said: it is no matter how
// busy the agents at both ends are.
func acked(c net.Conn) (bytes uint64, waiting bool) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return 0, false
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) { // closed meanwhile: nothing waits
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			bytes, waiting = info.Bytes_acked, info.Unacked > 0
		}
	})
	return bytes, waiting
}

// linkIsCut tells whether an address of this node is on an interface that can
// carry nothing now. IPv6 has addresses that no inventory lists.
func (n *node) linkIsCut(local netip.Addr) bool {
	inv := n.inventory.Load()
	nic, ok := inv.Holder(local)
	if !ok {
		return local.Is4() && len(inv.NICs) > 0
	}
	return !nic.Loopback && (!nic.Up || nic.Carrier != nil && !*nic.Carrier)
}

// roadsTo lists where a member listens: on management, then where this node has
// a fabric interface that leads there.
func (n *node) roadsTo(id launcher.NodeID) ([]roads.Road, error) {
	var out []roads.Road
	mgmt, err := n.locate(id)
	if err == nil {
		out = append(out, roads.Road{Addr: mgmt})
	}
	inv := n.inventory.Load()
	for _, door := range n.fabricOf(id) {
		for _, a := range fromHere(door.Addr(), string(id), inv) {
			road := roads.Road{Addr: netip.AddrPortFrom(a, door.Port()), Fabric: true}
			if road.Addr != mgmt && !slices.Contains(out, road) {
				out = append(out, road)
			}
		}
	}
	if len(out) == 0 {
		return nil, err
	}
	return out, nil
}

// fromHere gives an address as this node can use it: as it is where an
// interface of ours is in its subnet; a link-local one with the interface at
// which the cable probe hears that node. Through a router would be through
// management.
func fromHere(a netip.Addr, id string, own envgen.Inventory) (out []netip.Addr) {
	if a.IsLinkLocalUnicast() && a.Is6() {
		if own.Cabling == nil {
			return nil
		}
		for _, s := range own.Cabling.Sightings {
			if zoned := a.WithZone(s.NIC); s.Peer.Node == id && !s.Clone && !slices.Contains(out, zoned) {
				out = append(out, zoned)
			}
		}
		return out
	}
	for _, nic := range own.NICs {
		for _, p := range nic.Addresses {
			if nic.Up && p.Addr() == a {
				return nil // ours would answer
			}
			if nic.Up && p.Contains(a) {
				out = []netip.Addr{a}
			}
		}
	}
	return out
}

// fabricOf lists a member's doors on the fabric: gossip tells of them, and what
// it told last is remembered.
func (n *node) fabricOf(id launcher.NodeID) []netip.AddrPort {
	for _, p := range n.present.Load() {
		if p.ID == string(id) {
			return doorsOn(p.Meta.FabricAddrs(), p.RPCPort)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m.Fabric[id]
}

func doorsOn(addrs []netip.Addr, port uint16) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a, port))
	}
	return out
}

// moveBack takes what can be moved to a better road that carries again: raft's
// connections and new calls at once, the leader's control stream by a new one.
// A call under way stays where it is until it ends.
func (n *node) moveBack(id launcher.NodeID) {
	n.log.Info("move back to the better road", "node", n.hostOf(id))
	n.roads.Leave(string(id), n.peers.raftProto)
	if !n.roads.Astray(string(id), protoCalls) {
		return
	}
	n.peers.renew(id)
	if l := n.leading.Load(); l != nil {
		l.links.Reopen(id)
	}
}

// rememberDoors writes down where members can be reached on the fabric, for an
// agent that starts while management is dead.
func (n *node) rememberDoors(present []gossip.Peer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := maps.Clone(n.m.Fabric)
	if now == nil {
		now = map[launcher.NodeID][]netip.AddrPort{}
	}
	for _, p := range present {
		if doors := doorsOn(p.Meta.FabricAddrs(), p.RPCPort); p.Alive && len(doors) > 0 {
			now[launcher.NodeID(p.ID)] = doors
		} else if p.Alive {
			delete(now, launcher.NodeID(p.ID))
		}
	}
	if maps.EqualFunc(now, n.m.Fabric, slices.Equal) {
		return nil
	}
	n.m.Fabric = now
	if err := n.m.save(n.cfg.Paths); err != nil {
		return fmt.Errorf("remember fabric addresses: %w", err)
	}
	return nil
}

// looks has the routes looked at when a link has come or gone.
func (n *node) looks(ctx context.Context) error {
	for {
		_, changed := n.inventory.Watch()
		n.roads.Look()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
