package nccltest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// Codes of causes. They are stable: scripts read them.
const (
	CauseWrong      = "wrong-result"
	CauseUnchecked  = "unchecked"
	CauseIncomplete = "incomplete"
	CauseSockets    = "sockets"
	CauseManagement = "management"
	CauseRing       = "ring-management"
	CauseOneTwin    = "one-twin"
	CauseMTU        = "mtu"
	CauseSpeed      = "link-speed"
	CausePCIe       = "pcie"
	CauseDegraded   = "degraded"
	CauseLosses     = "losses"
	CauseSmall      = "small-messages"
	CauseUnknown    = "unknown"
	CauseNoTorch    = "no-torch"
	CauseAlone      = "no-mpi"
)

// Cause is one reason why a test was slow, or says nothing.
type Cause struct {
	Code string `json:"code"`
	// Text is a sentence; Evidence is what was read; Remedy is what to do, a command
	// where one does it.
	Text     string `json:"text"`
	Evidence string `json:"evidence"`
	Remedy   string `json:"remedy"`
	// reach is the bandwidth that the cause leaves, GB/s; 0 where it says none.
	reach float64
}

// settings are the causes that show in how the nodes are set up: each is a fact, and
// may or may not be why the test was slow.
func (f fabric) settings(log Log, traffic []Traffic) []Cause {
	var found []Cause
	for _, c := range []func() (Cause, bool){
		func() (Cause, bool) { return f.twins(log, traffic) }, f.speed, f.pcie, f.mtu,
	} {
		if cause, ok := c(); ok {
			found = append(found, cause)
		}
	}
	return found
}

// twins finds a port of which one device only carries anything.
func (f fabric) twins(log Log, traffic []Traffic) (Cause, bool) {
	if c, ok := f.missingTwin(); ok {
		return c, true
	}
	least, evidence, where, surest := math.MaxInt, "", "", false
	for _, n := range f.nodes {
		used, lacks, sure := 0, "", false
		for _, p := range f.of(n.ID) {
			for _, d := range p.state.Devices {
				switch {
				case !slices.Contains(p.joined, d.HCA):
					lacks = fmt.Sprintf("%s of %s reaches no other node", d.HCA, n.Host)
					if len(d.Addresses) == 0 {
						lacks, sure = fmt.Sprintf("%s of %s has no IPv4 address", d.HCA, n.Host), true
					}
				case idle(traffic, n.Host, d.HCA):
					lacks = fmt.Sprintf("%s of %s carried nothing, by its counters", d.HCA, n.Host)
				default:
					used++
				}
			}
		}
		// Where one end has no address the other reaches nobody: the former is to be mended.
		if lacks != "" && (used < least || used == least && sure && !surest) {
			least, evidence, where, surest = used, lacks, n.Host, sure
		}
	}
	if who, devices := log.fewestDevices(); evidence == "" && who != "" && len(devices) < f.twinsAtMost() {
		least, where = len(devices), strings.SplitN(who, ":", 2)[0]
		evidence = fmt.Sprintf("NCCL on %s: NET/IB : Using %s", where, strings.Join(devices, ", "))
	}
	if evidence == "" {
		return Cause{}, false
	}
	return Cause{
		Code: CauseOneTwin, Text: "one twin of a port works alone on " + where + ": each twin is half of the port",
		Evidence: evidence, Remedy: "sparkrun netplan diff, then sudo sparkrun netplan apply; sparkrun env shows what NCCL is given",
		reach: min(oneTwin*float64(max(least, 1)), oneCable),
	}, true
}

