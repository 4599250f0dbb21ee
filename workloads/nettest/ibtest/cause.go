package ibtest

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// Codes of causes that only this test has; the others are nettest's. Scripts read them.
const (
	CauseGID         = "wrong-gid"
	CauseUnreachable = "unreachable"
	CauseMemlock     = "memlock"
	CauseMTUUnequal  = "mtu-unequal"
	CauseDevice      = "device-gone"
	CauseBusy        = "busy"
	CauseFaulty      = "perftest-failed"
)

// side is one end of a cell's cable.
type side struct {
	host string
	port envgen.PortState
	inv  envgen.Inventory
	used []string // devices of it that were measured
}

// endsOf are the sender's and the receiver's.
func (s Setting) endsOf(p Plan, c Cell) [2]side {
	cable := p.Cables[c.cable]
	var ends [2]side
	for i, e := range []struct {
		node, lane int
		slot       string
	}{{cable.A, 0, cable.SlotA}, {cable.B, 1, cable.SlotB}} {
		n := s.node(p.Nodes[e.node].Host)
		ends[i] = side{host: n.Host, inv: s.Inventories[n.ID]}
		ends[i].port, _ = n.Port(e.slot)
		for _, l := range cable.Lanes {
			ends[i].used = append(ends[i].used, p.Nodes[e.node].Ways[l[e.lane]].Device)
		}
	}
	if c.back {
		ends[0], ends[1] = ends[1], ends[0]
	}
	return ends
}

// evaluation is that of one cell.
type evaluation struct {
	c    *Cell
	p    Plan
	s    Setting
	ends [2]side
}

// software names a device of no hardware (rxe), of which no figure is known.
func (j evaluation) software() string {
	for _, e := range j.ends {
		for _, name := range e.used {
			if h, ok := e.inv.Device(name); ok && h.PCI == nil {
				return fmt.Sprintf("%s of %s is RDMA in software", name, e.host)
			}
		}
	}
	return ""
}

func (j evaluation) evaluate() {
	c := j.c
	where := fmt.Sprintf("%s -> %s over %s", c.From, c.To, c.Port)
	for _, l := range c.Lanes {
		if l.Error != "" {
			cause := j.broken(l)
			c.Grade, c.Cause, c.Text = nettest.Failed, &cause, fmt.Sprintf("%s: %s", where, cause.Text)
			return
		}
	}
	if IsBandwidth(c.Test) {
		j.bandwidth(where)
	} else {
		j.latency(where)
	}
}

// bandwidth holds the sum of a cable's lanes against what both twins give.
func (j evaluation) bandwidth(where string) {
	c := j.c
	reached := fmt.Sprintf("%s reached %s Gb/s", where, gbps(*c.Gbps))
	full, of := writeCable, "a cable"
	if j.s.ExpectGbps > 0 {
		full, of = j.s.ExpectGbps, "--expect says that a cable"
	} else if why := j.unknown(); why != "" {
		c.Grade, c.Text = nettest.Unjudged, reached+"; "+why
		return
	} else if j.p.Bytes < defaultBytes {
		c.Grade, c.Text = nettest.Unjudged, reached+"; such small messages show the rate of messages, not the link's"
		c.Cause = &nettest.Cause{Code: nettest.CauseSmall,
			Text:     "such small messages show the rate of messages, not the link's",
			Evidence: fmt.Sprintf("messages of %s", nettest.Size(j.p.Bytes)), Remedy: "sparkrun launch ib-test bw " +
				"--size 64K"}
		return
	}
	part := *c.Gbps / full
	c.Expected, c.Part = &full, &part
	against := fmt.Sprintf("%s, %.0f %% of the %g that %s should give", reached, 100*part, full, of)
	found := j.facts(full)
	if part >= writePass {
		c.Grade, c.Text = nettest.Good, against
		c.Also = found
		return
	}
	cause := j.likely(*c.Gbps, full, found)
	c.Grade, c.Cause, c.Text = nettest.Low, &cause, against+": "+cause.Text
	for _, f := range found {
		if f.Code != cause.Code {
			c.Also = append(c.Also, f)
		}
	}
}

