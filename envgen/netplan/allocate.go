package netplan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// allocator turns the last allocation into the next. Its steps run once, in the order of allocate.
type allocator struct {
	in     Input
	next   Allocation
	nodes  map[string]Node
	ports  map[End]Port
	placed map[End]int // port -> index of its rail in next.Rails
	notes  []string
}

func newAllocator(in Input) *allocator {
	a := &allocator{in: in, next: in.Previous.clone(), nodes: map[string]Node{}, ports: map[End]Port{},
		placed: map[End]int{}}
	for _, n := range in.Nodes {
		a.nodes[n.ID] = n
		for _, p := range n.Ports {
			a.ports[End{n.ID, p.Slot}] = p
		}
	}
	return a
}

func (a *allocator) allocate() error {
	a.number()
	if err := a.evict(); err != nil {
		return err
	}
	if err := a.place(); err != nil {
		return err
	}
	a.fill()
	for rail := range a.next.Rails {
		if err := a.address(rail); err != nil {
			return err
		}
	}
	a.noteApart()
	a.noteUncabled()
	return nil
}

// number gives new nodes the lowest free numbers, in the order of their host names.
func (a *allocator) number() {
	taken := map[int]bool{}
	for _, n := range a.next.Numbers {
		taken[n] = true
	}
	newcomers := slices.Clone(a.in.Nodes)
	slices.SortStableFunc(newcomers,
		func(x, y Node) int { return cmp.Or(compareNatural(x.Host, y.Host), cmp.Compare(x.ID, y.ID)) })
	free := 1
	for _, n := range newcomers {
		if _, known := a.next.Numbers[n.ID]; known {
			continue
		}
		for taken[free] {
			free++
		}
		a.next.Numbers[n.ID], taken[free] = free, true
	}
}

// evict moves rails that have come to overlap a reserved subnet. It is the only case in which addresses change: the
// old ones would not work.
func (a *allocator) evict() error {
	for i := range a.next.Rails {
		for lane, subnet := range a.next.Rails[i].Subnets {
			at := slices.IndexFunc(a.in.Reserved, func(r Reserved) bool { return r.Prefix.Overlaps(subnet) })
			if at < 0 {
				continue
			}
			fresh, ok := takeBlock(1, a.taken)
			if !ok {
				return a.exhausted()
			}
			a.next.Rails[i].Subnets[lane] = fresh[0]
			hosts := map[netip.Addr]bool{}
			for s, port := range a.next.Rails[i].Ports {
				for t, twin := range port.Twins {
					if twin.Lane != lane {
						continue
					}
					addr, ok := hostAddr(fresh[0], a.next.Numbers[port.Node], hosts)
					if !ok {
						return a.full(fresh[0])
					}
					hosts[addr] = true
					a.next.Rails[i].Ports[s].Twins[t].Addr = addr
				}
			}
			a.notes = append(a.notes,
				fmt.Sprintf("%s overlaps %s (%s): its addresses move to %s", subnet, a.in.Reserved[at].Prefix,
					a.in.Reserved[at].Why, fresh[0]))
		}
	}
	return nil
}

func (a *allocator) taken(p netip.Prefix) bool {
	for _, r := range a.in.Reserved {
		if r.Prefix.Overlaps(p) {
			return true
		}
	}
	for _, r := range a.next.Rails {
		if slices.ContainsFunc(r.Subnets, p.Overlaps) {
			return true
		}
	}
	return false
}

func (a *allocator) exhausted() error {
	return fmt.Errorf("plan netplan: no private subnet is left for %d links beside the %d reserved ones; forget nodes "+
		"that have left, or free a part of 192.168.0.0/16 or 10.177.0.0/16",
		len(a.in.Links), len(a.in.Reserved))
}

func (a *allocator) full(subnet netip.Prefix) error {
	return fmt.Errorf("plan netplan: %s has no address left; forget nodes that have left, or spread the ports over "+
		"two switches", subnet)
}

// place decides each linked port's rail. A rail goes to the link that has most of its ports; a link needs as many
// rails as it has ports of one node.
func (a *allocator) place() error {
	links := a.links()
	type claim struct{ link, rail, shared int }
	var claims []claim
	for l, ends := range links {
		shared := map[int]int{}
		for _, e := range ends {
			if rail, _, ok := a.next.find(e); ok {
				shared[rail]++
			}
		}
		for rail, n := range shared {
			claims = append(claims, claim{l, rail, n})
		}
	}
	slices.SortStableFunc(claims, func(x, y claim) int {
		return cmp.Or(cmp.Compare(y.shared, x.shared), cmp.Compare(x.rail, y.rail), cmp.Compare(x.link, y.link))
	})
	rails := make([][]int, len(links))
	given := map[int]bool{}
	for _, c := range claims {
		if !given[c.rail] && len(rails[c.link]) < railsOf(links[c.link]) {
			rails[c.link] = append(rails[c.link], c.rail)
			given[c.rail] = true
		}
	}
	for l, ends := range links {
		for len(rails[l]) < railsOf(ends) {
			subnets, ok := takeBlock(a.lanes(ends), a.taken)
			if !ok {
				return a.exhausted()
			}
			a.next.Rails = append(a.next.Rails, Rail{Subnets: subnets})
			rails[l] = append(rails[l], len(a.next.Rails)-1)
		}
		a.spread(ends, rails[l])
	}
	return nil
}

