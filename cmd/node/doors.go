package node

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// doorAgain is the pause before a door that could not be opened, or has failed,
// is tried again.
const doorAgain = time.Second

// doorAddrs lists this node's addresses on the fabric: those of its RDMA ports
// but for a LAN's. Link-local ones have their zone and come last.
func doorAddrs(inv envgen.Inventory, mgmt netip.Addr) []netip.Addr {
	var out, local []netip.Addr
	ports := envgen.Ports(inv)
	// Management on a fabric NIC by the user's word makes no LAN of the port.
	roles, _ := envgen.Roles(inv, ports, envgen.RoleSettings{Mgmt: mgmt, FabricPorts: inv.FabricPorts})
	for i, port := range ports {
		if roles[i] == envgen.RoleLAN || roles[i] != envgen.RoleFabric && len(inv.FabricPorts) > 0 {
			continue
		}
		for _, h := range port.Twins {
			for _, name := range h.Netdevs() {
				nic, ok := inv.NIC(name)
				if !ok || !nic.Up {
					continue
				}
				for _, p := range nic.Addresses {
					switch a := p.Addr().Unmap(); {
					case a == mgmt || a.IsLoopback() || a.IsMulticast() || a.Is4() && a.IsLinkLocalUnicast():
					case a.IsLinkLocalUnicast():
						local = append(local, a.WithZone(name))
					case !slices.Contains(out, a):
						out = append(out, a)
					}
				}
			}
		}
	}
	out = append(out, local...)
	return out[:min(len(out), gossip.MaxFabric)]
}

// wantedDoors are those of this moment.
func (n *node) wantedDoors() ([]netip.Addr, <-chan struct{}) {
	inv, changed := n.inventory.Watch()
	mgmt, _ := envgen.Management(inv, n.cfg.Management) // without one the fabric alone is left
	return doorAddrs(inv, mgmt.Addr), changed
}

// clusterMux answers members and newcomers, on management and on the fabric.
func (n *node) clusterMux() *http.ServeMux {
	mux := http.NewServeMux()
	n.clusterCalls().Mount(mux)
	n.nodeCalls().Mount(mux)
	wire.Patients{Examine: n.checkup.Examine, Mend: n.checkup.Mend}.Mount(mux)
	wire.Join(n.join).Mount(mux)
	wire.Doctor(n.checkup.Doctor).Mount(mux) // for clients
	wire.Login(n.login).Mount(mux)
	wire.RenewExpired(n.renewExpired).Mount(mux)
	return mux
}

// doors keeps the TLS port open on the fabric's addresses too, as they come and
// go: with management dead members still talk.
func (n *node) doors(ctx context.Context) error {
	var open sync.WaitGroup
	defer open.Wait()
	stop := map[netip.Addr]context.CancelFunc{}
	ended := map[netip.Addr]chan struct{}{}
	for {
		wanted, changed := n.wantedDoors()
		for a, end := range stop {
			if !slices.Contains(wanted, a) {
				end()
				delete(stop, a)
			}
		}
		for _, a := range wanted {
			if stop[a] != nil {
				continue
			}
			door, cancel := context.WithCancel(ctx)
			before, done := ended[a], make(chan struct{})
			stop[a], ended[a] = cancel, done
			open.Go(func() {
				defer close(done)
				defer cancel()
				if before != nil {
					<-before // the address has come back while its old door was closing
				}
				n.keepDoor(door, a)
			})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// keepDoor serves at one address until ctx ends.
func (n *node) keepDoor(ctx context.Context, a netip.Addr) {
	port := uint16(n.m.RPCPort)
	said := ""
	for ctx.Err() == nil {
		err := n.serveDoor(ctx, netip.AddrPortFrom(a, port), func() {
			n.log.Info("fabric door open", "addr", a)
			said = ""
		})
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			n.log.Warn("fabric door", "addr", a, "error", err)
		}
		select {
		case <-time.After(doorAgain):
		case <-ctx.Done():
		}
	}
}

func (n *node) serveDoor(ctx context.Context, at netip.AddrPort, opened func()) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	opened()
	srv := n.clusterServer()
	return serve(ctx, srv, n.door.Listen(l), (*http.Server).Serve)
}

// tellDoors keeps gossip told of the doors there are.
func (n *node) tellDoors(ctx context.Context, g *gossip.Gossip) error {
	told := n.gossipMeta()
	for {
		_, changed := n.inventory.Watch()
		if now := n.gossipMeta(); now != told {
			if err := g.Update(now); err != nil {
				n.log.Warn("tell fabric addresses", "error", err)
			}
			told = now
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// gossipMeta is what this node tells of itself.
func (n *node) gossipMeta() gossip.Meta {
	m := n.remembered()
	doors, _ := n.wantedDoors()
	return gossip.Meta{ID: string(m.Node), Host: m.Host, RPCPort: uint16(m.RPCPort), Epoch: m.Epoch, Version: n.cfg.Version}.WithFabric(doors)
}
