package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Changes lists the differences of a later view of a cluster, one line each: nodes, then their ports and devices,
// then cables, the shape, and findings. It is empty exactly where nothing that it compares differs; GIDs and probes
// are compared in the inventories, which may be nil.
func Changes(before, after Scene) []string {
	d := diff{before: before, after: after}
	for _, n := range before.Topology.Nodes {
		if _, stays := after.Topology.Node(n.ID); !stays {
			d.say("%s is gone", plain.Line(n.Host))
		}
	}
	for _, n := range after.Topology.Nodes {
		was, known := before.Topology.Node(n.ID)
		if !known {
			d.say("%s is new", plain.Line(n.Host))
			continue
		}
		d.node(was, n)
	}
	d.links()
	if a, b := before.Topology, after.Topology; a.Shape != b.Shape || a.Why != b.Why {
		d.say("shape: %s, %s", b.Shape, plain.Line(b.Why))
	}
	d.findings()
	return d.lines
}

// Scene is a topology and the inventories from which it was derived, by node id.
type Scene struct {
	Topology    envgen.Topology
	Inventories map[string]envgen.Inventory
}

type diff struct {
	before, after Scene
	lines         []string
}

func (d *diff) say(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diff) node(was, is envgen.TopologyNode) {
	for _, p := range was.Ports {
		if _, stays := is.Port(p.Slot); !stays {
			d.say("%s %s is gone", plain.Line(is.Host), portName(was, p))
		}
	}
	for _, p := range is.Ports {
		old, known := was.Port(p.Slot)
		name := plain.Line(is.Host) + " " + portName(is, p)
		if !known {
			d.say("%s is new", name)
			continue
		}
		if old.Live != p.Live {
			d.say("%s %s", name, either(p.Live, "has a link", "lost its link"))
		}
		if old.Role != p.Role {
			d.say("%s is %s now: %s", name, p.Role, plain.Line(p.Why))
		}
		for _, dev := range old.Devices {
			if deviceOf(p, dev.HCA) == nil {
				d.say("%s: device %s is gone", name, plain.Line(dev.HCA))
			}
		}
		for _, dev := range p.Devices {
			if x := deviceOf(old, dev.HCA); x != nil {
				d.device(name, is.ID, *x, dev, old.Live != p.Live)
			} else {
				d.say("%s: device %s is new", name, plain.Line(dev.HCA))
			}
		}
	}
}

// device reports one twin. What a lost link changes too (state, speed) is not repeated.
func (d *diff) device(port, id string, was, is envgen.DeviceState, linkTold bool) {
	name := port + " " + plain.Line(is.HCA)
	if was.NIC != is.NIC {
		d.say("%s: its interface is %s, was %s", name, orNone(plain.Line(is.NIC)), orNone(plain.Line(was.NIC)))
	}
	if was.Up != is.Up {
		d.say("%s: %s is set %s", name, plain.Line(is.NIC), either(is.Up, "up", "down"))
	}
	if !linkTold {
		if !same(was.Carrier, is.Carrier) && was.Up && is.Up {
			d.say("%s: %s %s", name, plain.Line(is.NIC),
				either(is.Carrier != nil && *is.Carrier, "has a carrier", "lost its carrier"))
		}
		if was.State != is.State {
			d.say("%s is %s, was %s", name, orNone(plain.Line(is.State)), orNone(plain.Line(was.State)))
		}
		if !same(was.SpeedMbps, is.SpeedMbps) && was.SpeedMbps != nil && is.SpeedMbps != nil {
			d.say("%s: %d Gb/s, was %d", name, *is.SpeedMbps/1000, *was.SpeedMbps/1000)
		}
	}
	if !same(was.MTU, is.MTU) && was.MTU != nil && is.MTU != nil {
		d.say("%s: MTU %d, was %d", name, *is.MTU, *was.MTU)
	}
	d.set(name, "address", addressNames(was.Addresses), addressNames(is.Addresses))
	d.set(name, "GID", gidNames(d.before.Inventories[id], is.HCA), gidNames(d.after.Inventories[id], is.HCA))
}

// set reports which members of a set were removed and added.
func (d *diff) set(name, what string, was, is []string) {
	for _, x := range was {
		if !slices.Contains(is, x) {
			d.say("%s lost %s %s", name, what, x)
		}
	}
	for _, x := range is {
		if !slices.Contains(was, x) {
			d.say("%s has %s %s", name, what, x)
		}
	}
}

// links reports cables that are gone and new ones. One that was seen and has no link is gone, too; when the other
// end reports that a moment later, it is no change.
func (d *diff) links() {
	was, is := liveLinks(d.before.Topology), liveLinks(d.after.Topology)
	for _, name := range was {
		if !slices.Contains(is, name) {
			d.say("gone: %s", name)
		}
	}
	for _, name := range is {
		if !slices.Contains(was, name) {
			d.say("cabled: %s", name)
		}
	}
}

func (d *diff) findings() {
	key := func(f envgen.Finding) string {
		return strings.Join([]string{f.Code, string(f.Severity), f.Node, f.Port, f.Device, f.Text}, "\x00")
	}
	has := func(all []envgen.Finding, f envgen.Finding) bool {
		return slices.ContainsFunc(all, func(o envgen.Finding) bool { return key(o) == key(f) })
	}
	for _, f := range d.before.Topology.Findings {
		if !has(d.after.Topology.Findings, f) {
			d.say("mended: %s: %s", f.Code, plain.Line(f.Text))
		}
	}
	for _, f := range d.after.Topology.Findings {
		if !has(d.before.Topology.Findings, f) {
			d.say("%s: %s: %s", f.Severity, f.Code, plain.Line(f.Text))
		}
	}
}

// liveLinks names each link that is up by its kind and ends: "cable: spark1 port 0 - spark2 port
// 0".
func liveLinks(t envgen.Topology) []string {
	var names []string
	for _, l := range t.Links {
		if l.Up {
			names = append(names, linkKind(l)+": "+linkEnds(t, l))
		}
	}
	return names
}

func deviceOf(p envgen.PortState, hca string) *envgen.DeviceState {
	for i := range p.Devices {
		if p.Devices[i].HCA == hca {
			return &p.Devices[i]
		}
	}
	return nil
}

func addressNames(prefixes []netip.Prefix) []string {
	var names []string
	for _, p := range prefixes {
		names = append(names, p.String())
	}
	return names
}

// gidNames are the rows that RoCE v2 uses over IPv4, with their index, which may
// change.
func gidNames(inv envgen.Inventory, hca string) []string {
	h, _ := inv.Device(hca)
	var names []string
	for _, g := range h.GIDs {
		if g.Type == envgen.GIDTypeRoCEv2 && g.Addr.Is4In6() {
			names = append(names, fmt.Sprintf("%d of %s", g.Index, g.Addr.Unmap()))
		}
	}
	return names
}

func same[T comparable](a, b *T) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}

func either(which bool, yes, no string) string {
	if which {
		return yes
	}
	return no
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
