package fabrictest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// sparkFunctions are the four functions of a GB10 machine's ConnectX-7, with their usual names and the last byte of
// their MAC: port 0, its twin, port 1, its twin.
var sparkFunctions = []struct {
	pci, rdma, net, port string
	mac                  byte
}{
	{"0000:01:00.0", "rocep1s0f0", "enp1s0f0np0", "p0", 0x42},
	{"0002:01:00.0", "roceP2p1s0f0", "enP2p1s0f0np0", "p0", 0x46},
	{"0000:01:00.1", "rocep1s0f1", "enp1s0f1np1", "p1", 0x43},
	{"0002:01:00.1", "roceP2p1s0f1", "enP2p1s0f1np1", "p1", 0x47},
}

const (
	down    = " state=1:_DOWN phys=3:_Disabled rate=40_Gb/sec_(4X_QDR)"
	healthy = " gtps=32.0 lanes=4"
)

// lines adds several lines.
func (h *Host) lines(lines ...string) error {
	var err error
	for _, l := range lines {
		err = errors.Join(err, h.Line(l))
	}
	return err
}

// makeSpark makes a GB10 machine whose MACs begin with 4c:bb:47 and the two bytes given; mgmt is enP7s7's prefix or -.
func (h *Host) makeSpark(mac, mgmt string, o opts) error {
	high, low, ok := strings.Cut(mac, ":")
	if !ok || len(mac) != 5 {
		return fmt.Errorf("%q is not two bytes such as 2e:bf", mac)
	}
	h.spark = true
	err := h.lines("link lo mtu=65536 carrier loopback 127.0.0.1/8 ::1/128",
		"card 0007:01:00.0 vendor=0x10ec", "net enP7s7 on=0007:01:00.0 speed=10000")
	if mgmt != "-" {
		err = errors.Join(err, h.Line(fmt.Sprintf("link enP7s7 mac=4c:bb:47:%s:41 carrier default %s "+
			"fe80::4ebb:47ff:fe%s:%s41/64", mac, mgmt, high, low)))
	}
	rdma, net := strings.Split(o["rdma"], ","), strings.Split(o["net"], ",")
	for i, f := range sparkFunctions {
		if o.has("rdma") {
			f.rdma = rdma[i]
		}
		if o.has("net") {
			f.net = net[i]
		}
		last := fmt.Sprintf("%s%02x", low, f.mac)
		h.devices[f.pci] = &device{rdma: f.rdma, net: f.net, rows: 2}
		err = errors.Join(err, h.lines("card "+f.pci+healthy,
			fmt.Sprintf("hca %s on=%s net=%s guid=4ebb:4703:00%s:%s fw=28.45.4028 type=MT4129%s", f.rdma, f.pci, f.net,
				high, last, down),
			fmt.Sprintf("gid %s 0 v1 fe80::4ebb:47ff:fe%s:%s %s", f.rdma, high, last, f.net),
			fmt.Sprintf("gid %s 1 v2 fe80::4ebb:47ff:fe%s:%s %s", f.rdma, high, last, f.net),
			fmt.Sprintf("net %s on=%s port=%s", f.net, f.pci, f.port),
			fmt.Sprintf("link %s mac=4c:bb:47:%s:%02x mtu=9000 up", f.net, mac, f.mac)))
	}
	return err
}

// port plugs in both twins of a spark's port.
func (h *Host) port(number string, addrs []string) error {
	if !h.spark {
		return errors.New("a port of what? begin with spark")
	}
	var err error
	for i, domain := range []string{"0000", "0002"} {
		addr := "-"
		if i < len(addrs) {
			addr = addrs[i]
		}
		err = errors.Join(err, h.plug(domain+":01:00."+number, addr, "200"))
	}
	return err
}

// plug gives a function its link, and an address with its two GID rows. A lost function stays
// lost.
func (h *Host) plug(pci, addr, gbps string) error {
	d := h.devices[pci]
	if d == nil {
		return nil
	}
	err := errors.Join(h.files("class/infiniband/"+d.rdma+"/ports/1", "state", "4:_ACTIVE", "phys_state", "5:_LinkUp",
		"rate", gbps+"_Gb/sec_(2X_NDR)"),
		h.file("class/net/"+d.net+"/speed", gbps+"000"), h.Line("link "+d.net+" carrier"))
	if addr == "-" {
		return err
	}
	return errors.Join(err, h.hold(d, addr))
}

