package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

const (
	// typeConnectX7 is hca_type of the NIC in every GB10 machine.
	typeConnectX7 = "MT4129"
	// portMbps is the rate of a GB10 machine's QSFP port.
	portMbps = 200000
	// pcieGTps and pcieLanes are the link of one twin in a GB10 machine: Gen5 x4.
	pcieGTps  = 32
	pcieLanes = 4
	// twinGbps is what ib_write_bw reaches over one twin with MTU 1500; no tuning explains degradedGbps, half of
	// it. ConnectX-7 was seen at 13 Gb/s while the link said 200.
	twinGbps     = 111.7
	degradedGbps = twinGbps / 2
)

// checkPort evaluates one port and its twins, except its addresses.
func (c *checker) checkPort(p *port) {
	h := p.host
	if p.role == envgen.RoleLAN {
		c.checkLAN(p)
		return
	}
	if !p.live {
		c.checkNoLink(p)
		return
	}
	if p.role == envgen.RoleFabric && p.other != "" {
		c.add(CodeStranger, envgen.SeverityWarning, h, p, p.devices[0].Name,
			fmt.Sprintf("%s is used by jobs, and %s, which is no member, is on its network", p.full(), p.other), p.other,
			"unplug that host from the fabric's switch")
	}
	if p.role != envgen.RoleFabric || !p.RoCE() {
		return
	}
	if want := c.twins(p); len(p.devices) < want {
		evidence, remedy := fmt.Sprintf("%s: %s only, where %s are expected", p.Slot, deviceNames(p),
			count(want, "device")), "sudo lspci -vv -d 15b3:"
		if nic, ok := c.netdevOfMissing(p); ok {
			evidence, remedy = fmt.Sprintf("%s; interface %s (%s) has no RDMA device", evidence, nic.Name,
				pciWord(nic.PCI)), "sudo modprobe mlx5_ib"
		}
		c.add(CodeTwinMissing, envgen.SeverityWarning, h, p, p.devices[0].Name,
			fmt.Sprintf("%s lacks a twin of %s: half of the port's bandwidth is out of reach", p.full(),
				deviceNames(p)), evidence, remedy)
	}
	for _, d := range p.devices {
		c.checkDevice(p, d)
	}
}

// twins is how many devices the port should have: as many as another port of its node, or as the same port of
// another node with the same NIC. A server's ports have one each.
func (c *checker) twins(p *port) int {
	most := len(p.devices)
	for _, q := range p.host.ports {
		most = max(most, len(q.devices))
	}
	for _, q := range c.w.ports {
		if q.Slot == p.Slot && q.devices[0].Type != "" && q.devices[0].Type == p.devices[0].Type {
			most = max(most, len(q.devices))
		}
	}
	return most
}

// netdevOfMissing finds an interface at the port's slot that belongs to none of its devices.
func (c *checker) netdevOfMissing(p *port) (envgen.NIC, bool) {
	for _, n := range p.host.Inventory.NICs {
		if n.PCI == nil || n.PCI.Slot() != p.Slot || n.PCIVendor != envgen.VendorMellanox {
			continue
		}
		if !slices.ContainsFunc(p.devices, func(d device) bool { return d.PCI != nil && *d.PCI == *n.PCI }) {
			return n, true
		}
	}
	return envgen.NIC{}, false
}

// checkLAN reports a port that jobs do not use, and why: its owner may have meant it for the fabric.
func (c *checker) checkLAN(p *port) {
	if !p.live {
		return
	}
	if c.straightToMember(p) && p.host.mgmt.IsValid() && strings.Contains(p.why, "management's subnet") {
		c.add(CodeOverlapsManagement, envgen.SeverityError, p.host, p, p.devices[0].nic.Name,
			fmt.Sprintf("%s is cabled straight to another node, but its address is in management's subnet, so that packets "+
				"go the wrong way", p.full()),
			p.why, giveAddress)
		return
	}
	c.add(CodePortLAN, envgen.SeverityInfo, p.host, p, p.devices[0].Name,
		fmt.Sprintf("%s serves the LAN and no job: %s", p.full(), p.why), p.why,
		c.declare(p))
}

// declare is the command that has jobs use the port besides those that the node uses now: a declared port excludes
// all that are not declared.
func (c *checker) declare(p *port) string {
	remedy := overrideFabric
	for _, q := range c.w.ports {
		if q.host == p.host && (q == p || q.role == envgen.RoleFabric) {
			remedy += " --fabric-port " + q.arg()
		}
	}
	return remedy
}