// missingTwin finds a port with fewer devices than the most that a port of these nodes has: doctor's
// twin-missing. Its peer's second device then reaches nobody, and is not to blame.
func (f fabric) missingTwin() (Cause, bool) {
	most := 0
	for _, n := range f.nodes {
		for _, p := range n.Ports {
			most = max(most, len(p.Devices))
		}
	}
	for _, p := range f.ports {
		have := len(p.state.Devices)
		if have == 0 || have >= most {
			continue
		}
		var names []string
		for _, d := range p.state.Devices {
			names = append(names, d.HCA)
		}
		devices := strings.Join(names, ", ")
		used := 0
		for _, q := range f.of(p.node.ID) {
			used += len(q.joined)
		}
		return Cause{
			Code: CauseOneTwin, Text: fmt.Sprintf("%s lacks a twin of %s: each twin is half of the port", p.node.Host, devices),
			Evidence: fmt.Sprintf("%s has %s only in port %s, where %d devices are expected", p.node.Host, devices, p.state.Slot, most),
			Remedy:   "on " + p.node.Host + ": sparkrun doctor, which names it as twin-missing; sudo lspci -vv -d 15b3: shows whether the device is there",
			reach:    min(oneTwin*float64(max(used, 1)), oneCable),
		}, true
	}
	return Cause{}, false
}

// twinsAtMost is the number of devices that join the poorest node.
func (f fabric) twinsAtMost() int {
	least := math.MaxInt
	for _, n := range f.nodes {
		sum := 0
		for _, p := range f.of(n.ID) {
			sum += len(p.state.Devices)
		}
		least = min(least, sum)
	}
	return least
}

// idle: the device moved next to nothing while another of the same node did. In a ring one port
// may send alone, and the other receive.
func idle(traffic []Traffic, host, hca string) bool {
	var own, most uint64
	known := false
	for _, t := range traffic {
		if t.Host != host || !t.RDMA {
			continue
		}
		most = max(most, t.Sent+t.Received)
		if t.Device == hca {
			own, known = t.Sent+t.Received, true
		}
	}
	return known && most > 1<<20 && own < most/10
}

func (f fabric) speed() (Cause, bool) {
	for _, p := range f.ports {
		for _, d := range p.state.Devices {
			if c, ok := SlowLink(p.node.Host, d); ok {
				c.reach = float64(*d.SpeedMbps) / 1000 / 8 * ofLine * float64(max(1, len(f.of(p.node.ID))))
				return c, true
			}
		}
	}
	return Cause{}, false
}

// SlowLink: a device whose link is below 200 Gb/s.
func SlowLink(host string, d envgen.DeviceState) (Cause, bool) {
	if d.SpeedMbps == nil || *d.SpeedMbps >= 200000 || *d.SpeedMbps <= 0 {
		return Cause{}, false
	}
	return Cause{
		Code:     CauseSpeed,
		Text:     fmt.Sprintf("the link of %s on %s runs at %d Gb/s, not at 200", d.NIC, host, *d.SpeedMbps/1000),
		Evidence: fmt.Sprintf("%s %s speed %d Mb/s", host, d.NIC, *d.SpeedMbps),
		Remedy:   "a cable for 200 Gb/s, or that speed at the switch's port in place of autonegotiation; ethtool " + d.NIC + " shows it",
	}, true
}

func (f fabric) pcie() (Cause, bool) {
	for _, p := range f.ports {
		for _, d := range p.state.Devices {
			h, ok := p.inv.Device(d.HCA)
			if !ok {
				continue
			}
			if c, part, ok := NarrowPCIe(p.node.Host, h); ok {
				c.reach = 2 * oneTwin * part // NCCL gives both twins the same: the slower one decides
				return c, true
			}
		}
	}
	return Cause{}, false
}

// NarrowPCIe: a device whose PCIe link is less than a Spark's; part is how much of that it is.
func NarrowPCIe(host string, h envgen.HCA) (c Cause, part float64, ok bool) {
	if h.PCIeGTps == nil || h.PCIeLanes == nil {
		return Cause{}, 0, false
	}
	if part = *h.PCIeGTps * float64(*h.PCIeLanes) / (32 * 4); part >= 0.99 {
		return Cause{}, 0, false
	}
	words := fmt.Sprintf("%g GT/s x%d", *h.PCIeGTps, *h.PCIeLanes)
	return Cause{
		Code: CausePCIe, Text: fmt.Sprintf("%s of %s trained its PCIe link to %s, not to 32 GT/s x4", h.Name, host, words),
		Evidence: fmt.Sprintf("%s %s PCIe %s", host, h.Name, words),
		Remedy:   "power " + host + " off at the wall, then look for firmware",
	}, part, true
}

