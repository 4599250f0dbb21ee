package topology

import (
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
)

// Sizes of the picture in pixels.
const (
	boxWidthPx  = 330
	headPx      = 34 // a box's head with the host's name
	portPx      = 58 // a port's part of a box
	marginPx    = 40
	sideGapPx   = 250 // between boxes that a cable joins side by side: room for its label
	plainGapPx  = 40
	rowGapPx    = 46
	turnGapPx   = 78  // between rows of a loop: room for the labels of cables that turn there
	turnPx      = 36  // how far such a cable stands out
	turnRoomPx  = 104 // its label with it
	closeRoomPx = 60  // beyond that, for the cable that closes a loop around its boxes
	railPx      = 34  // between two rails under a row
	perRow      = 4   // boxes in a row where nothing else decides
	twoRowsUpTo = 8   // larger rings wind through rows of perRow
)

// side is the edge of a box at which a port's socket is drawn.
type side int

const (
	sideLeft side = iota
	sideRight
	sideBottom
)

// nodeBox is a node's box in the picture.
type nodeBox struct {
	node    envgen.TopologyNode
	x, y, h int
	row     int             // of the picture
	turn    int             // of the group: in odd rows the loop runs from right to left
	sockets map[string]side // by slot
}

// sheet is the laid-out picture: boxes in rows, links that run from side to side, and links that run under the rows
// as rails.
type sheet struct {
	t     envgen.Topology
	boxes map[string]*nodeBox
	rows  [][]*nodeBox
	// direct are indices of the links drawn from box to box. closing are those of them that lead from the last box
	// of a group around the others to its first.
	direct  []int
	closing map[int]bool
	// rails are the links drawn under each row, by row.
	rails         [][]int
	trunks        []int // links with rails under several rows, joined at the left
	left          int   // where boxes begin
	width, height int
	bottom        []int    // of each row's boxes
	away          []string // ids of nodes
}

// arrange lays out the picture.
func arrange(t envgen.Topology) *sheet {
	s := &sheet{t: t, boxes: map[string]*nodeBox{}, closing: map[int]bool{}}
	var singles []*nodeBox
	type block struct {
		rows [][]*nodeBox
		gap  int
	}
	var blocks []block
	for _, g := range t.Groups {
		var boxes []*nodeBox
		for _, id := range g.Nodes {
			n, _ := t.Node(id)
			f := &nodeBox{node: n, h: headPx + max(1, len(n.Ports))*portPx, sockets: map[string]side{}}
			s.boxes[id] = f
			boxes = append(boxes, f)
		}
		switch {
		case len(boxes) == 1:
			singles = append(singles, boxes...)
		case s.isLoop(g):
			blocks = append(blocks, block{loopRows(g.Shape, boxes), sideGapPx})
		default:
			blocks = append(blocks, block{slices.Collect(slices.Chunk(boxes, perRow)), plainGapPx})
		}
	}
	if len(singles) > 0 {
		blocks = append(blocks, block{slices.Collect(slices.Chunk(singles, perRow)), plainGapPx})
	}
	s.chooseDirect()
	var gaps []int
	for _, b := range blocks {
		for i, row := range b.rows {
			for _, f := range row {
				f.row, f.turn = len(s.rows), i
			}
			s.rows = append(s.rows, row)
			gaps = append(gaps, b.gap)
		}
	}
	s.chooseRails()
	s.left = marginPx + 26*len(s.trunks)
	if len(s.closing) > 0 || s.wrapsLeft() {
		s.left += turnRoomPx
	}
	if len(s.closing) > 0 {
		s.left += closeRoomPx
	}
	s.place(gaps)
	return s
}

// isLoop reports whether a group is drawn with its boxes side by side and cables between them.
func (s *sheet) isLoop(g envgen.Group) bool {
	switch g.Shape {
	case envgen.ShapePair, envgen.ShapeRing, envgen.ShapeChain:
		return true
	case envgen.ShapeMixed:
		return len(g.Nodes) == 2 && !slices.ContainsFunc(s.t.Links, func(l envgen.Link) bool {
			return l.Switched && l.Role == envgen.RoleFabric && slices.Contains(g.Nodes, l.Ends[0].Node)
		})
	}
	return false
}