// straightToMember reports whether the probe saw a cable without a switch from the port to another node.
func (c *checker) straightToMember(p *port) bool {
	i := c.w.linkOf[p.id]
	if i < 0 {
		return false
	}
	l := c.w.links[i]
	return l.Seen && !l.Switched && len(l.Ends) == 2 && l.Ends[0].Node != l.Ends[1].Node
}

// checkNoLink reports a port without a link that should have one: it has addresses, or a cable was seen there.
func (c *checker) checkNoLink(p *port) {
	var addrs []string
	for _, d := range p.devices {
		for _, a := range d.addrs {
			addrs = append(addrs, a.String())
		}
	}
	if len(addrs) == 0 && !c.w.dead[p.id] {
		return
	}
	why := "a cable was seen there"
	if len(addrs) > 0 {
		why = "it has " + joinWords(addrs)
	}
	severity := envgen.SeverityWarning
	if !c.w.whole && len(c.w.hosts) > 1 {
		severity = envgen.SeverityError
	}
	first := p.devices[0]
	evidence := fmt.Sprintf("%s is %s", first.Name, stateWords(first))
	remedy := showCabling
	text := fmt.Sprintf("%s has no link, though %s: its cable is out or dead, or the far end is off", p.full(), why)
	for _, d := range p.devices {
		if d.hasNIC && !d.nic.Up {
			text = fmt.Sprintf("%s has no link, though %s: %s is set down", p.full(), why, d.nic.Name)
			evidence, remedy = d.nic.Name+" is not up", fmt.Sprintf("sudo ip link set dev %s up", d.nic.Name)
			break
		}
	}
	c.add(CodeNoLink, severity, p.host, p, first.Name, text, evidence, remedy)
}

func stateWords(d device) string {
	state := d.State
	if d.PhysState != "" {
		state += " (" + d.PhysState + ")"
	}
	if !d.hasNIC {
		return state
	}
	return fmt.Sprintf("%s, %s %s", state, d.nic.Name, carrierWord(d.nic))
}

func carrierWord(n envgen.NIC) string {
	switch {
	case n.HasCarrier():
		return "has a carrier"
	case !n.Up:
		return "is set down"
	}
	return "has no carrier"
}

// checkDevice evaluates one device of a live fabric port.
func (c *checker) checkDevice(p *port, d device) {
	h := p.host
	if !d.hasNIC {
		c.add(CodeNoInterface, envgen.SeverityWarning, h, p, d.Name,
			fmt.Sprintf("%s of %s has no interface in this network namespace and cannot be used", d.Name, p.full()),
			fmt.Sprintf("netdev %q", d.Netdev), "rdma link show "+d.Name)
		return
	}
	switch {
	case !d.nic.HasCarrier():
		c.add(CodeTwinDown, envgen.SeverityWarning, h, p, d.Name,
			fmt.Sprintf("%s of %s has no carrier while its twin has: half of the port's bandwidth is out of reach",
				d.nic.Name, p.full()),
			stateWords(d), fmt.Sprintf("sudo ip link set dev %s up", d.nic.Name))
		return
	case !d.Active():
		c.add(CodeCarrierNotActive, c.cost(h), h, p, d.Name,
			fmt.Sprintf("%s of %s has a carrier, but %s is %s and no RDMA gets through", d.nic.Name, p.full(), d.Name, d.State),
			stateWords(d), fmt.Sprintf("sudo ip link set dev %[1]s down && sudo ip link set dev %[1]s up", d.nic.Name))
		return
	}
	if nic, ok := bondOf(h.Inventory, d); ok {
		c.add(CodeBondOnFabric, envgen.SeverityWarning, h, p, d.Name,
			fmt.Sprintf("%s of %s is behind %s %s: NCCL sees one device where the twins are two", d.Name, p.full(),
				nic.Kind, nic.Name),
			fmt.Sprintf("%s serves %s", d.Name, nic.Name), showNetplans)
	}
	if d.nic.MTU < envgen.JumboMTU {
		c.add(CodeMTULow, envgen.SeverityWarning, h, p, d.nic.Name,
			fmt.Sprintf("%s of %s has MTU %d: RoCE packets are smaller than they could be, which costs 10-15 %%",
				d.nic.Name, p.full(), d.nic.MTU),
			fmt.Sprintf("%s mtu %d", d.nic.Name, d.nic.MTU),
			fmt.Sprintf("sudo ip link set dev %s mtu %d", d.nic.Name, envgen.JumboMTU))
	}
	gb10 := c.twins(p) > 1
	// Both twins report the same cable's speed.
	if s := d.nic.SpeedMbps; s != nil && *s < portMbps && (gb10 || d.Type == typeConnectX7) &&
		d.Name == p.devices[0].Name {
		c.add(CodeLinkSpeed, envgen.SeverityWarning, h, p, d.nic.Name,
			fmt.Sprintf("%s runs at %d Gb/s and not at %d: a cable for less, or a switch that negotiated it", p.full(),
				*s/1000, portMbps/1000),
			fmt.Sprintf("%s speed %d", d.nic.Name, *s), "ethtool "+d.nic.Name)
	}
	if gb10 {
		c.checkPCIe(p, d)
	}
	c.checkFigures(p, d)
}

