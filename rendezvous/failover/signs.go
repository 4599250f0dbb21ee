package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// dialTimeout bounds the search for a sign of life: on one network it comes in
// milliseconds or not at all.
const dialTimeout = 2 * time.Second

// Answers looks for a sign of life of a member whose control stream is down.
func (f *Failover) Answers(ctx context.Context, roster rendezvous.Roster, p rendezvous.Place) bool {
	inv := f.cfg.Inventory.Load()
	return f.SignOfLife(ctx, p.Node, AddressesOf(roster, p, inv)) != ""
}

// SignOfLife says what shows that a member's machine is on: gossip, its cable probe, or
// an answer at one of these addresses; empty if nothing does. A machine that refuses a
// connection is on too, and its ranks may run. So may those of one for which ctx left no time.
func (f *Failover) SignOfLife(ctx context.Context, id launcher.NodeID, addrs []netip.Addr) string {
	if f.present()[id] {
		return "it gossips, or did until a few seconds ago"
	}
	inv := f.cfg.Inventory.Load()
	if inv.Cabling != nil {
		for _, s := range inv.Cabling.Sightings {
			if s.Peer.Node == string(id) && !s.Clone {
				return "its cable probe answers on " + s.NIC + ", or did until a few seconds ago"
			}
		}
	}
	if a := f.anyAnswers(ctx, addrs); a.IsValid() {
		return fmt.Sprintf("the machine answers at %s", a)
	}
	if err := ctx.Err(); err != nil { // an attempt that was broken off proves nothing
		return fmt.Sprintf("whether it is on could not be found out (%v)", err)
	}
	return ""
}

// anyAnswers gives an address at which a machine answers; the zero Addr if there is none.
func (f *Failover) anyAnswers(ctx context.Context, addrs []netip.Addr) netip.Addr {
	var any atomic.Pointer[netip.Addr]
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	each(len(addrs), func(i int) {
		to := net.JoinHostPort(addrs[i].String(), strconv.Itoa(int(f.cfg.Self.RPCPort)))
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
		if err == nil {
			c.Close()
		}
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			any.Store(&addrs[i])
			cancel()
		}
	})
	if a := any.Load(); a != nil {
		return *a
	}
	return netip.Addr{}
}

// AddressesOf lists where a planned node may be reached: at its job's address, at its
// management address, and on the interfaces of its RDMA ports. It leaves out addresses
// that this node has too: they would always answer.
func AddressesOf(roster rendezvous.Roster, p rendezvous.Place, own envgen.Inventory) []netip.Addr {
	out := []netip.Addr{p.Entry.Addr}
	if i := slices.IndexFunc(roster, func(m rendezvous.Member) bool { return m.ID == p.Node }); i >= 0 {
		m := roster[i]
		out = append(out, m.Addr.Addr())
		for _, d := range m.Inventory.Devices {
			for _, nic := range m.Inventory.NICs {
				if !slices.Contains(d.Netdevs(), nic.Name) {
					continue
				}
				for _, a := range nic.Addresses {
					out = append(out, a.Addr())
				}
			}
		}
	}
	return others(out, own)
}

// others leaves out addresses that belong to this machine.
func others(addrs []netip.Addr, own envgen.Inventory) []netip.Addr {
	out := slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		return !a.IsGlobalUnicast() || slices.ContainsFunc(own.NICs, func(nic envgen.NIC) bool {
			return slices.ContainsFunc(nic.Addresses, func(x netip.Prefix) bool { return x.Addr() == a })
		})
	})
	slices.SortStableFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// each runs fn for 0..k-1 side by side and waits for all.
func each(k int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}
