package envgen

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// RoleSettings is what besides the inventory decides the roles of a node's ports.
type RoleSettings struct {
	// Mgmt is the node's management address; invalid where it has none.
	Mgmt netip.Addr
	// MgmtSubnet is management's network; invalid means the one in which the inventory has Mgmt.
	MgmtSubnet netip.Prefix
	// FabricPorts are names of ports (see PortsByName) that the user declared to be the fabric: those and no others
	// are. Empty leaves it to the rules.
	FabricPorts []string
	// NonMembers says for ports, by slot, which host outside the cluster was seen
	// there.
	NonMembers map[string]string
}

// Roles gives each port its role and the reason, in the order of the ports. The whole port counts: its twins share
// the cable. The user's choice wins; then a port belongs to a LAN if it carries the default route, is in
// management's subnet or leads to a non-member, since RDMA over it would leave the fabric's own cables idle; then a
// port without any link is unused. A non-member beside members, on a port that has an address for them, changes
// nothing: anybody who sends a frame into the fabric's switch could else have the cluster leave it.
func Roles(inv Inventory, ports []Port, settings RoleSettings) (roles []Role, why []string) {
	named := map[int]bool{}
	if len(settings.FabricPorts) > 0 {
		byName := PortsByName(ports)
		for _, name := range settings.FabricPorts {
			if i, ok := byName[name]; ok {
				named[i] = true
			}
		}
	}
	subnet := settings.MgmtSubnet.Masked()
	if !subnet.IsValid() {
		subnet = managementSubnet(inv, settings.Mgmt.Unmap())
	}
	for i, p := range ports {
		role, reason := RoleFabric, "it has a link"
		lan := lanReason(inv, subnet, p)
		if who := settings.NonMembers[p.Slot]; lan == "" && who != "" && !p.joinsMembers(inv) {
			lan = fmt.Sprintf("it leads to %s, which is no member", who)
		}
		switch {
		case named[i]:
			reason = "named by --fabric-port"
		case lan != "":
			role, reason = RoleLAN, lan
		case len(settings.FabricPorts) > 0:
			role, reason = RoleUnused, "--fabric-port names others"
		case !p.Live(inv):
			role, reason = RoleUnused, "it has no link"
		}
		roles, why = append(roles, role), append(why, reason)
	}
	return roles, why
}

// joinsMembers reports whether the port has an IPv4 address and its probe hears a member there.
func (p Port) joinsMembers(inv Inventory) bool {
	heard := inv.Cabling != nil && slices.ContainsFunc(inv.Cabling.Sightings,
		func(s Sighting) bool { return s.Slot == p.Slot && !s.Clone })
	return heard && slices.ContainsFunc(p.Twins, func(h HCA) bool {
		nic, _ := inv.NIC(h.Netdev)
		return slices.ContainsFunc(nic.Addresses, func(a netip.Prefix) bool {
			return a.Addr().Is4() && !a.Addr().IsLinkLocalUnicast()
		})
	})
}

// Live reports whether a twin of the port has a link: its interface a carrier, or where that is unknown, ACTIVE.
// The carrier is known first: for a moment after a cable was pulled the device may still say ACTIVE.
func (p Port) Live(inv Inventory) bool {
	return slices.ContainsFunc(p.Twins, func(h HCA) bool {
		nic, ok := inv.NIC(h.Netdev)
		gone := ok && h.RoCE() && nic.Carrier != nil && !*nic.Carrier
		return h.Active() && !gone || ok && nic.HasCarrier()
	})
}

// PortsByName maps every name of each port to the port's index: its slot, its devices' PCI addresses, names and
// interfaces, and its number. A name that fits two ports (the number, on a server with several cards) is left out.
func PortsByName(ports []Port) map[string]int {
	names := map[string]int{}
	twice := map[string]bool{}
	for i, p := range ports {
		add := func(name string) {
			if at, taken := names[name]; taken && at != i {
				twice[name] = true
			}
			names[name] = i
		}
		add(p.Slot)
		if p.Number != nil {
			add(strconv.Itoa(*p.Number))
		}
		for _, h := range p.Twins {
			add(h.Name)
			if h.PCI != nil {
				add(h.PCI.String())
			}
			for _, nic := range h.Netdevs() {
				add(nic)
			}
		}
	}
	for name := range twice {
		delete(names, name)
	}
	return names
}

// UnknownFabricPort says which of the ports that the user declared do not exist, and which ports do; empty where
// all do. Such a port may still be plugged in, or get its driver.
func (inv Inventory) UnknownFabricPort() string {
	ports := Ports(inv)
	byName := PortsByName(ports)
	missing := filter(inv.FabricPorts, func(name string) bool { _, ok := byName[name]; return !ok })
	if len(missing) == 0 {
		return ""
	}
	there := make([]string, len(ports))
	for i, p := range ports {
		names := make([]string, len(p.Twins))
		for j, h := range p.Twins {
			names[j] = h.Name
		}
		there[i] = fmt.Sprintf("%s (%s)", p.Slot, strings.Join(names, ", "))
	}
	if len(there) == 0 {
		there = []string{"none"}
	}
	return fmt.Sprintf("--fabric-port %s names no port of %s, or more than one (there are: %s); it counts from when "+
		"it is there",
		joinWords(missing), inv.Host, strings.Join(there, "; "))
}

// DevicePaths finds the addresses with which a device of the port can be used: those with a RoCE v2 row in its GID
// table, on an interface with a carrier. Where there are none, why says what is missing.
func DevicePaths(inv Inventory, port Port, h HCA) (paths []Path, why string) {
	switch {
	case !h.RoCE():
		return nil, "it speaks no RoCE"
	case !h.Active():
		return nil, "it is " + h.State
	}
	ways, why := deviceWays(inv, h)
	for _, w := range ways {
		w.Slot = port.Slot
		paths = append(paths, w.Path)
	}
	return paths, why
}

// managementSubnet is the network of the management address. If the user put management on a fabric NIC, that is no
// sign of a LAN: its subnet is the fabric's own.
func managementSubnet(inv Inventory, mgmt netip.Addr) netip.Prefix {
	nic, ok := inv.Holder(mgmt)
	if !ok || nic.Loopback || inv.FabricNIC(nic) {
		return netip.Prefix{}
	}
	p, _ := nic.prefixOf(mgmt)
	return p.Masked()
}

// lanReason says why the node's own network makes a port part of a LAN; empty where nothing does.
func lanReason(inv Inventory, mgmtNet netip.Prefix, port Port) string {
	for _, h := range port.Twins {
		for _, name := range h.Netdevs() {
			nic, ok := inv.NIC(name)
			if !ok {
				continue
			}
			if nic.DefaultRoute {
				return fmt.Sprintf("%s carries the default route", name)
			}
			for _, p := range nic.Addresses {
				if mgmtNet.IsValid() && mgmtNet.Overlaps(p.Masked()) && !p.Addr().IsLinkLocalUnicast() {
					return fmt.Sprintf("%s is in management's subnet %s", name, mgmtNet)
				}
			}
		}
	}
	return ""
}