// bondOf is the bond over a device; VLANs are fine.
func bondOf(inv envgen.Inventory, d device) (envgen.NIC, bool) {
	for _, name := range d.Netdevs() {
		if n, ok := inv.NIC(name); ok && (n.Kind == "bond" || n.Kind == "team") {
			return n, true
		}
	}
	return envgen.NIC{}, false
}

func (c *checker) checkPCIe(p *port, d device) {
	slow := d.PCIeGTps != nil && *d.PCIeGTps < pcieGTps
	narrow := d.PCIeLanes != nil && *d.PCIeLanes < pcieLanes
	if !slow && !narrow {
		return
	}
	words := "?"
	if d.PCIeGTps != nil {
		words = fmt.Sprintf("%g GT/s", *d.PCIeGTps)
	}
	if d.PCIeLanes != nil {
		words += fmt.Sprintf(" x%d", *d.PCIeLanes)
	}
	c.add(CodePCIeDegraded, envgen.SeverityWarning, p.host, p, d.Name,
		fmt.Sprintf("%s of %s trained its PCIe link to %s and not to %d GT/s x%d: power the machine off at the wall, "+
			"then look for firmware",
			d.Name, p.full(), words, pcieGTps, pcieLanes),
		fmt.Sprintf("%s %s", pciWord(d.PCI), words), fmt.Sprintf("sudo lspci -vv -s %s", pciWord(d.PCI)))
}

// The counters of a bad cable or socket, and those of lost packets.
var (
	wireCounters = []string{"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
		"local_link_integrity_errors", "rx_icrc_encapsulated"}
	lossCounters = []string{"packet_seq_err", "out_of_sequence", "local_ack_timeout_err", "implied_nak_seq_err",
		"rnr_nak_retry_err", "roce_adp_retrans_to", "rx_dct_connect_drops"}
)

// lossesPerSecond is how many lost packets a second are reported: a healthy cable has none for hours, and a burst
// at the start of a job is harmless.
const lossesPerSecond = 1

func (c *checker) checkFigures(p *port, d device) {
	for _, k := range p.host.Counters {
		if k.HCA != d.Name {
			continue
		}
		if words, _ := counted(k, wireCounters); words != "" {
			c.add(CodeLinkErrors, envgen.SeverityWarning, p.host, p, d.Name,
				fmt.Sprintf("%s of %s counts errors on the wire: reseat the cable at both ends, or try another", d.Name, p.full()),
				fmt.Sprintf("%s in %s", words, k.Span), "ethtool -m "+d.nic.Name)
		}
		if words, sum := counted(k, lossCounters); words != "" && float64(sum) > lossesPerSecond*k.Span.Seconds() {
			c.add(CodeRetransmits, envgen.SeverityWarning, p.host, p, d.Name,
				fmt.Sprintf("%s of %s loses packets and sends them again: unequal MTUs, a switch without flow control, or a "+
					"bad cable", d.Name, p.full()),
				fmt.Sprintf("%s in %s", words, k.Span), fmt.Sprintf("rdma statistic show link %s/1", d.Name))
		}
	}
	for _, m := range p.host.Measured {
		if m.HCA == d.Name && m.Gbps < degradedGbps {
			c.add(CodeLinkDegraded, envgen.SeverityError, p.host, p, d.Name,
				fmt.Sprintf("%s of %s moved %.0f Gb/s where about %.0f are usual, whatever the link says: power both machines "+
					"off at the wall", d.Name, p.full(), m.Gbps, twinGbps),
				fmt.Sprintf("%s: %.1f Gb/s", m.By, m.Gbps), fmt.Sprintf("sudo lspci -vv -s %s", pciWord(d.PCI)))
		}
	}
}

// counted lists those counters of the set that rose, by name, and their sum.
func counted(k envgen.Counters, set []string) (words string, sum uint64) {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(k.Counts)) {
		if n := k.Counts[name]; n > 0 && slices.Contains(set, name) {
			parts = append(parts, fmt.Sprintf("%s +%d", name, n))
			sum += n
		}
	}
	return strings.Join(parts, ", "), sum
}
