package envgen

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// LinkChange is something that happened to a port of a node while its agent looked.
type LinkChange struct {
	At   time.Time `json:"at"`   // by the node's clock
	Slot string    `json:"slot"` // the Port's
	Port string    `json:"port"` // what people call it: PortName
	// Up is whether the port has a link now, where that is what changed; nil: something else did.
	Up *bool `json:"up,omitempty"`
	// SpeedMbps is of the link that it has now, or that was lost; 0: not known.
	SpeedMbps int `json:"speed_mbps,omitempty"`
	// Text is what happened, for people: "lost its link", "lost address 192.168.100.1/24".
	Text string `json:"text"`
}

// LinkChanges are what happened to a node's ports between two of its inventories: links, addresses and speeds, by port.
func LinkChanges(before, after Inventory, at time.Time) (changes []LinkChange) {
	was, is := Ports(before), Ports(after)
	for _, p := range was {
		if !slices.ContainsFunc(is, func(q Port) bool { return q.Slot == p.Slot }) {
			changes = append(changes, LinkChange{At: at, Slot: p.Slot, Port: PortName(was, p), Up: new(false), Text: "is gone"})
		}
	}
	for _, p := range is {
		say := func(up *bool, format string, args ...any) {
			changes = append(changes, LinkChange{At: at, Slot: p.Slot, Port: PortName(is, p), Up: up, Text: fmt.Sprintf(format, args...)})
		}
		i := slices.IndexFunc(was, func(q Port) bool { return q.Slot == p.Slot })
		if i < 0 {
			say(new(p.Live(after)), "is there")
			continue
		}
		had, has := was[i].Live(before), p.Live(after)
		speed := p.speed(after)
		told := len(changes)
		switch {
		case had && !has && p.setDown(before, after):
			say(&has, "was set down")
		case had && !has:
			say(&has, "lost its link")
		case !had && has && speed > 0:
			say(&has, "has a link of %d Gb/s", speed/1000)
		case !had && has: // the driver tells the speed a moment later
			say(&has, "has a link")
		case has && speed > 0 && speed != was[i].speed(before):
			say(nil, "runs at %d Gb/s", speed/1000)
		}
		for k := range changes[told:] {
			changes[told+k].SpeedMbps = speed
			if had && !has {
				changes[told+k].SpeedMbps = was[i].speed(before)
			}
		}
		old, now := was[i].addresses(before), p.addresses(after)
		for _, a := range old {
			if !slices.Contains(now, a) {
				say(nil, "lost address %s", a)
			}
		}
		for _, a := range now {
			if !slices.Contains(old, a) {
				say(nil, "has address %s", a)
			}
		}
	}
	return changes
}

// Down are the slots of ports by which a job meets at this node, and that have no link now.
func (e Entry) Down(inv Inventory) (slots []string) {
	ports := Ports(inv)
	for _, path := range e.Paths {
		i := slices.IndexFunc(ports, func(p Port) bool { return p.Slot == path.Slot })
		if (i < 0 || !ports[i].Live(inv)) && !slices.Contains(slots, path.Slot) {
			slots = append(slots, path.Slot)
		}
	}
	return slots
}

// speed in Mb/s of the port's link; 0: the driver does not say.
func (p Port) speed(inv Inventory) (mbps int) {
	for _, h := range p.Twins {
		if nic, ok := inv.NIC(h.Netdev); ok && nic.SpeedMbps != nil {
			mbps = max(mbps, *nic.SpeedMbps)
		}
	}
	return mbps
}

// setDown reports whether somebody has set an interface of the port down since.
func (p Port) setDown(before, after Inventory) bool {
	return slices.ContainsFunc(p.Twins, func(h HCA) bool {
		was, _ := before.NIC(h.Netdev)
		is, ok := after.NIC(h.Netdev)
		return ok && was.Up && !is.Up
	})
}

// addresses are the IPv4 ones of all interfaces that the port serves: jobs meet at no others.
func (p Port) addresses(inv Inventory) (all []netip.Prefix) {
	for _, h := range p.Twins {
		for _, name := range h.Netdevs() {
			nic, _ := inv.NIC(name)
			for _, a := range nic.Addresses {
				if a.Addr().Is4() && !slices.Contains(all, a) {
					all = append(all, a)
				}
			}
		}
	}
	return all
}

func (p Port) place() (*int, string)      { return p.Number, p.Slot }
func (p PortState) place() (*int, string) { return p.Number, p.Slot }

// PortName is what people call a port of a node: "port 0", or its slot where the node has several of that number.
func PortName[P interface{ place() (*int, string) }](ports []P, p P) string {
	number, slot := p.place()
	if number == nil || slices.ContainsFunc(ports, func(q P) bool {
		n, s := q.place()
		return s != slot && n != nil && *n == *number
	}) {
		return slot
	}
	return fmt.Sprintf("port %d", *number)
}