// loopRows lays a pair, ring or chain out in rows: every second row runs from right to left. A small ring has two
// rows, the lower one leading back.
func loopRows(shape envgen.Shape, boxes []*nodeBox) [][]*nodeBox {
	n := len(boxes)
	size := perRow
	switch {
	case shape == envgen.ShapeRing && n <= twoRowsUpTo:
		size = (n + 1) / 2
	case n <= perRow:
		size = n
	}
	rows := slices.Collect(slices.Chunk(boxes, size))
	for i := range rows {
		rows[i] = slices.Clone(rows[i])
		if i%2 == 1 {
			slices.Reverse(rows[i])
		}
	}
	return rows
}

// chooseDirect picks the links that run between neighbours of a loop, and the sides of their sockets.
func (s *sheet) chooseDirect() {
	for i, l := range s.t.Links {
		if l.Switched || len(l.Ends) != 2 || l.Role != envgen.RoleFabric || l.Ends[0].Node == l.Ends[1].Node {
			continue
		}
		for _, g := range s.t.Groups {
			if !s.isLoop(g) {
				continue
			}
			a, b := slices.Index(g.Nodes, l.Ends[0].Node), slices.Index(g.Nodes, l.Ends[1].Node)
			n := len(g.Nodes)
			if a < 0 || b < 0 || abs(a-b) != 1 && abs(a-b) != n-1 {
				continue
			}
			s.direct = append(s.direct, i)
			if n > 2 && abs(a-b) == n-1 && !(g.Shape == envgen.ShapeRing && n <= twoRowsUpTo) {
				s.closing[i] = true
			}
		}
	}
}

func abs(n int) int { return max(n, -n) }

// chooseRails gives all other links a rail under each row that has an end of theirs.
func (s *sheet) chooseRails() {
	s.rails = make([][]int, len(s.rows))
	for i, l := range s.t.Links {
		if slices.Contains(s.direct, i) {
			continue
		}
		var rows []int
		for _, e := range s.railed(l) {
			if r := s.boxes[e.Node].row; !slices.Contains(rows, r) {
				rows = append(rows, r)
			}
		}
		for _, r := range rows {
			s.rails[r] = append(s.rails[r], i)
		}
		if len(rows) > 1 {
			s.trunks = append(s.trunks, i)
		}
	}
}

// railed are the ends of a link that a rail of it is drawn to: not those that are on the same switch by a live link.
func (s *sheet) railed(l envgen.Link) []envgen.PortEnd {
	if l.Up || !l.Switched {
		return l.Ends
	}
	return slices.DeleteFunc(slices.Clone(l.Ends), func(e envgen.PortEnd) bool {
		return slices.ContainsFunc(s.t.Links, func(other envgen.Link) bool { return other.Up && slices.Contains(other.Ends, e) })
	})
}

// wrapsLeft reports whether a cable runs around the left side, from row to row.
func (s *sheet) wrapsLeft() bool {
	return slices.ContainsFunc(s.direct, func(i int) bool {
		e := s.t.Links[i].Ends
		return s.boxes[e[0].Node].row != s.boxes[e[1].Node].row
	})
}

