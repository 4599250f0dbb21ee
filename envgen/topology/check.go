package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// The codes of all findings. They are an interface: scripts match them, so a code is never renamed or reused.
const (
	// Of one node.
	CodeNoRDMADevice       = "no-rdma-device"
	CodeFabricPortUnknown  = "fabric-port-unknown"
	CodeManagementOnFabric = "management-on-fabric"
	CodeManagementWireless = "management-wireless"
	CodeDuplicateHost      = "duplicate-host"
	CodeProbeTrouble       = "probe-trouble"
	CodeClonedNode         = "cloned-node"
	// Of one port or device.
	CodePortLAN          = "port-lan"
	CodeStranger         = "stranger-on-fabric"
	CodeNoLink           = "no-link"
	CodeTwinMissing      = "twin-missing"
	CodeTwinDown         = "twin-down"
	CodeCarrierNotActive = "carrier-not-active"
	CodeNoInterface      = "no-interface"
	CodeBondOnFabric     = "bond-on-fabric"
	CodeMTULow           = "mtu-low"
	CodeLinkSpeed        = "link-speed"
	CodePCIeDegraded     = "pcie-degraded"
	CodeLinkErrors       = "link-errors"
	CodeRetransmits      = "retransmits"
	CodeLinkDegraded     = "link-degraded"
	// Of addresses.
	CodeNoIPv4             = "no-ipv4"
	CodeSeveralIPv4        = "several-ipv4"
	CodeNoRoCEv2GID        = "no-rocev2-gid"
	CodeTwinsOneSubnet     = "twins-one-subnet"
	CodePortsOneSubnet     = "ports-one-subnet"
	CodeSubnetOnTwoLinks   = "subnet-on-two-links"
	CodeDuplicateAddress   = "duplicate-address"
	CodeOverlapsBridge     = "overlaps-bridge"
	CodeOverlapsManagement = "overlaps-management"
	CodeOverlapsOther      = "overlaps-other"
	CodePeerNotInSubnet    = "peer-not-in-subnet"
	CodePrefixUnequal      = "prefix-unequal"
	CodeSubnetOrder        = "subnet-order"
	CodeLinkLocalAmbiguous = "link-local-ambiguous"
	CodeRingPrefixLengths  = "ring-prefix-lengths"
	CodeMTUUnequal         = "mtu-unequal"
	CodeGIDIndexUnlike     = "gid-index-unlike"
	// Of the cabling.
	CodeCableSwapped    = "cable-swapped"
	CodeCableLoop       = "cable-loop"
	CodeCableUnknownEnd = "cable-unknown-end"
	CodeSecondCable     = "second-cable"
	CodeNoNeighbour     = "no-neighbour"
	CodeRingMiswired    = "ring-miswired"
	CodeChain           = "chain"
	CodeIslands         = "islands"
	CodeNotJoined       = "not-joined"
	CodeStillLooking    = "still-looking"
	// Of all nodes together.
	CodeFirmwareUnequal = "firmware-unequal"
)

// Codes are all codes, in the order in which doctor --codes lists them.
func Codes() []string {
	return []string{
		CodeNoRDMADevice, CodeFabricPortUnknown, CodeManagementOnFabric, CodeManagementWireless, CodeDuplicateHost,
		CodeProbeTrouble, CodeClonedNode,
		CodePortLAN, CodeStranger, CodeNoLink, CodeTwinMissing, CodeTwinDown, CodeCarrierNotActive, CodeNoInterface,
		CodeBondOnFabric,
		CodeMTULow, CodeLinkSpeed, CodePCIeDegraded, CodeLinkErrors, CodeRetransmits, CodeLinkDegraded,
		CodeNoIPv4, CodeSeveralIPv4, CodeNoRoCEv2GID, CodeTwinsOneSubnet, CodePortsOneSubnet, CodeSubnetOnTwoLinks,
		CodeDuplicateAddress, CodeOverlapsBridge, CodeOverlapsManagement, CodeOverlapsOther, CodePeerNotInSubnet,
		CodePrefixUnequal, CodeSubnetOrder, CodeLinkLocalAmbiguous, CodeRingPrefixLengths, CodeMTUUnequal, CodeGIDIndexUnlike,
		CodeCableSwapped, CodeCableLoop, CodeCableUnknownEnd, CodeSecondCable, CodeNoNeighbour, CodeRingMiswired,
		CodeChain, CodeIslands, CodeNotJoined, CodeStillLooking, CodeFirmwareUnequal,
	}
}