// hold gives an interface an address: it is in netlink's listing, and the GID table has two
// more rows.
func (h *Host) hold(d *device, addr string) error {
	prefix, err := netip.ParsePrefix(addr)
	if err != nil {
		return err
	}
	for _, version := range []string{"v1", "v2"} {
		err = errors.Join(err, h.gid([]string{d.rdma, strconv.Itoa(d.rows), version,
			netip.AddrFrom16(prefix.Addr().As16()).String(), d.net}))
		d.rows++
	}
	return errors.Join(err, h.Line("link "+d.net+" "+addr))
}

// nic makes one port of a server's card: RDMA PCI IF ADDR, then options of card and hca.
func (h *Host) nic(words []string, o opts) error {
	if len(words) < 4 {
		return errors.New("want RDMA PCI IF ADDR")
	}
	rdma, pci, net, addr := words[0], words[1], words[2], words[3]
	rest := strings.Join(words[4:], " ")
	h.devices[pci] = &device{rdma: rdma, net: net}
	mac := fmt.Sprintf("a0:88:c2:%s:%s:0%s", pci[2:4], pci[5:7], pci[len(pci)-1:])
	err := h.lines("card "+pci+" "+rest,
		fmt.Sprintf("hca %s on=%s net=%s type=MT4129 fw=28.39.1002 %s", rdma, pci, net, rest),
		fmt.Sprintf("net %s on=%s port=p0", net, pci), fmt.Sprintf("link %s mac=%s mtu=9000 up", net, mac))
	if o["layer"] == "InfiniBand" {
		return errors.Join(err, h.lines("link "+net+" kind=ipoib carrier "+addr, "gid "+rdma+" 0 v1 fe80::a288:c2ff:fe46:1"))
	}
	h.devices[pci].rows = 2
	return errors.Join(err, h.lines("gid "+rdma+" 0 v1 fe80::a288:c2ff:fe46:1 "+net,
		"gid "+rdma+" 1 v2 fe80::a288:c2ff:fe46:1 "+net), h.plug(pci, addr, "400"))
}

// on returns the function of an interface.
func (h *Host) on(net string) (*device, error) {
	for _, d := range h.devices {
		if d.net == net {
			return d, nil
		}
	}
	return nil, fmt.Errorf("no function has the interface %s", net)
}

// address replaces the addresses of an interface and the GID rows for them.
func (h *Host) address(net string, addrs []string) error {
	d, err := h.on(net)
	if err != nil {
		return err
	}
	for ; d.rows > 2; d.rows-- {
		row, port := strconv.Itoa(d.rows-1), "class/infiniband/"+d.rdma+"/ports/1"
		err = errors.Join(err, h.files(port, "gids/"+row, gidText(netip.IPv6Unspecified()), "gid_attrs/types/"+row,
			einval, "gid_attrs/ndevs/"+row, einval))
	}
	err = errors.Join(err, h.Line("link "+net+" bare"))
	for _, a := range addrs {
		err = errors.Join(err, h.hold(d, a))
	}
	return err
}

// cut takes the link from interfaces.
func (h *Host) cut(how string, nets []string) error {
	var err error
	for _, net := range nets {
		d, bad := h.on(net)
		if bad != nil {
			return bad
		}
		err = errors.Join(err, h.files("class/infiniband/"+d.rdma+"/ports/1", "state", "1:_DOWN", "phys_state",
			"3:_Disabled", "rate", "40_Gb/sec_(4X_QDR)"),
			h.file("class/net/"+net+"/speed", "-1"), h.Line("link "+net+" "+how))
	}
	return err
}

// lose removes a function as if the machine had never had it.
func (h *Host) lose(pci string) error {
	d := h.devices[pci]
	if d == nil {
		return fmt.Errorf("%s is not there", pci)
	}
	delete(h.devices, pci)
	h.Links = slices.DeleteFunc(h.Links, func(l Link) bool { return l.Name == d.net })
	for _, name := range []string{cardDir(pci), "class/infiniband/" + d.rdma, "class/net/" + d.net} {
		h.remove(name)
	}
	return nil
}