// spread puts the m ports of each node on the link's first m rails, so that the first rail joins all nodes. A port
// that was on one of them stays there.
func (a *allocator) spread(ends []End, rails []int) {
	for i := 0; i < len(ends); {
		j := i
		for j < len(ends) && ends[j].Node == ends[i].Node {
			j++
		}
		own, free := ends[i:j], slices.Clone(rails[:j-i])
		for _, e := range own {
			if rail, _, ok := a.next.find(e); ok && slices.Contains(free, rail) {
				a.placed[e] = rail
				free = slices.DeleteFunc(free, func(r int) bool { return r == rail })
			}
		}
		for _, e := range own {
			if _, ok := a.placed[e]; !ok {
				a.placed[e], free = free[0], free[1:]
			}
		}
		i = j
	}
}

// fill rewrites the rails' ports: which leave a rail, which stay, which are new. A port without a link stays (its
// peer may only be away) unless its node has another port there now.
func (a *allocator) fill() {
	for i := range a.next.Rails {
		var here []End
		for e, rail := range a.placed {
			if rail == i {
				here = append(here, e)
			}
		}
		slices.SortStableFunc(here, a.compareEnds)
		var ports []RailPort
		for _, s := range a.next.Rails[i].Ports {
			rail, cabled := a.placed[s.End]
			replaced := slices.ContainsFunc(here, func(e End) bool { return e.Node == s.Node })
			if cabled && rail == i || !cabled && !replaced {
				ports = append(ports, s)
			}
		}
		for _, e := range here {
			if !slices.ContainsFunc(ports, func(s RailPort) bool { return s.End == e }) {
				ports = append(ports, RailPort{End: e})
			}
		}
		a.next.Rails[i].Ports = ports
	}
	// Indices of rails are invalid after this: placed only tells whether a port is cabled.
	a.next.Rails = slices.DeleteFunc(a.next.Rails, func(r Rail) bool { return len(r.Ports) == 0 })
}

// address gives every existing interface of a rail a lane and an address.
func (a *allocator) address(rail int) error {
	r := &a.next.Rails[rail]
	lanes := len(r.Subnets)
	for _, s := range r.Ports {
		lanes = max(lanes, len(a.ports[s.End].Twins))
	}
	for len(r.Subnets) < lanes {
		subnet, ok := a.neighbour(r.Subnets)
		if !ok {
			return a.exhausted()
		}
		r.Subnets = append(r.Subnets, subnet)
	}
	taken := map[netip.Addr]bool{}
	for _, s := range r.Ports {
		for _, t := range s.Twins {
			taken[t.Addr] = true
		}
	}
	for i := range r.Ports {
		s := &r.Ports[i]
		for _, twin := range a.ports[s.End].Twins {
			if slices.ContainsFunc(s.Twins, func(t RailTwin) bool { return t.Key == twin.key() }) {
				continue
			}
			lane := a.freeLane(s, lanes, taken)
			addr, ok := hostAddr(r.Subnets[lane], a.next.Numbers[s.Node], taken)
			if !ok {
				return a.full(r.Subnets[lane])
			}
			taken[addr] = true
			s.Twins = append(s.Twins, RailTwin{Key: twin.key(), Lane: lane, Addr: addr})
		}
	}
	return nil
}

// freeLane finds the lowest lane that no twin of the port has. Where all are taken, one belongs to an interface
// that is gone (a port has no more twins than there are lanes): that twin is dropped, and its address is free.
func (a *allocator) freeLane(s *RailPort, lanes int, taken map[netip.Addr]bool) int {
	for lane := range lanes {
		if !slices.ContainsFunc(s.Twins, func(t RailTwin) bool { return t.Lane == lane }) {
			return lane
		}
	}
	slices.SortStableFunc(s.Twins, func(x, y RailTwin) int { return cmp.Compare(x.Lane, y.Lane) })
	gone := slices.IndexFunc(s.Twins, func(t RailTwin) bool {
		return !slices.ContainsFunc(a.ports[s.End].Twins, func(twin Twin) bool { return twin.key() == t.Key })
	})
	lane := s.Twins[gone].Lane
	delete(taken, s.Twins[gone].Addr)
	s.Twins = slices.Delete(s.Twins, gone, gone+1)
	return lane
}