// Commands that show what needs a person's hands, or give every port the addresses that its cable
// needs.
const (
	showCabling  = "sparkrun fabric --map"
	showPorts    = "sparkrun fabric"
	giveAddress  = "sudo sparkrun netplan apply"
	showNetplans = "sparkrun netplan diff"

	overrideManagement = "sudo sparkrun agent --management "
	overrideFabric     = "sudo sparkrun agent"
)

// checker collects findings.
type checker struct {
	w *world
	t envgen.Topology
	// laned are the usable addresses of each port that are in a lane.
	laned map[laneKey]bool
	// subnets maps each subnet to the ports with a usable address in it.
	subnets map[netip.Prefix][]*port
	// misled are the cables that by the addresses should lead elsewhere, by link: one finding for each
	// cable, the clearest.
	misled map[int]misled
	found  []envgen.Finding
}

type laneKey struct {
	port int
	addr netip.Addr
}

// check runs every rule. A rule looks at everything and adds what it finds; they are sorted at the end.
func check(w *world, t envgen.Topology) []envgen.Finding {
	c := &checker{w: w, t: t, laned: map[laneKey]bool{}, subnets: map[netip.Prefix][]*port{}, misled: map[int]misled{}}
	for _, l := range t.Lanes {
		for _, e := range l.Ends {
			c.laned[laneKey{w.portAt(envgen.PortEnd{Node: e.Node, Slot: e.Path.Slot}).id, e.Path.Addr}] = true
		}
	}
	for _, p := range w.ports {
		for _, d := range p.devices {
			for _, path := range d.paths {
				if p.role == envgen.RoleFabric && !slices.Contains(c.subnets[path.Subnet], p) {
					c.subnets[path.Subnet] = append(c.subnets[path.Subnet], p)
				}
			}
		}
	}
	for _, h := range w.hosts {
		c.checkNode(h)
		for _, p := range h.ports {
			c.checkPort(p)
		}
	}
	c.checkNames()
	c.checkAddresses()
	c.tellMisled()
	c.checkOrder()
	c.checkCables()
	c.checkShape()
	c.checkFirmware()
	slices.SortStableFunc(c.found, compareFindings)
	return slices.CompactFunc(c.found, func(a, b envgen.Finding) bool { return a == b })
}

// add records a finding about a node, a port and a device; each may be absent.
func (c *checker) add(code string, s envgen.Severity, h *host, p *port, device, text, evidence, remedy string) {
	f := envgen.Finding{Code: code, Severity: s, Device: device, Text: text, Evidence: evidence, Remedy: remedy}
	if h != nil {
		f.Node, f.Host = h.ID, h.Host
	}
	if p != nil {
		f.Port = p.Slot
	}
	c.found = append(c.found, f)
}

// cost is the severity of a fault at this node: an error where it leaves the node no RoCE path to any other, else
// a warning. A single node needs none.
func (c *checker) cost(h *host) envgen.Severity {
	if len(c.w.hosts) < 2 || slices.ContainsFunc(h.ports, func(p *port) bool { return c.reaches(p) }) {
		return envgen.SeverityWarning
	}
	return envgen.SeverityError
}

// reaches reports whether a port has a lane.
func (c *checker) reaches(p *port) bool {
	return slices.ContainsFunc(p.devices, func(d device) bool {
		return slices.ContainsFunc(d.paths, func(path envgen.Path) bool { return c.laned[laneKey{p.id, path.Addr}] })
	})
}

