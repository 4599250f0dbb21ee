package envgen

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ManagementChoice is the interface and address by which the members of a cluster talk to this node.
type ManagementChoice struct {
	// NIC is the interface's name.
	NIC string `json:"nic"`
	// Addr is never unspecified: it can be bound and advertised as it is.
	Addr netip.Addr `json:"addr"`
	// Warning is a sentence for the user when the choice is a poor one; empty otherwise.
	Warning string `json:"warning,omitempty"`
}

// ErrNoManagement is Management's error when no interface is usable now: a cable, a driver or DHCP may change that.
var ErrNoManagement = errors.New("no interface can carry management; name one with --management IFACE|ADDR")

// absentError is for an override that does not exist. It has its own remedy.
type absentError struct{ error }

func (absentError) Is(target error) bool { return target == ErrNoManagement }

// The classes of candidates, best first. A class beats every other property.
const (
	classWired = iota
	classWireless
	classWiredNoCarrier
	classWirelessNoCarrier
	classVirtual
	classUnfit
)

// Management chooses the interface the cluster talks over: the wired one that is no ConnectX and has an address,
// else Wi-Fi, else (in a container) a virtual one with the default route; the latter two with a warning. A fabric
// NIC is only taken by override, which is an interface's name or an address that this node holds (a loopback one
// too). It prefers IPv4 to IPv6 and takes no link-local address, unless the override is one.
func Management(inv Inventory, override string) (ManagementChoice, error) {
	if override != "" {
		return managementOverride(inv, override)
	}
	type candidate struct {
		NIC
		class int
		addr  netip.Addr
	}
	var found []candidate
	var looked []string
	for _, n := range inv.NICs {
		class, why := managementClass(inv, n)
		addr, ok := hostAddr(n, false)
		if class != classUnfit && !ok {
			class, why = classUnfit, "no address"
		}
		if class == classUnfit {
			looked = append(looked, n.Name+" ("+why+")")
			continue
		}
		found = append(found, candidate{n, class, addr})
	}
	if len(found) == 0 {
		if len(looked) == 0 {
			looked = []string{"no interfaces at all"}
		}
		return ManagementChoice{}, fmt.Errorf("choose management interface of %s: looked at %s: %w",
			inv.Host, strings.Join(looked, ", "), ErrNoManagement)
	}
	best := slices.MinFunc(found, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(a.class, b.class),
			compareTrueFirst(a.addr.Is4(), b.addr.Is4()),
			compareTrueFirst(a.DefaultRoute, b.DefaultRoute),
			comparePCI(a.PCI, b.PCI),
			cmp.Compare(a.Name, b.Name),
		)
	})
	choice := ManagementChoice{NIC: best.Name, Addr: best.addr}
	switch best.class {
	case classWireless:
		choice.Warning = fmt.Sprintf("management runs over Wi-Fi (%s): no wired interface other than the fabric's is up "+
			"with an address; "+
			"plug one in or name it with --management IFACE|ADDR", best.Name)
	case classWiredNoCarrier, classWirelessNoCarrier:
		choice.Warning = fmt.Sprintf("management interface %s has no link: check its cable or access point, or name "+
			"another with --management IFACE|ADDR", best.Name)
	case classVirtual:
		choice.Warning = fmt.Sprintf("management runs over %s, which is no hardware (%s): it carries the default route "+
			"and nothing better is up; "+
			"name another with --management IFACE|ADDR", best.Name, best.Kind)
	}
	return choice, nil
}

// managementClass gives an interface's class, or says why it cannot be used.
func managementClass(inv Inventory, n NIC) (class int, why string) {
	switch {
	case n.Loopback:
		return classUnfit, "loopback"
	case inv.FabricNIC(n):
		return classUnfit, "fabric"
	case !n.Up:
		return classUnfit, "set down"
	case n.Physical && n.Wireless && n.HasCarrier():
		return classWireless, ""
	case n.Physical && n.Wireless:
		return classWirelessNoCarrier, ""
	case n.Physical && n.HasCarrier():
		return classWired, ""
	case n.Physical:
		return classWiredNoCarrier, ""
	case n.DefaultRoute && n.HasCarrier():
		return classVirtual, ""
	}
	return classUnfit, "virtual, without the default route"
}

func managementOverride(inv Inventory, override string) (ManagementChoice, error) {
	if addr, err := netip.ParseAddr(override); err == nil {
		addr = addr.Unmap()
		if addr.IsUnspecified() || addr.IsMulticast() {
			return ManagementChoice{},
				fmt.Errorf("choose management interface of %s: --management %s: want one address of this node", inv.Host, override)
		}
		// A zone names the interface; prefixes have none.
		nic, ok := inv.Holder(addr.WithZone(""))
		if addr.Zone() != "" {
			nic, ok = inv.NIC(addr.Zone())
			if ok {
				_, ok = nic.prefixOf(addr.WithZone(""))
			}
		}
		if !ok {
			return ManagementChoice{},
				absentError{fmt.Errorf("choose management interface of %s: no interface has address %s (there are %s); correct "+
					"--management IFACE|ADDR",
					inv.Host, override, describeNICs(inv))}
		}
		return ManagementChoice{NIC: nic.Name, Addr: addr}, nil
	}
	nic, ok := inv.NIC(override)
	if !ok {
		return ManagementChoice{},
			absentError{fmt.Errorf("choose management interface of %s: no interface %s (there are %s); correct --management "+
				"IFACE|ADDR",
				inv.Host, override, describeNICs(inv))}
	}
	addr, ok := hostAddr(nic, true)
	if !ok {
		return ManagementChoice{},
			absentError{fmt.Errorf("choose management interface of %s: %s has no address; give it one or name another with "+
				"--management IFACE|ADDR", inv.Host, override)}
	}
	choice := ManagementChoice{NIC: nic.Name, Addr: addr}
	if nic.Carrier != nil && !*nic.Carrier || !nic.Up {
		choice.Warning = fmt.Sprintf("management interface %s has no link: check its cable", nic.Name)
	}
	return choice, nil
}

// hostAddr returns the address at which others should reach the interface: the first IPv4, else the first IPv6.
// Link-local ones are a last resort for an interface that the user named, and only IPv4: an IPv6 one is useless
// without a zone.
func hostAddr(n NIC, linkLocal bool) (netip.Addr, bool) {
	var v6, local4 netip.Addr
	for _, p := range n.Addresses {
		switch a := p.Addr(); {
		case a.IsLinkLocalUnicast():
			if a.Is4() && !local4.IsValid() {
				local4 = a
			}
		case a.Is4():
			return a, true
		case !v6.IsValid():
			v6 = a
		}
	}
	if v6.IsValid() {
		return v6, true
	}
	return local4, linkLocal && local4.IsValid()
}

// describeNICs lists interfaces with their addresses, for errors.
func describeNICs(inv Inventory) string {
	var parts []string
	for _, n := range inv.NICs {
		if addr, ok := hostAddr(n, true); ok {
			parts = append(parts, n.Name+" "+addr.String())
		} else {
			parts = append(parts, n.Name)
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// comparePCI puts interfaces without a PCI address (USB) last.
func comparePCI(a, b *PCIAddress) int {
	if a == nil || b == nil {
		return compareTrueFirst(a != nil, b != nil)
	}
	return a.Compare(*b)
}