func (f fabric) mtu() (Cause, bool) {
	for _, p := range f.ports {
		for _, d := range p.state.Devices {
			if c, ok := SmallMTU(p.node.Host, d); ok && slices.Contains(p.joined, d.HCA) {
				c.reach = smallMTU
				return c, true
			}
		}
	}
	return Cause{}, false
}

// roceMTU is the largest packet of RoCE's, in bytes, that an interface's MTU leaves: a power of two beside
// headers of 96 (the kernel's iboe_get_mtu, include/rdma/ib_addr.h); 0: none.
func roceMTU(mtu int) int {
	for size := 4096; size >= 256; size /= 2 {
		if mtu-96 >= size {
			return size
		}
	}
	return 0
}

// SmallMTU: a device whose interface has too little for RoCE's largest packets. 9000 is usual, 4200 is enough.
func SmallMTU(host string, d envgen.DeviceState) (Cause, bool) {
	if d.MTU == nil || roceMTU(*d.MTU) == 4096 {
		return Cause{}, false
	}
	return Cause{
		Code: CauseMTU, Text: fmt.Sprintf("the MTU of %s on %s is %d, which leaves RoCE packets of %d bytes, not 4096", d.NIC, host, *d.MTU, roceMTU(*d.MTU)),
		Evidence: fmt.Sprintf("%s %s mtu %d", host, d.NIC, *d.MTU),
		Remedy:   "sudo sparkrun doctor --fix until the next reboot, sudo sparkrun netplan apply for good; a switch between needs 9000 as well",
	}, true
}

// overTCP explains a test whose bytes went by sockets, by NCCL's own word.
func (f fabric) overTCP(log Log, mark *Mark) (Cause, bool) {
	if !log.overSockets() {
		return Cause{}, false
	}
	nics := map[string]bool{}
	for _, devices := range log.Sockets {
		for _, d := range devices {
			nics[d] = true
		}
	}
	names := slices.Sorted(maps.Keys(nics))
	evidence := fmt.Sprintf("NCCL: %d connections via NET/Socket, none via NET/IB", log.Via["NET/Socket"])
	if len(names) > 0 {
		evidence += "; NET/Socket : Using " + strings.Join(names, ", ")
	}
	if log.NoIB {
		evidence += "; NET/IB : No device found."
	}
	management := len(names) > 0
	for _, name := range names {
		management = management && slices.ContainsFunc(f.nodes, func(n envgen.TopologyNode) bool { return n.MgmtNIC == name })
	}
	c := Cause{Code: CauseSockets, Text: "NCCL went by TCP, not by RDMA", Evidence: evidence, reach: sockets,
		Remedy: "sparkrun doctor; sparkrun env shows what NCCL is given; in a container /dev/infiniband, libibverbs and its mlx5 provider must be there"}
	switch {
	case f.ring:
		c.Code, c.Text = CauseRing, "NCCL went through management: in a ring only one that routes by subnet can use the cables"
		c.Remedy = "NCCL 2.30.7 or later (sparkrun launch --nccl VERSION says which the ranks load), or its fork with --nccl-subnet-aware"
	case management:
		c.Code, c.Text = CauseManagement, "NCCL went by TCP through the management network"
		c.Remedy = "sparkrun fabric shows what joins these nodes; sparkrun doctor why it is not used"
	case mark == nil:
		c.Remedy = "none without RDMA devices: sparkrun fabric shows what there is"
	}
	return c, true
}

// Losses names devices that lost packets during the test.
func Losses(traffic []Traffic) (Cause, bool) {
	var words []string
	for _, t := range traffic {
		if t.Lost > 0 && t.RDMA {
			words = append(words, fmt.Sprintf("%s %s: %s", t.Host, t.Device, t.LostWords))
		}
	}
	if len(words) == 0 {
		return Cause{}, false
	}
	return Cause{Code: CauseLosses, Text: "packets were lost and sent again during the test",
		Evidence: strings.Join(words, "; "), Remedy: "equal MTUs on both ends and the switch, flow control at the switch, another cable: sparkrun doctor"}, true
}