// neighbour finds a subnet for one more lane, next to the last one if possible.
func (a *allocator) neighbour(subnets []netip.Prefix) (netip.Prefix, bool) {
	if len(subnets) > 0 && subnets[len(subnets)-1].Bits() == 24 {
		last := subnets[len(subnets)-1].Addr().As4()
		if last[2] < 254 {
			last[2]++
			if p := netip.PrefixFrom(netip.AddrFrom4(last), 24); p.Addr().IsPrivate() && !a.taken(p) {
				return p, true
			}
		}
	}
	fresh, ok := takeBlock(1, a.taken)
	if !ok {
		return netip.Prefix{}, false
	}
	return fresh[0], true
}

// noteApart notes which cabled nodes share no subnet, which happens where different twins are
// missing.
func (a *allocator) noteApart() {
	for _, r := range a.next.Rails {
		for i, x := range r.Ports {
			for _, y := range r.Ports[i+1:] {
				if !a.live(x.End) || !a.live(y.End) {
					continue
				}
				joined := slices.ContainsFunc(a.liveTwins(x), func(t RailTwin) bool {
					return slices.ContainsFunc(a.liveTwins(y), func(o RailTwin) bool { return o.Lane == t.Lane })
				})
				if !joined {
					a.notes = append(a.notes,
						fmt.Sprintf("no subnet joins %s and %s: each lacks the twin the other has", a.portName(x.End), a.portName(y.End)))
				}
			}
		}
	}
}

func (a *allocator) noteUncabled() {
	for _, r := range a.next.Rails {
		for _, s := range r.Ports {
			if _, member := a.ports[s.End]; member && !a.live(s.End) {
				a.notes = append(a.notes, fmt.Sprintf("%s reaches nobody now; it keeps its addresses", a.portName(s.End)))
			}
		}
	}
}

func (a *allocator) live(e End) bool { _, ok := a.placed[e]; return ok }

func (a *allocator) liveTwins(s RailPort) []RailTwin {
	var out []RailTwin
	for _, t := range s.Twins {
		if slices.ContainsFunc(a.ports[s.End].Twins, func(twin Twin) bool { return twin.key() == t.Key }) {
			out = append(out, t)
		}
	}
	return out
}

func (a *allocator) portName(e End) string {
	return fmt.Sprintf("port %s of %s", a.ports[e].name(), a.nodes[e.Node].Host)
}

func (p Port) name() string {
	if p.Number != nil {
		return strconv.Itoa(*p.Number)
	}
	return p.Slot
}

// links returns the links' ends in an order that does not depend on the input's: by node number, then port.
func (a *allocator) links() [][]End {
	var out [][]End
	for _, l := range a.in.Links {
		ends := slices.Clone(l.Ends)
		slices.SortStableFunc(ends, a.compareEnds)
		out = append(out, ends)
	}
	slices.SortStableFunc(out, func(x, y []End) int { return a.compareEnds(x[0], y[0]) })
	return out
}

func (a *allocator) compareEnds(x, y End) int {
	return cmp.Or(cmp.Compare(a.next.Numbers[x.Node], a.next.Numbers[y.Node]), comparePorts(a.ports[x], a.ports[y]))
}

func comparePorts(x, y Port) int {
	if x.Number != nil && y.Number != nil && *x.Number != *y.Number {
		return cmp.Compare(*x.Number, *y.Number)
	}
	if (x.Number == nil) != (y.Number == nil) {
		if x.Number != nil {
			return -1
		}
		return 1
	}
	return cmp.Compare(x.Slot, y.Slot)
}

// lanes is the number of subnets the ports of a link need.
func (a *allocator) lanes(ends []End) int {
	n := 1
	for _, e := range ends {
		n = max(n, len(a.ports[e].Twins))
	}
	return n
}

// railsOf is the largest number of ports of one node among ends, which are sorted by node.
func railsOf(ends []End) int {
	most, run := 1, 1
	for i := 1; i < len(ends); i++ {
		if ends[i].Node == ends[i-1].Node {
			run++
		} else {
			run = 1
		}
		most = max(most, run)
	}
	return most
}

// compareNatural orders host names as people do: spark2 before spark10.
func compareNatural(x, y string) int {
	for x != "" && y != "" {
		dx, rx := leadingDigits(x)
		dy, ry := leadingDigits(y)
		if dx != "" && dy != "" {
			tx, ty := strings.TrimLeft(dx, "0"), strings.TrimLeft(dy, "0")
			if c := cmp.Or(cmp.Compare(len(tx), len(ty)), cmp.Compare(tx, ty)); c != 0 {
				return c
			}
			x, y = rx, ry
			continue
		}
		if x[0] != y[0] {
			return cmp.Compare(x[0], y[0])
		}
		x, y = x[1:], y[1:]
	}
	return cmp.Compare(len(x), len(y))
}

func leadingDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i], s[i:]
}
