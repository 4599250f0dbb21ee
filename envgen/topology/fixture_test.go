package topology

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

// A fixture is a cluster in a few lines. Ports are named HOST/0, their twins HOST/0a (primary) and HOST/0b:
//
//	about TEXT                       what the picture is, shown in goldens
//	use FILE                         begin with another fixture of the folder above or the same
//	node HOST MGMT/BITS [server|bare|infiniband|nodriver]   a GB10 machine unless said otherwise
//	port HOST/N ADDR... [-]          plug in; addresses of the primary and its twin, - for none
//	cable HOST/N HOST/N [via NAME]   what the probe saw
//	probe HOST...|all                the probe runs there
//	stranger HOST/N WHO              a host that is no member behind the port
//	fabric-port HOST NAME...         the user's override
//	bridge HOST NAME ADDR            a bridge such as docker0
//	nic HOST NAME ADDR               one more physical interface
//	uncable HOST/N                   forget the cables there
//	set HOST/N|HOST/Nx|HOST KEY=VALUE...   see set
type fixture struct {
	about string
	in    Input
	// probing hosts; their Cabling is made at the end, when carriers are settled.
	probing []string
}

// load reads a fixture; more lines change it.
func load(t testing.TB, file string, more ...string) *fixture {
	t.Helper()
	f := &fixture{}
	f.read(t, filepath.Join("testdata", file))
	for _, line := range more {
		if err := f.line(strings.Fields(line)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	for i := range f.in.Nodes {
		n := &f.in.Nodes[i]
		cabling := n.Inventory.Cabling
		if slices.Contains(f.probing, n.Host) {
			if cabling == nil {
				cabling = &envgen.Cabling{}
			}
			for _, nic := range n.Inventory.NICs {
				if nic.HasCarrier() && nic.PCIVendor == envgen.VendorMellanox {
					cabling.Probed = append(cabling.Probed, nic.Name)
				}
			}
		}
		n.Inventory.Cabling = cabling
		n.Inventory.Devices = envgen.SortedDevices(n.Inventory.Devices)
	}
	return f
}

func (f *fixture) read(t testing.TB, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(data), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if words[0] == "use" {
			f.read(t, filepath.Join(filepath.Dir(file), words[1]))
			continue
		}
		if err := f.line(words); err != nil {
			t.Fatalf("%s:%d: %s: %v", file, i+1, line, err)
		}
	}
}

func (f *fixture) line(words []string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	args := words[1:]
	switch words[0] {
	case "about":
		if f.about == "" { // that of the file itself, not of one it uses
			f.about = strings.Join(args, " ")
		}
	case "node":
		f.in.Nodes = append(f.in.Nodes, newNode(args))
	case "port":
		host, port, _ := f.split(args[0])
		n := f.node(host)
		for i, a := range args[1:] {
			plug(n, port, i, a)
		}
	case "cable":
		f.in.Cables = append(f.in.Cables, f.cable(args))
	case "uncable":
		host, port, _ := f.split(args[0])
		end := envgen.CableEnd{Node: f.node(host).ID, Port: slot(port)}
		f.in.Cables = slices.DeleteFunc(f.in.Cables, func(c envgen.Cable) bool { return c.A == end || c.B == end })
	case "probe":
		for _, n := range f.in.Nodes {
			if args[0] == "all" || slices.Contains(args, n.Host) {
				f.probing = append(f.probing, n.Host)
			}
		}
	case "looking": // a probe works, and has not listened long enough
		for i := range f.in.Nodes {
			f.in.Nodes[i].Inventory.Cabling = &envgen.Cabling{}
		}
		f.in.Cables, f.probing = nil, nil
	case "stranger":
		host, port, _ := f.split(args[0])
		f.in.NonMembers = map[string]map[string]string{f.node(host).ID: {slot(port): strings.Join(args[1:], " ")}}
	case "fabric-port":
		f.node(args[0]).FabricPorts = args[1:]
	case "bridge", "nic":
		n := f.node(args[0])
		nic := envgen.NIC{Name: args[1], MTU: 1500, Up: true, Carrier: new(true), Kind: "bridge", Addresses: []netip.Prefix{netip.MustParsePrefix(args[2])}}
		if words[0] == "nic" {
			nic.Kind, nic.Physical = "device", true
		}
		n.Inventory.NICs = append(n.Inventory.NICs, nic)
	case "set":
		host, port, twin := f.split(args[0])
		for _, kv := range args[1:] {
			key, value, _ := strings.Cut(kv, "=")
			if port < 0 {
				setNode(f.node(host), key, value)
				continue
			}
			for i := range 2 {
				if twin < 0 || twin == i {
					set(f.node(host), port, i, key, value)
				}
			}
		}
	default:
		return fmt.Errorf("no such word")
	}
	return nil
}

func (f *fixture) cable(args []string) envgen.Cable {
	end := func(text string) envgen.CableEnd {
		host, port, _ := f.split(text)
		id := "id-" + host // it may be of no node
		for _, n := range f.in.Nodes {
			if n.Host == host {
				id = n.ID
			}
		}
		return envgen.CableEnd{Node: id, Port: slot(port)}
	}
	c := envgen.Cable{A: end(args[0]), B: end(args[1])}
	if len(args) > 3 {
		c.Via = args[3]
	}
	return c
}

func (f *fixture) node(host string) *Node {
	for i := range f.in.Nodes {
		if f.in.Nodes[i].Host == host {
			return &f.in.Nodes[i]
		}
	}
	panic("no node " + host)
}

// split reads HOST, HOST/N or HOST/Nx; absent parts are -1.
func (f *fixture) split(text string) (host string, port, twin int) {
	host, rest, ok := strings.Cut(text, "/")
	if !ok {
		return host, -1, -1
	}
	digits := strings.TrimRight(rest, "ab")
	port, err := strconv.Atoi(digits)
	if err != nil {
		panic(err)
	}
	twin = -1
	switch rest[len(digits):] {
	case "a":
		twin = 0
	case "b":
		twin = 1
	}
	return host, port, twin
}

func slot(port int) string { return fmt.Sprintf("01:00.%d", port) }

var names = map[string][2]string{
	"00": {"rocep1s0f0", "enp1s0f0np0"}, "01": {"roceP2p1s0f0", "enP2p1s0f0np0"},
	"10": {"rocep1s0f1", "enp1s0f1np1"}, "11": {"roceP2p1s0f1", "enP2p1s0f1np1"},
}

// newNode makes a machine with nothing plugged in but management.
func newNode(args []string) Node {
	host := args[0]
	n := Node{ID: "id-" + host, Host: host, Inventory: envgen.Inventory{Host: host, NICs: []envgen.NIC{
		{Name: "lo", MTU: 65536, Up: true, Carrier: new(true), Loopback: true, Kind: "device", Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
	}}}
	if args[1] != "-" {
		mgmt := netip.MustParsePrefix(args[1])
		n.Mgmt = mgmt.Addr()
		n.Inventory.NICs = append(n.Inventory.NICs, envgen.NIC{Name: "enP7s7", PCI: pci("0007:01:00.0"), PCIVendor: "0x10ec", MTU: 1500, Up: true,
			Carrier: new(true), SpeedMbps: new(10000), Kind: "device", Physical: true, DefaultRoute: true, Addresses: []netip.Prefix{mgmt}})
	}
	kind := ""
	if len(args) > 2 {
		kind = args[2]
	}
	switch kind {
	case "bare":
	case "server", "infiniband":
		for i := range 4 {
			n.Inventory.Devices = append(n.Inventory.Devices, envgen.HCA{Name: fmt.Sprintf("mlx5_%d", i), PCI: pci(fmt.Sprintf("0000:%x:00.0", 0x18+0x22*i)),
				State: envgen.StateDown, LinkLayer: envgen.LayerEthernet, Netdev: fmt.Sprintf("eth%d", i), Type: typeConnectX7, Firmware: "28.45.4028"})
			n.Inventory.NICs = append(n.Inventory.NICs, envgen.NIC{Name: fmt.Sprintf("eth%d", i), PCI: n.Inventory.Devices[i].PCI, PCIVendor: envgen.VendorMellanox,
				MTU: 9000, Up: true, Carrier: new(false), Kind: "device", Physical: true})
			if kind == "infiniband" {
				n.Inventory.Devices[i].LinkLayer, n.Inventory.Devices[i].State = envgen.LayerInfiniBand, envgen.StateActive
				n.Inventory.NICs[len(n.Inventory.NICs)-1].Carrier = new(true)
			}
		}
	default:
		for _, key := range []string{"00", "10", "01", "11"} {
			hca, nic := names[key][0], names[key][1]
			port, twin := int(key[0]-'0'), int(key[1]-'0')
			n.Inventory.Devices = append(n.Inventory.Devices, envgen.HCA{Name: hca, PCI: pci(fmt.Sprintf("%04x:01:00.%d", 2*twin, port)),
				State: envgen.StateDown, PhysState: "Disabled", LinkLayer: envgen.LayerEthernet, Netdev: nic, Type: typeConnectX7, Firmware: "28.45.4028",
				PCIeGTps: new(32.0), PCIeLanes: new(4)})
			n.Inventory.NICs = append(n.Inventory.NICs, envgen.NIC{Name: nic, PCI: n.Inventory.Devices[len(n.Inventory.Devices)-1].PCI, PCIVendor: envgen.VendorMellanox,
				MAC: fmt.Sprintf("4c:bb:47:00:%02x:%s", len(host), key), MTU: 9000, Up: true, Carrier: new(false), OperState: "down", Kind: "device", Physical: true})
		}
		if kind == "nodriver" {
			n.Inventory.Devices = nil
		}
	}
	return n
}

func pci(text string) *envgen.PCIAddress {
	a, err := envgen.ParsePCIAddress(text)
	if err != nil {
		panic(err)
	}
	return &a
}

// twin returns a port's device and interface; nil where it is missing. A server's port N is its card N.
func twin(n *Node, port, twin int) (*envgen.HCA, *envgen.NIC) {
	server := slices.ContainsFunc(n.Inventory.NICs, func(n envgen.NIC) bool { return n.Name == "eth0" })
	at := pci(fmt.Sprintf("%04x:01:00.%d", 2*twin, port))
	if server {
		at = pci(fmt.Sprintf("0000:%x:00.0", 0x18+0x22*port))
	}
	var h *envgen.HCA
	var nic *envgen.NIC
	for i := range n.Inventory.Devices {
		if *n.Inventory.Devices[i].PCI == *at && !(server && twin > 0) {
			h = &n.Inventory.Devices[i]
		}
	}
	for i := range n.Inventory.NICs {
		if p := n.Inventory.NICs[i].PCI; p != nil && *p == *at && !(server && twin > 0) {
			nic = &n.Inventory.NICs[i]
		}
	}
	return h, nic
}

// plug gives a device a link, and an address with its GID rows.
func plug(n *Node, port, which int, addr string) {
	h, nic := twin(n, port, which)
	if nic == nil {
		return
	}
	nic.Up, nic.Carrier, nic.OperState, nic.SpeedMbps = true, new(true), "up", new(portMbps)
	if h == nil {
		return
	}
	h.State, h.PhysState, h.RateMbps = envgen.StateActive, "LinkUp", new(portMbps)
	if len(h.GIDs) == 0 {
		h.GIDs = []envgen.GID{{Index: 0, Type: envgen.GIDTypeIBorRoCEv1, Addr: netip.MustParseAddr("fe80::1"), Netdev: nic.Name},
			{Index: 1, Type: envgen.GIDTypeRoCEv2, Addr: netip.MustParseAddr("fe80::1"), Netdev: nic.Name}}
	}
	if addr != "-" {
		address(h, nic, netip.MustParsePrefix(addr))
	}
}

func address(h *envgen.HCA, nic *envgen.NIC, p netip.Prefix) {
	nic.Addresses = append(nic.Addresses, p)
	mapped := netip.AddrFrom16(p.Addr().As16())
	at := len(h.GIDs)
	h.GIDs = append(h.GIDs, envgen.GID{Index: at, Type: envgen.GIDTypeIBorRoCEv1, Addr: mapped, Netdev: nic.Name},
		envgen.GID{Index: at + 1, Type: envgen.GIDTypeRoCEv2, Addr: mapped, Netdev: nic.Name})
}

func atoi(text string) int {
	i, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return i
}

// set changes one device of a port.
func set(n *Node, port, which int, key, value string) {
	h, nic := twin(n, port, which)
	if h == nil && nic == nil {
		return
	}
	switch key {
	case "mtu":
		nic.MTU = atoi(value)
	case "state":
		h.State = value
	case "carrier":
		nic.Carrier = new(value == "yes")
	case "link": // pulled: no carrier, not ACTIVE, addresses and no speed remain
		nic.Carrier, nic.SpeedMbps, h.State, h.PhysState = new(false), nil, envgen.StateDown, "Disabled"
	case "up":
		nic.Up, nic.Carrier, nic.SpeedMbps, h.State = false, nil, nil, envgen.StateDown
	case "speed":
		nic.SpeedMbps = new(atoi(value))
	case "pcie":
		gtps, lanes, _ := strings.Cut(value, "x")
		h.PCIeGTps, h.PCIeLanes = new(float64(atoi(gtps))), new(atoi(lanes))
	case "fw":
		h.Firmware = value
	case "hca":
		h.Name = value
	case "nic":
		h.Netdev, nic.Name = value, value
		for i := range h.GIDs {
			h.GIDs[i].Netdev = value
		}
	case "addr": // in place of what it has; none without a value
		nic.Addresses, h.GIDs = nil, h.GIDs[:min(2, len(h.GIDs))]
		if value != "" {
			address(h, nic, netip.MustParsePrefix(value))
		}
	case "also":
		address(h, nic, netip.MustParsePrefix(value))
	case "gids": // the first IPv4 row's index, or none
		h.GIDs = h.GIDs[:min(2, len(h.GIDs))]
		if value != "none" {
			mapped := netip.AddrFrom16(nic.Addresses[0].Addr().As16())
			h.GIDs = append(h.GIDs, envgen.GID{Index: atoi(value), Type: envgen.GIDTypeRoCEv2, Addr: mapped, Netdev: nic.Name})
		}
	case "default":
		nic.DefaultRoute = true
	case "missing":
		n.Inventory.Devices = slices.DeleteFunc(n.Inventory.Devices, func(d envgen.HCA) bool { return d.Name == h.Name })
		if value == "all" {
			n.Inventory.NICs = slices.DeleteFunc(n.Inventory.NICs, func(d envgen.NIC) bool { return d.Name == nic.Name })
		}
	case "nonic":
		n.Inventory.NICs = slices.DeleteFunc(n.Inventory.NICs, func(d envgen.NIC) bool { return d.Name == nic.Name })
	case "bond":
		n.Inventory.NICs = append(n.Inventory.NICs, envgen.NIC{Name: value, MTU: 9000, Up: true, Carrier: new(true), Kind: "bond", Addresses: nic.Addresses})
		nic.Addresses = nil
		for i := range h.GIDs {
			h.GIDs[i].Netdev = value
		}
	case "count":
		name, n2, _ := strings.Cut(value, ":")
		n.Counters = append(n.Counters, envgen.Counters{HCA: h.Name, Span: 10 * time.Second, Counts: map[string]uint64{name: uint64(atoi(n2)), "np_cnp_sent": 9}})
	case "gbps":
		n.Measured = append(n.Measured, envgen.Measurement{HCA: h.Name, Gbps: float64(atoi(value)), By: "ib_write_bw"})
	case "clone":
		n.Inventory.Cabling = &envgen.Cabling{Sightings: []envgen.Sighting{{NIC: nic.Name, Slot: slot(port), Clone: true,
			Peer: envgen.Neighbour{Node: n.ID, Host: n.Host, NIC: nic.Name, Slot: slot(port), MAC: "4c:bb:47:ff:ff:ff", Boot: "0123456789abcdef"}}}}
	default:
		panic("no such key " + key)
	}
}

func setNode(n *Node, key, value string) {
	switch key {
	case "host": // the id stays
		n.Host = value
	case "mgmt":
		n.Mgmt = netip.MustParseAddr(value)
	case "mgmt-subnet":
		n.MgmtSubnet = netip.MustParsePrefix(value)
	case "wireless": // management's NIC is
		for i, nic := range n.Inventory.NICs {
			if held, ok := n.Inventory.Holder(n.Mgmt); ok && held.Name == nic.Name {
				n.Inventory.NICs[i].Wireless = value == "yes"
			}
		}
	case "trouble":
		n.Inventory.Cabling = &envgen.Cabling{Trouble: strings.ReplaceAll(value, "_", " ")}
	default:
		panic("no such key " + key)
	}
}
