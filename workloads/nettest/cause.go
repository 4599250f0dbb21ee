package nettest

import (
	"fmt"
	"math"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// Codes of causes that both tests know. They are stable: scripts read them.
const (
	CauseOneTwin  = "one-twin"
	CauseMTU      = "mtu"
	CauseSpeed    = "link-speed"
	CausePCIe     = "pcie"
	CauseDegraded = "degraded"
	CauseLosses   = "losses"
	CauseSmall    = "small-messages"
	CauseUnknown  = "unknown"
)

// Cause is one reason why a test was slow, or says nothing.
type Cause struct {
	Code string `json:"code"`
	// Text is a sentence; Evidence is what was read; Remedy is what to do, a command where one does it.
	Text     string `json:"text"`
	Evidence string `json:"evidence"`
	Remedy   string `json:"remedy"`
	// Reach is the bandwidth that the cause leaves, in the test's unit; 0 where it says none.
	Reach float64 `json:"-"`
}

// Likely picks the fact that leaves nearest to what was measured; nil without facts. explains is false where it leaves
// twice as much or more.
func Likely(reached float64, found []Cause) (nearest *Cause, explains bool) {
	off := func(c Cause) float64 { return math.Abs(math.Log(reached / c.Reach)) }
	for i, c := range found {
		if nearest == nil || off(c) < off(*nearest) {
			nearest = &found[i]
		}
	}
	return nearest, nearest != nil && reached > nearest.Reach/2
}

// Degraded is the cause of what no setting explains: less than half of one twin, in 10^9 bits a second.
func Degraded(gbps float64) Cause {
	return Cause{Code: CauseDegraded,
		Text: "this is below half of one twin, which no setting explains: a ConnectX-7 has been seen at 13 Gb/s while " +
			"its link said 200",
		Evidence: fmt.Sprintf("%.1f Gb/s over RDMA; the links say what they should", gbps),
		Remedy:   "power both machines off at the wall, wait, and test again"}
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
		Remedy: "a cable for 200 Gb/s, or that speed at the switch's port in place of autonegotiation; " +
			"ethtool " + d.NIC + " shows it",
	}, true
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
		Code: CauseMTU, Text: fmt.Sprintf("the MTU of %s on %s is %d, which leaves RoCE packets of %d bytes, not 4096",
			d.NIC, host, *d.MTU, roceMTU(*d.MTU)),
		Evidence: fmt.Sprintf("%s %s mtu %d", host, d.NIC, *d.MTU),
		Remedy: "sudo sparkrun doctor --fix until the next reboot, sudo sparkrun netplan apply for good; a switch " +
			"between needs 9000 as well",
	}, true
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
		Evidence: strings.Join(words, "; "),
		Remedy:   "equal MTUs on both ends and the switch, flow control at the switch, another cable: sparkrun doctor"}, true
}
