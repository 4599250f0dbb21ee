package envgen

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// IBDev2Netdev prints what NVIDIA's ibdev2netdev does: a line for each RDMA
// device, in the order of their names, and whether its interface is up
// (operstate, RFC 2863).
func IBDev2Netdev(inv Inventory) string {
	var b strings.Builder
	for _, h := range byName(inv.Devices) {
		state := "Down"
		if n, ok := inv.NIC(h.Netdev); ok && n.OperState == "up" {
			state = "Up"
		}
		fmt.Fprintf(&b, "%s port 1 ==> %s (%s)\n", h.Name, h.Netdev, state)
	}
	return b.String()
}

// ShowGIDs prints what NVIDIA's show_gids does: the filled rows of every GID
// table. Like the script it leaves out the bare link-local prefix, and orders
// the rows as ls does: 1, 10, 2.
func ShowGIDs(inv Inventory) string {
	var b strings.Builder
	b.WriteString("DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4 \t\tVER\tDEV\n")
	b.WriteString("---\t----\t-----\t---\t\t\t\t\t------------ \t---\t---\n")
	count := 0
	for _, h := range byName(inv.Devices) {
		rows := slices.Clone(h.GIDs)
		slices.SortStableFunc(rows,
			func(x, y GID) int { return strings.Compare(strconv.Itoa(x.Index), strconv.Itoa(y.Index)) })
		for _, g := range rows {
			if g.Addr == barePrefix {
				continue
			}
			count++
			version := g.Type
			if i := strings.LastIndexByte(g.Type, 'v'); i >= 0 {
				version = g.Type[i:]
			}
			ipv4 := "\t\t"
			if g.Addr.Is4In6() {
				ipv4 = g.Addr.Unmap().String() + " \t"
			}
			fmt.Fprintf(&b, "%s\t1\t%d\t%s\t%s%s\t%s\n", h.Name, g.Index, sysfsGID(g.Addr), ipv4, version, g.Netdev)
		}
	}
	fmt.Fprintf(&b, "n_gids_found=%d\n", count)
	return b.String()
}

var barePrefix = netip.MustParseAddr("fe80::")

// sysfsGID writes a GID as gids/N has it: eight groups of four digits, also
// where netip would write an IPv4 address.
func sysfsGID(a netip.Addr) string {
	b := a.As16()
	groups := make([]string, 8)
	for i := range groups {
		groups[i] = fmt.Sprintf("%02x%02x", b[2*i], b[2*i+1])
	}
	return strings.Join(groups, ":")
}

// byName orders as ls does in every locale but C: rocep1 before roceP2.
func byName(devices []HCA) []HCA {
	out := slices.Clone(devices)
	slices.SortStableFunc(out, func(a, b HCA) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)), strings.Compare(a.Name, b.Name))
	})
	return out
}
