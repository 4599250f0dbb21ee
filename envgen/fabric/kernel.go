package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dumpAttempts bounds how often a dump is repeated that the kernel marks as changed while it was read. Each is a
// complete new one.
const dumpAttempts = 5

// dump repeats a netlink listing until it is consistent.
func dump[T any](ctx context.Context, list func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		result, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == dumpAttempts {
			return result, err
		}
		if ctx.Err() != nil {
			return result, context.Cause(ctx)
		}
	}
}

// kernelLinks lists the interfaces of this network namespace in the order of their index.
func kernelLinks(ctx context.Context) ([]Link, error) {
	found, err := dump(ctx, netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addrs, err := dump(ctx, func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	routes, err := dump(ctx, func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return assemble(found, addrs, routes), nil
}

// assemble joins the three listings.
func assemble(found []netlink.Link, addrs []netlink.Addr, routes []netlink.Route) []Link {
	links := make([]Link, len(found))
	at := map[int]int{} // the kernel's index -> index in links
	for i, l := range found {
		a := l.Attrs()
		at[a.Index] = i
		links[i] = Link{
			Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: a.RawFlags&unix.IFF_UP != 0,
			OperState: a.OperState.String(), Kind: l.Type(), Loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
		}
		if links[i].Up {
			links[i].Carrier = new(a.RawFlags&unix.IFF_LOWER_UP != 0)
		}
	}
	// An address that is still being tested, has failed the test, or is temporary (privacy extensions) is not one
	// to be reached by.
	const passing = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED
	for _, a := range addrs {
		i, known := at[a.LinkIndex]
		v4 := a.IPNet != nil && a.IP.To4() != nil
		if p, ok := prefixOf(a.IPNet); ok && known && (v4 || a.Flags&passing == 0) {
			links[i].Addresses = append(links[i].Addresses, p)
		}
	}
	for _, r := range routes {
		if p, ok := prefixOf(r.Dst); r.Dst != nil && (!ok || p.Bits() != 0) || r.Type != unix.RTN_UNICAST {
			continue
		}
		mark := func(index int) {
			if i, known := at[index]; known && !links[i].Loopback {
				links[i].DefaultRoute = true
			}
		}
		mark(r.LinkIndex)
		for _, hop := range r.MultiPath {
			mark(hop.LinkIndex)
		}
	}
	return links
}

// kernelRoutes lists the routes of all tables except the local one, which only repeats the
// addresses.
func kernelRoutes(ctx context.Context) ([]Route, error) {
	found, err := dump(ctx, func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	links, err := dump(ctx, netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var routes []Route
	for _, r := range found {
		if r.Table != unix.RT_TABLE_LOCAL {
			routes = append(routes, routeOf(r, names))
		}
	}
	return routes, nil
}

func routeOf(r netlink.Route, names map[int]string) Route {
	out := Route{Table: r.Table, Metric: r.Priority, Type: r.Type}
	var ok bool
	if out.Dst, ok = prefixOf(r.Dst); !ok {
		out.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.Family == netlink.FAMILY_V6 {
			out.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	if src, ok := netip.AddrFromSlice(r.Src); ok {
		out.Src = src.Unmap()
	}
	way := func(gateway net.IP, link int) {
		if via, ok := netip.AddrFromSlice(gateway); ok {
			out.Via = append(out.Via, via.Unmap())
		}
		if link != 0 {
			out.Dev = append(out.Dev, names[link])
		}
	}
	way(r.Gw, r.LinkIndex)
	for _, hop := range r.MultiPath {
		way(hop.Gw, hop.LinkIndex)
	}
	return out
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	if bits == 32 {
		addr = addr.Unmap()
	}
	p := netip.PrefixFrom(addr, ones)
	return p, p.IsValid()
}

// kernelEvents pokes after each message about links, addresses and routes. The content of the message does not
// matter, since the reader reads everything; so a lost message (ENOBUFS) is as good as a received one.
func kernelEvents(ctx context.Context, poke func()) error {
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("subscribe to netlink: %w", err)
	}
	stop := context.AfterFunc(ctx, sock.Close)
	defer func() {
		if stop() {
			sock.Close()
		}
	}()
	poke() // for changes before the subscription
	for {
		_, _, err := sock.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, errors.Is(err, syscall.ENOBUFS):
			poke()
		default:
			return fmt.Errorf("receive from netlink: %w", err)
		}
	}
}
