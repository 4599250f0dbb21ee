package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// mapRow is one line of the drawing: inside a box, or between two.
type mapRow struct {
	text string
	// frame is 't' or 'b' for a box's top and bottom, 'm' for a line in it, ' ' for a line between boxes.
	frame rune
	// end is the port whose cable leaves the box here; nil on other lines.
	end *envgen.PortEnd
}

// wire is a link's place in the gutter at the right of the boxes.
type wire struct {
	link        int
	rows        []int // those of its ends, in order
	column      int
	first, last int
}

// minBox is the narrowest box in columns, frame included: enough for a port and a device.
const minBox = 24

// Map draws the cabling for a terminal of that many columns: the nodes as boxes in rank order, their ports with
// the twins' devices and addresses, and each link as a line at the right with a letter, explained below with its
// speed and subnets. Double lines are switches, broken ones cables without a link. Ports with a finding are
// marked: ✗ error, ! warning. Boxes are cut where width is short; nothing is wider.
func Map(t envgen.Topology, width int) string {
	if len(t.Nodes) == 0 {
		return "no nodes\n"
	}
	rows := mapRows(t, true)
	wires, columns := lay(t, rows)
	gutter := 0
	if columns > 0 {
		gutter = 2*columns + 1
	}
	if boxWidth(rows) > width-gutter {
		rows = mapRows(t, false)
	}
	box := max(minBox, min(boxWidth(rows), width-gutter))
	var b strings.Builder
	for _, line := range wrap(fmt.Sprintf("%s: %s", t.Shape, plain.Line(t.Why)), width, "") {
		b.WriteString(line + "\n")
	}
	b.WriteString("\n")
	for i, r := range rows {
		line := frameRow(r, box, slices.ContainsFunc(wires, func(w wire) bool { return slices.Contains(w.rows, i) }))
		b.WriteString(strings.TrimRight(line+gutterRow(t, wires, columns, i, rows), " ") + "\n")
	}
	legend(&b, t, width)
	return b.String()
}

// boxWidth is the width that holds every row uncut.
func boxWidth(rows []mapRow) int {
	box := minBox
	for _, r := range rows {
		box = max(box, utf8.RuneCountInString(r.text)+4)
	}
	return box
}

// mapRows writes the contents of the boxes, without their frames; it leaves out roles where width is
// short.
func mapRows(t envgen.Topology, roles bool) []mapRow {
	marks := portMarks(t)
	deviceWidth := 0
	for _, n := range t.Nodes {
		for _, p := range n.Ports {
			for _, d := range p.Devices {
				deviceWidth = max(deviceWidth, utf8.RuneCountInString(plain.Line(d.HCA)))
			}
		}
	}
	var rows []mapRow
	for i, id := range t.Order {
		n, _ := t.Node(id)
		if i > 0 {
			rows = append(rows, mapRow{frame: ' '})
		}
		where := ""
		if n.Mgmt.IsValid() {
			where = n.Mgmt.String()
			if n.MgmtNIC != "" {
				where += " " + plain.Line(n.MgmtNIC)
			}
		}
		rows = append(rows, mapRow{text: plain.Line(n.Host) + "\x00" + where, frame: 't'})
		for _, p := range n.Ports {
			end := envgen.PortEnd{Node: n.ID, Slot: p.Slot}
			socket := "□"
			if p.Live {
				socket = "■"
			}
			head := fmt.Sprintf("%s%s %-7s ", marks[end], socket, portName(n, p))
			if roles {
				head += fmt.Sprintf("%-6s ", p.Role)
			}
			for j, d := range p.Devices {
				line := fmt.Sprintf("%s%-*s  %s", head, deviceWidth, plain.Line(d.HCA), deviceWords(d))
				row := mapRow{text: strings.TrimRight(line, " "), frame: 'm'}
				if j == 0 {
					row.end = &end
				}
				rows = append(rows, row)
				head = strings.Repeat(" ", utf8.RuneCountInString(head))
			}
		}
		if len(n.Ports) == 0 {
			rows = append(rows, mapRow{text: "  no RDMA device", frame: 'm'})
		}
		rows = append(rows, mapRow{frame: 'b'})
	}
	return rows
}

// portName is "port 0", or the slot where the node has several ports of one number.
func portName(n envgen.TopologyNode, p envgen.PortState) string {
	return plain.Line(envgen.PortName(n.Ports, p))
}

