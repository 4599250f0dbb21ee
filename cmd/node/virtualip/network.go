package virtualip

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen/arp"
)

// Host is this machine's network: the address goes to the interface that has one of the same network already.
type Host struct{}

// label marks the address for whoever looks at ip-address(8); the interface's name stands before it.
const label = ":spark"

// link is the interface with an address whose network has this one, and whether it has this one itself. It fails where
// that is an address of the machine's own.
func link(addr netip.Addr) (at netlink.Link, has bool, err error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, false, fmt.Errorf("list addresses: %w", err)
	}
	index := 0
	for _, a := range all {
		switch {
		case !a.IP.Equal(addr.AsSlice()):
			if index == 0 && a.Contains(addr.AsSlice()) {
				index = a.LinkIndex
			}
		case a.ValidLft > int(Lifetime/time.Second): // also one that is for ever
			return nil, false, fmt.Errorf("%s is an address of this machine's own", addr)
		default:
			index, has = a.LinkIndex, true
		}
	}
	if index == 0 {
		return nil, false, fmt.Errorf("no interface of this machine has an address in the network of %s", addr)
	}
	at, err = netlink.LinkByIndex(index)
	return at, has, err
}

// Has tells whether this machine has the address.
func (Host) Has(addr netip.Addr) bool {
	_, has, err := link(addr)
	return err == nil && has
}

func address(at netlink.Link, addr netip.Prefix) (*netlink.Addr, error) {
	a, err := netlink.ParseAddr(addr.String())
	if err != nil {
		return nil, err
	}
	if name := at.Attrs().Name + label; len(name) < unix.IFNAMSIZ {
		a.Label = name
	}
	a.Flags = unix.IFA_F_NOPREFIXROUTE
	return a, nil
}

// Put gives this machine the address for so long, or renews it.
func (Host) Put(addr netip.Prefix, lifetime time.Duration) error {
	at, _, err := link(addr.Addr())
	if err != nil {
		return err
	}
	a, err := address(at, addr)
	if err != nil {
		return err
	}
	seconds := int(lifetime / time.Second) // rounded down
	a.ValidLft, a.PreferedLft = seconds, seconds
	return netlink.AddrReplace(at, a)
}

// Drop takes it away.
func (Host) Drop(addr netip.Prefix) error {
	at, has, err := link(addr.Addr())
	if err != nil || !has {
		return err
	}
	a, err := address(at, addr)
	if err != nil {
		return err
	}
	return netlink.AddrDel(at, a)
}

// Holders are the MACs of other machines that answer for it.
func (Host) Holders(ctx context.Context, addr netip.Addr) ([]string, error) {
	at, _, err := link(addr)
	if err != nil {
		return nil, err
	}
	return arp.Holders(ctx, at.Attrs().Name, addr)
}

// Announce tells the network that this machine has it.
func (Host) Announce(addr netip.Addr) error {
	at, _, err := link(addr)
	if err != nil {
		return err
	}
	return arp.Announce(at.Attrs().Name, addr)
}