// latency holds the slowest lane against a direct cable's, and grants a switch its time.
func (j evaluation) latency(where string) {
	c := j.c
	reached := fmt.Sprintf("%s took %.2f us", where, *c.Micros)
	full, of := writeLatency, "a cable should"
	if j.s.ExpectMicros > 0 {
		full, of = j.s.ExpectMicros, "--expect-us says"
	} else if why := j.unknown(); why != "" {
		c.Grade, c.Text = nettest.Unjudged, reached+"; "+why
		return
	} else if l := j.p.Cables[c.cable].Link; l < len(j.s.Topology.Links) && j.s.Topology.Links[l].Switched {
		full, of = full+switchLatency, "a cable and a switch should"
	}
	part := full / max(*c.Micros, 0.01) // perftest has two digits
	c.Expected, c.Part = &full, &part
	against := fmt.Sprintf("%s, where %s take %.2f", reached, of, full)
	if part >= latencyPass {
		c.Grade, c.Text = nettest.Good, against
		return
	}
	cause := j.slow(full)
	c.Grade, c.Cause, c.Text = nettest.Low, &cause, against+": "+cause.Text
}

// unknown says why there is no figure; empty where there is one.
func (j evaluation) unknown() string {
	if why := j.software(); why != "" {
		return why + ", of which no figure is known: --expect gives one"
	}
	if verb, _, _ := strings.Cut(j.c.Test, "_"); verb != Verbs()[0] {
		return fmt.Sprintf("no figure is known for %s: --expect gives one", Program(j.c.Test))
	}
	return ""
}

// facts are what is known of the cable's two ends, and costs. full is what it should give.
func (j evaluation) facts(full float64) []nettest.Cause {
	var found []nettest.Cause
	add := func(c nettest.Cause, reach float64) {
		if !slices.ContainsFunc(found, func(f nettest.Cause) bool { return f.Code == c.Code }) {
			c.Reach = reach
			found = append(found, c)
		}
	}
	if j.software() != "" {
		return nil // they are of a ConnectX
	}
	scale := full / writeCable
	// Where one end has no address the other reaches nobody: the former is to be mended.
	twin, sure := j.ends[0].oneTwin()
	if other, _ := j.ends[1].oneTwin(); !sure && other.Code != "" {
		twin = other
	}
	if twin.Code != "" {
		add(twin, scale*writeOneTwin)
	}
	for _, e := range j.ends {
		for _, d := range e.port.Devices {
			if !slices.Contains(e.used, d.HCA) {
				continue
			}
			if c, ok := nettest.SlowLink(e.host, d); ok {
				add(c, writeCable*float64(*d.SpeedMbps)/200000)
			}
			if h, ok := e.inv.Device(d.HCA); ok {
				if c, part, ok := nettest.NarrowPCIe(e.host, h); ok {
					half := scale * writeCable / 2
					add(c, float64(len(e.used)-1)*half+min(half, part*scale*writeOneTwin))
				}
			}
			if c, ok := nettest.SmallMTU(e.host, d); ok {
				add(c, scale*writeCableSmallMTU)
			}
		}
	}
	for _, l := range j.c.Lanes {
		if m := l.Measured.MTU; m > 0 && m < 4096 { // where the interface has 9000, its device has not noticed
			add(nettest.Cause{Code: nettest.CauseMTU,
				Text:     fmt.Sprintf("RoCE packets of %s -> %s have %d bytes, not 4096", l.From, l.To, m),
				Evidence: fmt.Sprintf("perftest: Mtu %d[B]", m),
				Remedy: "an MTU of 9000 at both ends and the switch; where an interface has it already, set it " +
					"down and up"}, scale*writeCableSmallMTU)
		}
	}
	return found
}

