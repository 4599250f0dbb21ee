package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// announceAgain is the pause after a failed announcement.
const announceAgain = 10 * time.Second

// announces announces this member by mDNS at addr, on that one NIC, as long as addr is
// its management address. Nothing depends on it: a failure is logged and repeated later.
func (n *Network) announces(ctx context.Context, addr netip.Addr) error {
	if !n.cfg.Announce {
		return nil
	}
	said := ""
	for {
		inv, changed := n.cfg.Inventory.Watch()
		on, err := n.announcedOn(inv, addr)
		if err == nil {
			n.cfg.Logger.Info("announce by mDNS", "nic", on.Name, "addr", addr)
			if err = n.announceOn(ctx, on, addr); err == nil {
				said = ""
				continue // the NIC has changed
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err.Error() != said {
			said = err.Error()
			n.cfg.Logger.Warn("announce by mDNS", "error", err)
		}
		select {
		case <-changed:
		case <-time.After(announceAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// announcedOn is the NIC of this management address while it has a carrier: a host
// plugged in meanwhile must hear the announcement anew.
func (n *Network) announcedOn(inv envgen.Inventory, addr netip.Addr) (discover.Link, error) {
	mgmt, err := envgen.Management(inv, n.cfg.Management)
	if err != nil {
		return discover.Link{}, err
	}
	nic, ok := inv.NIC(mgmt.NIC)
	if mgmt.Addr != addr || !ok || !nic.HasCarrier() {
		return discover.Link{}, fmt.Errorf("%s has no link with the address %s", mgmt.NIC, addr)
	}
	return discover.LinkOf(mgmt.NIC, addr)
}

// announceOn returns nil when the management NIC has changed.
func (n *Network) announceOn(ctx context.Context, on discover.Link, addr netip.Addr) error {
	self, moved := n.cfg.Self, errors.New("moved")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return discover.Announce(ctx, on, discover.Member{
			Cluster: self.Cluster, CA: trust.PinOf(n.cfg.Gate.Identity().CA).String(),
			Host: self.Host, Node: string(self.ID), Addr: netip.AddrPortFrom(addr, self.RPCPort),
		})
	})
	g.Go(func() error {
		for {
			inv, changed := n.cfg.Inventory.Watch()
			if now, err := n.announcedOn(inv, addr); err != nil || now != on {
				return moved
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	if err := g.Wait(); !errors.Is(err, moved) {
		return err
	}
	return nil
}
