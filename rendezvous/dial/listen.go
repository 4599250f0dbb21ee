package dial

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
)

// listenAgain is the pause before a listener that could not be opened, or has
// failed, is tried again.
const listenAgain = time.Second

// FabricAddrs lists a machine's addresses on the fabric: those of its RDMA ports, except
// one that is on a LAN. Link-local ones have their zone and come last. management is as
// the user gave it, for envgen.Management.
func FabricAddrs(inv envgen.Inventory, management string) []netip.Addr {
	choice, _ := envgen.Management(inv, management) // without one only the fabric is left
	mgmt := choice.Addr
	var out, local []netip.Addr
	ports := envgen.Ports(inv)
	// If the user put management on a fabric NIC, its port is still not a LAN's.
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

// Listeners keep the cluster's port open on the fabric's addresses too, as they
// come and go: with management dead members still talk.
type Listeners struct {
	Inventory  *rendezvous.Latest[envgen.Inventory]
	Management string // as the user gave it
	Port       uint16
	// Serve answers at a listener, which it closes, until ctx ends.
	Serve  func(ctx context.Context, l net.Listener) error
	Logger *slog.Logger
}

// Run returns when ctx has ended and every listener is closed.
func (l Listeners) Run(ctx context.Context) error {
	var open sync.WaitGroup
	defer open.Wait()
	stop := map[netip.Addr]context.CancelFunc{}
	ended := map[netip.Addr]chan struct{}{}
	for {
		inv, changed := l.Inventory.Watch()
		wanted := FabricAddrs(inv, l.Management)
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
			listening, cancel := context.WithCancel(ctx)
			before, done := ended[a], make(chan struct{})
			stop[a], ended[a] = cancel, done
			open.Go(func() {
				defer close(done)
				defer cancel()
				if before != nil {
					<-before // the address has come back while its old listener was closing
				}
				l.keep(listening, netip.AddrPortFrom(a, l.Port))
			})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// keep serves at one address until ctx ends.
func (l Listeners) keep(ctx context.Context, at netip.AddrPort) {
	said := ""
	for ctx.Err() == nil {
		on, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.String())
		if err == nil {
			l.Logger.Info("listen on the fabric", "addr", at.Addr())
			said = ""
			err = l.Serve(ctx, on)
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			l.Logger.Warn("listen on the fabric", "addr", at.Addr(), "error", err)
		}
		select {
		case <-time.After(listenAgain):
		case <-ctx.Done():
		}
	}
}