// oneTwin: a port of which one device only was measured. sure: it is this end that lacks the
// other.
func (e side) oneTwin() (c nettest.Cause, sure bool) {
	if len(e.used) != 1 {
		return nettest.Cause{}, false
	}
	c = nettest.Cause{
		Code: nettest.CauseOneTwin, Text: "one twin of a port works alone: each twin is half of the port",
		Evidence: fmt.Sprintf("%s of %s has no twin that reaches the other side", e.used[0], e.host),
		Remedy:   "sparkrun netplan diff, then sudo sparkrun netplan apply; sparkrun fabric shows both twins",
	}
	if len(e.port.Devices) < 2 {
		c.Evidence = fmt.Sprintf("%s of %s has no twin: its second PCI function is not there", e.used[0], e.host)
		c.Remedy = "power " + e.host + " off at the wall; lspci shows both functions when it is there again"
		return c, true
	}
	for _, d := range e.port.Devices {
		if !slices.Contains(e.used, d.HCA) && len(d.Addresses) == 0 {
			c.Evidence = fmt.Sprintf("%s of %s has no IPv4 address", d.HCA, e.host)
			return c, true
		}
	}
	return c, false
}

// likely picks the fact that leaves nearest to what was measured; one that leaves twice as
// much explains nothing.
func (j evaluation) likely(gbps, full float64, found []nettest.Cause) nettest.Cause {
	best, explains := nettest.Likely(gbps, found)
	if explains {
		return *best
	}
	if lost, any := nettest.Losses(j.traffic()); any {
		return lost
	}
	if weak, strong := j.extremes(); weak != nil && *weak.Measured.Gbps < *strong.Measured.Gbps/2 {
		return nettest.Cause{Code: nettest.CauseDegraded,
			Text: fmt.Sprintf("%s -> %s gives far less than its twin, which no setting explains", weak.From, weak.To),
			Evidence: fmt.Sprintf("%s -> %s %.1f Gb/s, %s -> %s %.1f at the same time", weak.From, weak.To,
				*weak.Measured.Gbps, strong.From, strong.To, *strong.Measured.Gbps),
			Remedy: "power both machines off at the wall, wait, and test again; then look at PCIe errors: dmesg | " +
				"grep -i aer"}
	}
	if gbps < full*writeOneTwin/writeCable/2 && j.software() == "" {
		return nettest.Degraded(gbps)
	}
	if best != nil {
		return *best
	}
	return nettest.Cause{Code: nettest.CauseUnknown, Text: "nothing that was looked at explains it",
		Evidence: "twins, speed, PCIe, MTU, GIDs and losses are as they should be",
		Remedy:   "sparkrun doctor; is a job using the link? sparkrun ps"}
}

// extremes are the lanes with the least and the most; nil for one alone.
func (j evaluation) extremes() (weak, strong *Lane) {
	if len(j.c.Lanes) < 2 {
		return nil, nil
	}
	by := func(a, b Lane) int { return int(math.Copysign(1, *a.Measured.Gbps-*b.Measured.Gbps)) }
	least, most := slices.MinFunc(j.c.Lanes, by), slices.MaxFunc(j.c.Lanes, by)
	return &least, &most
}

// traffic is that of the devices that were measured.
func (j evaluation) traffic() []nettest.Traffic {
	return slices.DeleteFunc(slices.Clone(j.s.Traffic), func(t nettest.Traffic) bool {
		return !slices.ContainsFunc(j.ends[:],
			func(e side) bool { return e.host == t.Host && slices.Contains(e.used, t.Device) })
	})
}