// place sets coordinates and the sides of all sockets.
func (s *sheet) place(gaps []int) {
	widest := 0
	for i, row := range s.rows {
		widest = max(widest, len(row)*boxWidthPx+(len(row)-1)*gaps[i])
	}
	y := marginPx + 50
	for i, row := range s.rows {
		width := len(row)*boxWidthPx + (len(row)-1)*gaps[i]
		x := s.left + (widest-width)/2 // a shorter row is centred, as the third of a ring is
		if gaps[i] == plainGapPx {
			x = s.left
		}
		tallest := 0
		for _, f := range row {
			f.x, f.y = x, y
			x += boxWidthPx + gaps[i]
			tallest = max(tallest, f.h)
		}
		s.bottom = append(s.bottom, y+tallest)
		y += tallest + rowGapPx
		if gaps[i] == sideGapPx && i+1 < len(s.rows) && gaps[i+1] == sideGapPx {
			y += turnGapPx - rowGapPx
		}
		if n := len(s.rails[i]); n > 0 {
			y += n*railPx + 14
		}
	}
	right := 0
	if s.wrapsLeft() {
		right = turnRoomPx
	}
	if len(s.closing) > 0 {
		right += 20
		y += 24
	}
	s.width, s.height = max(s.left+widest+right+marginPx, 640), y
	for _, i := range s.direct {
		e := s.t.Links[i].Ends
		a, b := s.boxes[e[0].Node], s.boxes[e[1].Node]
		a.sockets[e[0].Slot], b.sockets[e[1].Slot] = s.sides(i, a, b)
	}
	for _, f := range s.boxes {
		s.restSockets(f)
	}
}

// sides are those of a direct link: facing each other in one row, else both on the side where the rows turn.
func (s *sheet) sides(link int, a, b *nodeBox) (side, side) {
	switch {
	case s.closing[link] && a.row == b.row: // a chain's ends in one row
		if a.x < b.x {
			return sideLeft, sideRight
		}
		return sideRight, sideLeft
	case a.row == b.row && a.x < b.x:
		return sideRight, sideLeft
	case a.row == b.row:
		return sideLeft, sideRight
	case s.closing[link]:
		return s.outward(a), s.outward(b)
	case max(a.turn, b.turn)%2 == 1 && !s.turnsLeft(a, b):
		return sideRight, sideRight
	}
	return sideLeft, sideLeft
}

// outward is the side of its row on which an end box stands.
func (s *sheet) outward(f *nodeBox) side {
	if f == s.rows[f.row][0] {
		return sideLeft
	}
	return sideRight
}

// turnsLeft reports whether two boxes of neighbouring rows meet at the left: both are the first of their rows, and
// a row of several boxes begins there.
func (s *sheet) turnsLeft(a, b *nodeBox) bool {
	top, low := s.rows[min(a.row, b.row)], s.rows[max(a.row, b.row)]
	return (a == top[0] || b == top[0]) && (a == low[0] || b == low[0]) && len(top) > 1
}

// restSockets gives the ports without a direct link a side: the bottom where a rail leads there, else the side
// of the node's other sockets.
func (s *sheet) restSockets(f *nodeBox) {
	used := map[side]int{}
	for _, at := range f.sockets {
		used[at]++
	}
	spare := sideRight
	switch {
	case used[sideRight] == 0 && used[sideLeft] > 0:
		spare = sideLeft
	case used[sideRight] > 0 && used[sideLeft] == 0 && len(f.node.Ports) == 2 && s.t.Shape == envgen.ShapeRing:
		spare = sideLeft
	}
	for _, p := range f.node.Ports {
		if _, done := f.sockets[p.Slot]; done {
			continue
		}
		railed := slices.ContainsFunc(s.rails[f.row], func(i int) bool {
			return slices.Contains(s.railed(s.t.Links[i]), envgen.PortEnd{Node: f.node.ID, Slot: p.Slot})
		})
		f.sockets[p.Slot] = spare
		if railed || len(s.rails[f.row]) > 0 && len(used) == 0 {
			f.sockets[p.Slot] = sideBottom
		}
	}
}

type point struct{ x, y int }

// socketAt is where a port's cable leaves its box.
func (f *nodeBox) socketAt(slot string) point {
	for i, p := range f.node.Ports {
		if p.Slot != slot {
			continue
		}
		y := f.y + headPx + i*portPx + portPx/2
		switch f.sockets[slot] {
		case sideLeft:
			return point{f.x, y}
		case sideRight:
			return point{f.x + boxWidthPx, y}
		}
		return point{f.x + (2*i+1)*boxWidthPx/(2*len(f.node.Ports)), f.y + f.h}
	}
	return point{f.x, f.y}
}