// deviceWords describes a device as far as its row has room.
func deviceWords(d envgen.DeviceState) string {
	switch {
	case d.NIC == "":
		return "no interface"
	case !d.Up:
		return "set down"
	case d.Carrier == nil || !*d.Carrier:
		return "no link"
	case d.State != envgen.StateActive:
		return plain.Line(strings.ToLower(d.State))
	case len(d.Addresses) == 0:
		return "no address"
	}
	var words []string
	for _, a := range d.Addresses {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

// portMarks give each port the mark of its worst finding.
func portMarks(t envgen.Topology) map[envgen.PortEnd]string {
	marks := map[envgen.PortEnd]string{}
	for _, n := range t.Nodes {
		for _, p := range n.Ports {
			marks[envgen.PortEnd{Node: n.ID, Slot: p.Slot}] = " "
		}
	}
	for _, f := range slices.Backward(t.Findings) { // worst first, so backwards the worst is written last
		if mark := severityMark(f.Severity); mark != " " {
			marks[envgen.PortEnd{Node: f.Node, Slot: f.Port}] = mark
		}
	}
	return marks
}

func severityMark(s envgen.Severity) string {
	switch s {
	case envgen.SeverityError:
		return "✗"
	case envgen.SeverityWarning:
		return "!"
	}
	return " "
}

// lay gives each link a column: short links first and close to the boxes, so that few lines
// cross.
func lay(t envgen.Topology, rows []mapRow) (wires []wire, columns int) {
	at := map[envgen.PortEnd]int{}
	for i, r := range rows {
		if r.end != nil {
			at[*r.end] = i
		}
	}
	for i, l := range t.Links {
		w := wire{link: i}
		for _, e := range l.Ends {
			w.rows = append(w.rows, at[e])
		}
		slices.Sort(w.rows)
		w.first, w.last = w.rows[0], w.rows[len(w.rows)-1]
		wires = append(wires, w)
	}
	slices.SortStableFunc(wires, func(a, b wire) int { return cmp.Compare(a.last-a.first, b.last-b.first) })
	for i := range wires {
		w := &wires[i]
		for taken := true; taken; {
			taken = slices.ContainsFunc(wires[:i], func(o wire) bool {
				return o.column == w.column && o.first <= w.last && w.first <= o.last
			})
			if taken {
				w.column++
			}
		}
		columns = max(columns, w.column+1)
	}
	return wires, columns
}

// frameRow puts a row into its box; joined rows have a cable leaving at the right edge.
func frameRow(r mapRow, box int, joined bool) string {
	inner := box - 4
	switch r.frame {
	case 't':
		host, where, _ := strings.Cut(r.text, "\x00")
		host = cut(host, inner)
		room := box - 4 - utf8.RuneCountInString(host)
		if where = cut(where, room-3); where == "" || room < 6 {
			return "┌ " + host + " " + strings.Repeat("─", room) + "┐"
		}
		return "┌ " + host + " " + strings.Repeat("─", room-2-utf8.RuneCountInString(where)) + " " + where + " ┐"
	case 'b':
		return "└" + strings.Repeat("─", box-2) + "┘"
	case ' ':
		return strings.Repeat(" ", box)
	}
	text := cut(r.text, inner)
	edge := "│"
	if joined {
		edge = "├"
	}
	return "│ " + text + strings.Repeat(" ", inner-utf8.RuneCountInString(text)) + " " + edge
}

// gutterRow draws one row of the wires: each column is two cells, a stretch of run and the wire.
func gutterRow(t envgen.Topology, wires []wire, columns, row int, rows []mapRow) string {
	reach := -1 // the farthest column a run of this row goes to
	dead := false
	for _, w := range wires {
		if slices.Contains(w.rows, row) && w.column > reach {
			reach, dead = w.column, !t.Links[w.link].Up
		}
	}
	run := "─"
	if dead {
		run = "╌"
	}
	var b strings.Builder
	for c := range columns {
		w := wireAt(wires, c, row)
		cell := " "
		if c < reach {
			cell = run
		}
		if w != nil {
			cell = wireCell(t.Links[w.link], *w, row, c < reach)
			if row == labelRow(*w, rows) {
				cell = linkLetter(w.link)
			}
		}
		stretch := " "
		if c <= reach {
			stretch = run
		}
		b.WriteString(stretch + cell)
	}
	return b.String()
}

func wireAt(wires []wire, column, row int) *wire {
	for i := range wires {
		if wires[i].column == column && wires[i].first <= row && row <= wires[i].last {
			return &wires[i]
		}
	}
	return nil
}

// wireCell is the part of a wire in one row: a corner or a joint at its ends, else a straight part, crossed or
// not.
func wireCell(l envgen.Link, w wire, row int, crossed bool) string {
	ends := slices.Contains(w.rows, row)
	set := "╮┤╯│┼" // first end, middle end, last end, stretch, crossed
	switch {
	case l.Switched:
		set = "╖╢╜║╫"
	case !l.Up:
		set = "╮┤╯┆┼"
	}
	pieces := []rune(set)
	switch {
	case crossed:
		return string(pieces[4])
	case !ends:
		return string(pieces[3])
	case row == w.first:
		return string(pieces[0])
	case row == w.last:
		return string(pieces[2])
	}
	return string(pieces[1])
}

// labelRow is the row of a wire's letter: between two boxes if the wire passes there, else its first free row; -1
// where there is none.
func labelRow(w wire, rows []mapRow) int {
	free := -1
	for i := w.first + 1; i < w.last; i++ {
		if rows[i].end != nil {
			continue
		}
		if rows[i].frame == ' ' {
			return i
		}
		if free < 0 {
			free = i
		}
	}
	return free
}

// linkLetter names links a to z, then by the last digits of their number.
func linkLetter(i int) string {
	if i < 26 {
		return string(rune('a' + i))
	}
	return string(rune('0' + i%10))
}

func linkLabel(i int) string {
	if i < 26 {
		return linkLetter(i)
	}
	return fmt.Sprint(i)
}

// legend describes each link and each finding.
func legend(b *strings.Builder, t envgen.Topology, width int) {
	if len(t.Links) > 0 {
		b.WriteString("\n")
	}
	for i, l := range t.Links {
		head := fmt.Sprintf("%-3s", linkLabel(i))
		for _, line := range wrap(head+linkWords(t, i, l), width, "   ") {
			b.WriteString(line + "\n")
		}
	}
	first := true
	for _, f := range t.Findings {
		mark := severityMark(f.Severity)
		if mark == " " {
			continue
		}
		if first {
			b.WriteString("\n")
			first = false
		}
		for _, line := range wrap(fmt.Sprintf("%s %s: %s", mark, f.Code, plain.Line(f.Text)), width, "  ") {
			b.WriteString(line + "\n")
		}
	}
}

// linkWords describes a link in a line: speed, kind, ends, subnets.
func linkWords(t envgen.Topology, index int, l envgen.Link) string {
	text := speedWords(l) + " " + linkKind(l) + ": " + linkEnds(t, l)
	if subnets := linkSubnets(t, index); len(subnets) > 0 {
		text += " (" + strings.Join(subnets, ", ") + ")"
	}
	return text
}

// linkEnds names a link's ports: two with a dash between them, more as a list.
func linkEnds(t envgen.Topology, l envgen.Link) string {
	var ends []string
	for _, e := range l.Ends {
		n, _ := t.Node(e.Node)
		p, _ := n.Port(e.Slot)
		ends = append(ends, plain.Line(n.Host)+" "+portName(n, p))
	}
	if len(ends) > 2 {
		return strings.Join(ends, ", ")
	}
	return strings.Join(ends, " - ")
}

func speedWords(l envgen.Link) string {
	switch {
	case !l.Up:
		return "dead"
	case l.SpeedMbps == nil:
		return "? Gb/s"
	}
	return fmt.Sprintf("%d Gb/s", *l.SpeedMbps/1000)
}

func linkKind(l envgen.Link) string {
	kind := "cable"
	switch {
	case l.Via != "":
		kind = "switch " + plain.Line(l.Via)
	case l.Switched:
		kind = "switch"
	}
	if l.Role == envgen.RoleLAN {
		kind = "LAN " + kind
	}
	if l.Role == envgen.RoleUnused {
		kind = "unused " + kind
	}
	if !l.Seen {
		kind += " by address"
	}
	return kind
}

func linkSubnets(t envgen.Topology, index int) []string {
	var subnets []string
	for _, l := range t.Lanes {
		if l.Link == index {
			subnets = append(subnets, l.Subnet.String())
		}
	}
	return subnets
}

// cut shortens a line to that many columns.
func cut(text string, width int) string {
	runes := []rune(text)
	switch {
	case len(runes) <= width:
		return text
	case width < 1:
		return ""
	}
	return string(runes[:width-1]) + "…"
}

// wrap breaks a text at spaces; lines after the first are indented. A word longer than a line is cut.
func wrap(text string, width int, indent string) []string {
	width = max(width, minBox)
	var lines []string
	line := ""
	for _, word := range strings.Split(text, " ") {
		next := line + " " + word
		if line == "" {
			next = word
		}
		if line != "" && utf8.RuneCountInString(next) > width {
			lines = append(lines, line)
			next = indent + word
		}
		line = next
	}
	lines = append(lines, line)
	for i := range lines {
		lines[i] = cut(strings.TrimRight(lines[i], " "), width)
	}
	return lines
}