// slow is why latency is high.
func (j evaluation) slow(full float64) nettest.Cause {
	if lost, any := nettest.Losses(j.traffic()); any {
		return lost
	}
	for _, l := range j.c.Lanes {
		if m := l.Measured; m.Min != nil && full / *m.Min >= latencyPass {
			return nettest.Cause{Code: CauseBusy,
				Text:     "the machines were busy, or saved power: at its best it was as it should be",
				Evidence: fmt.Sprintf("%s -> %s: %.2f us at best, %.2f usually", l.From, l.To, *m.Min, *m.latency()),
				Remedy: "test again while nothing runs (sparkrun ps), and with the governor performance: cpupower " +
					"frequency-info"}
		}
	}
	return nettest.Cause{Code: nettest.CauseUnknown, Text: "nothing that was looked at explains it",
		Evidence: fmt.Sprintf("%.2f us, at its best as well", *j.c.Micros),
		Remedy:   "sparkrun doctor; is there a switch or a tunnel between that sparkrun does not know of?"}
}

// broken is why a lane gave nothing, or not over its own addresses.
func (j evaluation) broken(l Lane) nettest.Cause {
	lane := fmt.Sprintf("%s -> %s", l.From, l.To)
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(l.Error), w) })
	}
	c := nettest.Cause{Code: CauseFaulty, Text: lane + ": perftest gave no result",
		Remedy: "sparkrun doctor; sparkrun launch ib-test -v shows all that it says"}
	switch {
	case says("gid"), says("failed to modify qp", "unable to connect the hca"):
		c.Code, c.Text = CauseGID, lane+": the two sides do not speak by RoCE v2 GIDs of one subnet"
		c.Remedy = "sparkrun fabric shows each device's addresses and GIDs; sudo sparkrun netplan apply"
	case says("device not found", "ib device", "unable to find the infiniband"):
		c.Code, c.Text, c.Remedy = CauseDevice, lane+": a device was not there when its turn came",
			"sparkrun fabric; dmesg | grep mlx5 on that machine"
	case says("cannot allocate memory", "couldn't allocate mr", "failed to create mr", "failed to create qp",
		"couldn't create qp", "failed to create cq"):
		c.Code, c.Text, c.Remedy = CauseMemlock, lane+": the ranks may not lock enough memory",
			"sparkrun doctor; --ulimit memlock=unlimited, or LimitMEMLOCK=infinity in the agent's unit"
	case says("couldn't connect", "transport retry counter", "completion with error", "failed status", "did not end",
		"acknowledged"):
		c.Code, c.Text, c.Remedy = CauseUnreachable, lane+": nothing gets through",
			"sparkrun doctor pings along every cable; ip neigh: does the far address have that device's own MAC, or "+
				"its twin's (sysctl net.ipv4.conf.all.arp_ignore=1 there)? A firewall may stand between"
		if a, b, unequal := j.mtus(l); unequal {
			c.Code, c.Text = CauseMTUUnequal, lane+": large packets do not get through, for the MTUs differ"
			c.Remedy = "sudo sparkrun doctor --fix until the next reboot, sudo sparkrun netplan apply for good; a " +
				"switch between needs 9000 as well"
			l.Error += fmt.Sprintf("; %s of %s mtu %d, %s of %s mtu %d", l.From, j.ends[0].host, a, l.To, j.ends[1].host, b)
		}
	// It holds its processor's counter against the time of day, and without a match has none
	// (seen in emulated machines: a bandwidth of 0, or "Can't produce a report").
	case says("correlation coefficient", "and no time"):
		c.Code, c.Text = CauseBusy,
			lane+": perftest could not tell the time, as it does on a machine that is busy or whose processor "+
				"changes its speed"
		c.Remedy = "test again while nothing runs (sparkrun ps), and with the governor performance: cpupower " +
			"frequency-info"
	}
	c.Evidence = l.Error
	return c
}

// mtus are those of a lane's two interfaces.
func (j evaluation) mtus(l Lane) (from, to int, unequal bool) {
	of := func(e side, hca string) int {
		i := slices.IndexFunc(e.port.Devices, func(d envgen.DeviceState) bool { return d.HCA == hca })
		if i < 0 || e.port.Devices[i].MTU == nil {
			return 0
		}
		return *e.port.Devices[i].MTU
	}
	from, to = of(j.ends[0], l.From), of(j.ends[1], l.To)
	return from, to, from > 0 && to > 0 && from != to
}
