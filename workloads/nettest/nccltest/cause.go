package nccltest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// Codes of causes that only this test has; the others are nettest's. Scripts read them.
const (
	CauseWrong      = "wrong-result"
	CauseUnchecked  = "unchecked"
	CauseIncomplete = "incomplete"
	CauseSockets    = "sockets"
	CauseManagement = "management"
	CauseRing       = "ring-management"
	CauseNoTorch    = "no-torch"
	CauseAlone      = "no-mpi"
)

// settings are the causes that show in how the nodes are set up: each is a fact, and
// may or may not be why the test was slow.
func (f fabric) settings(log Log, traffic []nettest.Traffic) []nettest.Cause {
	var found []nettest.Cause
	for _, c := range []func() (nettest.Cause, bool){
		func() (nettest.Cause, bool) { return f.twins(log, traffic) }, f.speed, f.pcie, f.mtu,
	} {
		if cause, ok := c(); ok {
			found = append(found, cause)
		}
	}
	return found
}

// twins finds a port of which one device only carries anything.
func (f fabric) twins(log Log, traffic []nettest.Traffic) (nettest.Cause, bool) {
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
		return nettest.Cause{}, false
	}
	return nettest.Cause{
		Code: nettest.CauseOneTwin, Text: "one twin of a port works alone on " + where + ": each twin is half of " +
			"the port",
		Evidence: evidence, Remedy: "sparkrun netplan diff, then sudo sparkrun netplan apply; sparkrun env shows " +
			"what NCCL is given",
		Reach: min(oneTwin*float64(max(least, 1)), oneCable),
	}, true
}

// missingTwin finds a port with fewer devices than the most that a port of these nodes has: doctor's
// twin-missing. Its peer's second device then reaches nobody, and is not to blame.
func (f fabric) missingTwin() (nettest.Cause, bool) {
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
		return nettest.Cause{
			Code: nettest.CauseOneTwin,
			Text: fmt.Sprintf("%s lacks a twin of %s: each twin is half of the port", p.node.Host, devices),
			Evidence: fmt.Sprintf("%s has %s only in port %s, where %d devices are expected", p.node.Host, devices,
				p.state.Slot, most),
			Remedy: "on " + p.node.Host + ": sparkrun doctor, which names it as twin-missing; sudo lspci -vv -d " +
				"15b3: shows whether the device is there",
			Reach: min(oneTwin*float64(max(used, 1)), oneCable),
		}, true
	}
	return nettest.Cause{}, false
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
func idle(traffic []nettest.Traffic, host, hca string) bool {
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

func (f fabric) speed() (nettest.Cause, bool) {
	for _, p := range f.ports {
		for _, d := range p.state.Devices {
			if c, ok := nettest.SlowLink(p.node.Host, d); ok {
				c.Reach = float64(*d.SpeedMbps) / 1000 / 8 * ofLine * float64(max(1, len(f.of(p.node.ID))))
				return c, true
			}
		}
	}
	return nettest.Cause{}, false
}

func (f fabric) pcie() (nettest.Cause, bool) {
	for _, p := range f.ports {
		for _, d := range p.state.Devices {
			h, ok := p.inv.Device(d.HCA)
			if !ok {
				continue
			}
			if c, part, ok := nettest.NarrowPCIe(p.node.Host, h); ok {
				c.Reach = 2 * oneTwin * part // NCCL gives both twins the same: the slower one decides
				return c, true
			}
		}
	}
	return nettest.Cause{}, false
}

func (f fabric) mtu() (nettest.Cause, bool) {
	for _, p := range f.ports {
		for _, d := range p.state.Devices {
			if c, ok := nettest.SmallMTU(p.node.Host, d); ok && slices.Contains(p.joined, d.HCA) {
				c.Reach = smallMTU
				return c, true
			}
		}
	}
	return nettest.Cause{}, false
}

// overTCP explains a test whose bytes went by sockets, by NCCL's own word.
func (f fabric) overTCP(log Log, mark *Mark) (nettest.Cause, bool) {
	if !log.overSockets() {
		return nettest.Cause{}, false
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
	c := nettest.Cause{Code: CauseSockets, Text: "NCCL went by TCP, not by RDMA", Evidence: evidence, Reach: sockets,
		Remedy: "sparkrun doctor; sparkrun env shows what NCCL is given; in a container /dev/infiniband, libibverbs " +
			"and its mlx5 provider must be there"}
	switch {
	case f.ring:
		c.Code, c.Text = CauseRing,
			"NCCL went through management: in a ring only one that routes by subnet can use the cables"
		c.Remedy = "NCCL 2.30.7 or later (sparkrun launch --nccl VERSION says which the ranks load), or its fork " +
			"with --nccl-subnet-aware"
	case management:
		c.Code, c.Text = CauseManagement, "NCCL went by TCP through the management network"
		c.Remedy = "sparkrun fabric shows what joins these nodes; sparkrun doctor why it is not used"
	case mark == nil:
		c.Remedy = "none without RDMA devices: sparkrun fabric shows what there is"
	}
	return c, true
}