func (c *checker) checkNode(h *host) {
	inv := h.Inventory
	fabricNIC := slices.IndexFunc(inv.NICs, func(n envgen.NIC) bool { return n.PCIVendor == envgen.VendorMellanox })
	if len(h.ports) == 0 && (fabricNIC >= 0 ||
		slices.ContainsFunc(c.w.hosts, func(o *host) bool { return len(o.ports) > 0 })) {
		text, evidence, remedy := h.Host+" has no RDMA device: jobs with it run over TCP",
			"no device in /sys/class/infiniband", "lspci -d 15b3:"
		if fabricNIC >= 0 {
			n := inv.NICs[fabricNIC]
			text = fmt.Sprintf("%s has a ConnectX (%s) but no RDMA device: its RDMA driver is not loaded", h.Host, n.Name)
			evidence, remedy = fmt.Sprintf("%s is %s, vendor %s; %s", n.Name, pciWord(n.PCI), n.PCIVendor, evidence),
				"sudo modprobe mlx5_ib"
		}
		c.add(CodeNoRDMADevice, c.cost(h), h, nil, "", text, evidence, remedy)
	}
	for _, name := range h.FabricPorts {
		if _, ok := h.byName[name]; !ok {
			var words []string
			for _, p := range h.ports {
				words = append(words, p.Slot+" ("+deviceNames(p)+")")
			}
			c.add(CodeFabricPortUnknown, envgen.SeverityError, h, nil, name,
				fmt.Sprintf("--fabric-port %s names no port of %s, or more than one", name, h.Host),
				"ports: "+strings.Join(words, ", "), showPorts)
		}
	}
	if n, ok := inv.Holder(h.Mgmt); ok && !n.Loopback && inv.FabricNIC(n) {
		c.add(CodeManagementOnFabric, envgen.SeverityWarning, h, nil, n.Name,
			fmt.Sprintf("%s is managed over fabric NIC %s: when its cable goes, the node leaves the cluster too, and its "+
				"addresses cannot be changed",
				h.Host, n.Name),
			fmt.Sprintf("management address %s is on %s", h.Mgmt, n.Name), overrideManagement+c.otherNIC(inv))
	}
	if n, ok := inv.Holder(h.Mgmt); ok && n.Wireless {
		c.add(CodeManagementWireless, envgen.SeverityWarning, h, nil, n.Name,
			fmt.Sprintf("%s is managed over Wi-Fi: the cluster takes it for lost when the radio is, and in a ring all jobs "+
				"meet there", h.Host),
			fmt.Sprintf("management address %s is on %s", h.Mgmt, n.Name), "nmcli device status")
	}
	if inv.Cabling == nil {
		return
	}
	if inv.Cabling.Trouble != "" {
		c.add(CodeProbeTrouble, envgen.SeverityWarning, h, nil, "",
			fmt.Sprintf("the cable probe of %s does not work: what is cabled there is known from addresses only", h.Host),
			inv.Cabling.Trouble, "sudo systemctl restart sparkrun")
	}
	for _, s := range inv.Cabling.Sightings {
		if s.Clone {
			c.add(CodeClonedNode, envgen.SeverityError, h, h.portOf(s.Slot), s.NIC,
				fmt.Sprintf("behind %s of %s is another machine that says it is %s: it was copied with its state, and must "+
					"leave and join anew", s.NIC, h.Host, s.Peer.Host),
				fmt.Sprintf("%s (%s) has node id %s and boot %s", s.Peer.NIC, s.Peer.MAC, s.Peer.Node, s.Peer.Boot), showCabling)
		}
	}
}

// portOf is the port of that slot; nil where there is none.
func (h *host) portOf(slot string) *port {
	for _, p := range h.ports {
		if p.Slot == slot {
			return p
		}
	}
	return nil
}

// otherNIC names the interface that Management would choose, for a remedy.
func (c *checker) otherNIC(inv envgen.Inventory) string {
	if choice, err := envgen.Management(inv, ""); err == nil {
		return choice.NIC
	}
	return "IFACE"
}

// checkNames finds hosts whose names cannot be told apart by people or NCCL.
func (c *checker) checkNames() {
	for i, h := range c.w.hosts {
		if i > 0 && c.w.hosts[i-1].Host == h.Host {
			c.add(CodeDuplicateHost, envgen.SeverityWarning, h, nil, "",
				fmt.Sprintf("two nodes are both called %s: --on cannot tell them apart, and neither can NCCL where they are "+
					"copies of one machine", h.Host),
				fmt.Sprintf("ids %s and %s", c.w.hosts[i-1].ID, h.ID), "sudo hostnamectl set-hostname NAME")
		}
	}
}

// checkFirmware compares the firmware of equal devices in all nodes.
func (c *checker) checkFirmware() {
	newest := map[string]string{}
	each(c.w, func(_ *port, d device) {
		if d.Firmware != "" && compareVersions(d.Firmware, newest[d.Type]) > 0 {
			newest[d.Type] = d.Firmware
		}
	})
	told := map[*host]bool{}
	each(c.w, func(p *port, d device) {
		if d.Firmware == "" || d.Firmware == newest[d.Type] || told[p.host] {
			return
		}
		told[p.host] = true
		c.add(CodeFirmwareUnequal, envgen.SeverityInfo, p.host, nil, d.Name,
			fmt.Sprintf("%s has older ConnectX firmware than the newest in the cluster", p.host.Host),
			fmt.Sprintf("%s fw %s, elsewhere %s", d.Name, d.Firmware, newest[d.Type]), "sudo fwupdmgr update")
	})
}

func each(w *world, do func(*port, device)) {
	for _, p := range w.ports {
		for _, d := range p.devices {
			do(p, d)
		}
	}
}

// compareVersions orders 28.45.4028 and 28.9.1 by their numbers.
func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	return slices.CompareFunc(x, y, func(a, b string) int {
		a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
}

func pciWord(a *envgen.PCIAddress) string {
	if a == nil {
		return "no PCI function"
	}
	return a.String()
}

func deviceNames(p *port) string {
	var names []string
	for _, d := range p.devices {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}
