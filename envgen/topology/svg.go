package topology

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// The colours of the picture, chosen so that they differ in grey too.
const (
	colourInk    = "#1f2933"
	colourFaint  = "#7b8794"
	colourLine   = "#cbd2d9"
	colourGood   = "#2f855a"
	colourLAN    = "#4c6fae"
	colourIdle   = "#9aa5b1"
	colourWarn   = "#c77700"
	colourBad    = "#c53030"
	colourPaper  = "#ffffff"
	colourGround = "#f5f7fa"
)

const (
	fontSans = "DejaVu Sans, Verdana, Arial, sans-serif"
	fontMono = "DejaVu Sans Mono, Menlo, Consolas, monospace"
)

// canvas writes SVG elements.
type canvas struct{ b strings.Builder }

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(&c.b, format+"\n", args...) }

// escape makes text from other machines fit for XML.
func escape(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'",
		"&#39;").Replace(plain.Line(text))
}

func (c *canvas) text(x, y int, anchor, font string, size int, colour, weight, text string) {
	c.add(`<text x="%d" y="%d" text-anchor="%s" font-family="%s" font-size="%d" fill="%s" font-weight="%s">%s</text>`,
		x, y, anchor, font, size, colour, weight, escape(text))
}

// SVG draws the cabling as a picture: nodes as boxes with their ports and the twins of each, cables as lines from
// port to port and switches as bars, with speed, subnets and state. Findings are marked at their places and
// listed below; nodes that are away are pale. The picture needs no other file.
func SVG(t envgen.Topology, away ...string) []byte {
	s := arrange(t)
	s.away = away
	var body canvas
	body.text(s.left, marginPx+4, "start", fontSans, 20, colourInk, "bold", string(t.Shape))
	y := marginPx + 24
	for _, line := range wrap(plain.Line(t.Why), (s.width-s.left-marginPx)/7, "") {
		body.text(s.left, y, "start", fontSans, 12, colourFaint, "normal", line)
		y += 16
	}
	for row, links := range s.rails {
		for i, link := range links {
			s.drawRail(&body, row, i, link)
		}
	}
	s.drawTrunks(&body)
	for _, link := range s.direct {
		s.drawDirect(&body, link)
	}
	for _, row := range s.rows {
		for _, f := range row {
			s.drawBox(&body, f)
		}
	}
	for _, link := range s.direct {
		s.labelDirect(&body, link)
	}
	height := s.drawFindings(&body, s.height)
	var page canvas
	page.add(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">`, s.width, height,
		s.width, height)
	page.add(`<rect width="%d" height="%d" fill="%s"/>`, s.width, height, colourGround)
	page.b.WriteString(body.b.String())
	page.add(`</svg>`)
	return []byte(page.b.String())
}

// findingsAt are the findings about a port; an empty slot means those about the node as a whole.
func (s *sheet) findingsAt(node, slot string) []envgen.Finding {
	var found []envgen.Finding
	for _, f := range s.t.Findings {
		if f.Node == node && f.Port == slot && f.Severity != envgen.SeverityInfo {
			found = append(found, f)
		}
	}
	return found
}

func severityColour(s envgen.Severity) string {
	switch s {
	case envgen.SeverityError:
		return colourBad
	case envgen.SeverityWarning:
		return colourWarn
	}
	return colourFaint
}

// badge is a disc with the mark of the worst finding, and the findings' texts as a tooltip.
func (c *canvas) badge(x, y int, findings []envgen.Finding) {
	if len(findings) == 0 {
		return
	}
	var texts []string
	for _, f := range findings {
		texts = append(texts, string(f.Severity)+" "+f.Code+": "+f.Text)
	}
	mark := "!"
	if findings[0].Severity == envgen.SeverityError {
		mark = "×"
	}
	c.add(`<g><title>%s</title><circle cx="%d" cy="%d" r="8" fill="%s"/>`, escape(strings.Join(texts, "; ")), x, y,
		severityColour(findings[0].Severity))
	c.text(x, y+5, "middle", fontSans, 13, colourPaper, "bold", mark)
	c.add(`</g>`)
}

func (s *sheet) drawBox(c *canvas, f *nodeBox) {
	n := f.node
	away := slices.Contains(s.away, n.ID)
	if away {
		c.add(`<g opacity="0.35">`)
		defer c.add(`</g>`)
	}
	c.add(`<rect x="%d" y="%d" width="%d" height="%d" rx="8" fill="%s" stroke="%s" stroke-width="1.5"/>`,
		f.x, f.y, boxWidthPx, f.h, colourPaper, colourInk)
	c.add(`<path d="M%d %d v-%d q0 -8 8 -8 h%d q8 0 8 8 v%d z" fill="%s"/>`, f.x, f.y+headPx, headPx-8, boxWidthPx-16,
		headPx-8, colourInk)
	where := "no management address"
	if n.Mgmt.IsValid() {
		where = strings.TrimSpace(n.Mgmt.String() + " " + n.MgmtNIC)
	}
	if away {
		where = "away: as it was last"
	}
	problems := s.findingsAt(n.ID, "")
	right := f.x + boxWidthPx - 12
	if len(problems) > 0 {
		c.badge(right-6, f.y+headPx/2, problems)
		right -= 24
	}
	room := (right - f.x - 12) / 8
	host := cut(plain.Line(n.Host), max(room-utf8.RuneCountInString(where)*6/8-2, 8))
	c.text(f.x+12, f.y+23, "start", fontSans, 15, colourPaper, "bold", host)
	c.text(right, f.y+22, "end", fontMono, 10, colourLine, "normal", where)
	if len(n.Ports) == 0 {
		c.text(f.x+boxWidthPx/2, f.y+headPx+portPx/2+4, "middle", fontSans, 12, colourFaint, "normal", "no RDMA device")
	}
	for i, p := range n.Ports {
		s.drawPort(c, f, i, p)
	}
}

// drawPort writes one port's part of a box and its socket at the edge.
func (s *sheet) drawPort(c *canvas, f *nodeBox, i int, p envgen.PortState) {
	top := f.y + headPx + i*portPx
	if i > 0 {
		c.add(`<path d="M%d %d h%d" stroke="%s"/>`, f.x+1, top, boxWidthPx-2, colourLine)
	}
	colour := portColour(p)
	at := f.socketAt(p.Slot)
	socketW, socketH := 14, 26
	if f.sockets[p.Slot] == sideBottom {
		socketW, socketH = socketH, socketW
	}
	fill := colour
	if !p.Live {
		fill = colourPaper
	}
	c.add(`<g><title>%s: %s</title><rect x="%d" y="%d" width="%d" height="%d" rx="3" fill="%s" stroke="%s" stroke-width="2"/></g>`,
		escape(portName(f.node, p)), escape(p.Why), at.x-socketW/2, at.y-socketH/2, socketW, socketH, fill, colour)
	c.text(f.x+22, top+24, "start", fontSans, 12, colourInk, "bold", portName(f.node, p))
	c.text(f.x+22, top+41, "start", fontSans, 11, colour, "normal", string(p.Role))
	problems := s.findingsAt(f.node.ID, p.Slot)
	c.badge(f.x+boxWidthPx-20, top+15, problems)
	for j, d := range p.Devices {
		if j > 1 {
			break // no known socket has more
		}
		ink := colourInk
		if d.State != envgen.StateActive {
			ink = colourIdle
		}
		for _, q := range problems {
			if q.Device != "" && (q.Device == d.HCA || q.Device == d.NIC) {
				ink = severityColour(q.Severity)
				break
			}
		}
		c.text(f.x+84, top+24+17*j, "start", fontMono, 11, ink, "normal", cut(plain.Line(d.HCA), 13))
		c.text(f.x+180, top+24+17*j, "start", fontMono, 11, ink, "normal", cut(deviceWords(d), 18))
	}
}

func portColour(p envgen.PortState) string {
	switch {
	case p.Role == envgen.RoleLAN:
		return colourLAN
	case p.Role == envgen.RoleFabric:
		return colourGood
	}
	return colourIdle
}

// linkColour says whether a link works: red without a link or with an error at a port, amber where it carries no
// subnet or a port has a warning.
func (s *sheet) linkColour(i int) string {
	l := s.t.Links[i]
	switch {
	case !l.Up:
		return colourBad
	case l.Role == envgen.RoleLAN:
		return colourLAN
	case l.Role != envgen.RoleFabric:
		return colourIdle
	}
	colour := colourGood
	if len(linkSubnets(s.t, i)) == 0 {
		colour = colourWarn
	}
	for _, e := range l.Ends {
		// One bad port does not make a switch bad.
		if found := s.findingsAt(e.Node, e.Slot); len(found) > 0 && !l.Switched {
			if found[0].Severity == envgen.SeverityError {
				return colourBad
			}
			colour = colourWarn
		}
	}
	return colour
}

func (s *sheet) stroke(i int) string {
	dash := ""
	if !s.t.Links[i].Up {
		dash = ` stroke-dasharray="7 6"`
	}
	return fmt.Sprintf(`fill="none" stroke="%s" stroke-width="5" stroke-linecap="round"%s`, s.linkColour(i), dash)
}

// ends are where a direct link begins and ends, and on which sides.
func (s *sheet) ends(i int) (a, b point, sideA, sideB side) {
	e := s.t.Links[i].Ends
	f, g := s.boxes[e[0].Node], s.boxes[e[1].Node]
	return f.socketAt(e[0].Slot), g.socketAt(e[1].Slot), f.sockets[e[0].Slot], g.sockets[e[1].Slot]
}

func (s *sheet) drawDirect(c *canvas, i int) {
	a, b, sideA, sideB := s.ends(i)
	switch {
	case s.closing[i]:
		s.drawClosing(c, i, a, b, sideA, sideB)
	case sideA == sideB:
		x, out := s.turnX(a, b, sideA), 12
		if sideA == sideLeft {
			out = -12
		}
		if b.y < a.y {
			a, b = b, a
		}
		c.add(`<path d="M%d %d H%d q%d 0 %d 12 V%d q0 12 %d 12 H%d" %s/>`, a.x, a.y, x-out, out, out, b.y-12, -out,
			b.x, s.stroke(i))
	default:
		if b.x < a.x {
			a, b = b, a
		}
		reach := max((b.x-a.x)/2, 40)
		c.add(`<path d="M%d %d C%d %d %d %d %d %d" %s/>`, a.x, a.y, a.x+reach, a.y, b.x-reach, b.y, b.x, b.y, s.stroke(i))
	}
}

// turnX is where a cable from row to row runs: outside of both boxes.
func (s *sheet) turnX(a, b point, at side) int {
	if at == sideLeft {
		return min(a.x, b.x) - turnPx
	}
	return max(a.x, b.x) + turnPx
}

// drawClosing leads a cable from a group's last box around all the others to its first.
func (s *sheet) drawClosing(c *canvas, i int, a, b point, sideA, sideB side) {
	e := s.t.Links[i].Ends
	if sideA == sideRight && sideB == sideLeft { // from the right end, so that it is drawn the same in both directions
		a, b, sideB = b, a, sideA
		e = []envgen.PortEnd{e[1], e[0]}
	}
	x := s.closeX()
	if sideB == sideLeft {
		c.add(`<path d="M%d %d H%d q-12 0 -12 %d V%d q0 %d 12 %d H%d" %s/>`, a.x, a.y, x+12, 12*sign(b.y-a.y),
			b.y-12*sign(b.y-a.y),
			12*sign(b.y-a.y), 12*sign(b.y-a.y), b.x, s.stroke(i))
		return
	}
	low := s.bottom[s.boxes[e[1].Node].row] + 22
	c.add(`<path d="M%d %d H%d q-12 0 -12 12 V%d q0 12 12 12 H%d q12 0 12 -12 V%d q0 -12 -12 -12 H%d" %s/>`,
		a.x, a.y, x+12, low-12, b.x+22, b.y+12, b.x, s.stroke(i))
}

// closeX is where a cable that closes a loop runs up, left of those that turn from row to row.
func (s *sheet) closeX() int { return s.left - turnPx - closeRoomPx }

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

// labelDirect writes a cable's speed and subnets on it.
func (s *sheet) labelDirect(c *canvas, i int) {
	a, b, sideA, sideB := s.ends(i)
	l := s.t.Links[i]
	lines := []string{speedLabel(l)}
	at := point{(a.x + b.x) / 2, (a.y + b.y) / 2}
	switch {
	case s.closing[i] && sideA != sideB:
		at.y = s.bottom[max(s.boxes[l.Ends[0].Node].row, s.boxes[l.Ends[1].Node].row)] + 22
		lines = append(lines, linkSubnets(s.t, i)...)
		lines = []string{strings.Join(lines, " · ")}
	case s.closing[i]:
		at = point{s.closeX(), s.bottom[min(s.boxes[l.Ends[0].Node].row, s.boxes[l.Ends[1].Node].row)] + turnGapPx/2}
		lines = append(lines, linkSubnets(s.t, i)...)
	case sideA == sideB:
		upper := s.boxes[l.Ends[0].Node].row
		upper = min(upper, s.boxes[l.Ends[1].Node].row)
		at = point{s.turnX(a, b, sideA), s.bottom[upper] + turnGapPx/2}
		lines = append(lines, linkSubnets(s.t, i)...)
	case s.crossed(i):
		// Near the left end, where crossed cables are apart.
		left, right := a, b
		if right.x < left.x {
			left, right = right, left
		}
		at = point{left.x + (right.x-left.x)*3/10, left.y + (right.y-left.y)*2/10}
	default:
		lines = append(lines, linkSubnets(s.t, i)...)
	}
	if len(lines) > 3 {
		lines = append(lines[:2], fmt.Sprintf("and %d more subnets", len(lines)-2))
	}
	c.pill(at, s.linkColour(i), lines)
}

// crossed reports whether another cable between the same boxes crosses this one.
func (s *sheet) crossed(i int) bool {
	a, b, _, _ := s.ends(i)
	return slices.ContainsFunc(s.direct, func(j int) bool {
		x, y, _, _ := s.ends(j)
		return j != i && a.x == x.x && b.x == y.x && (a.y-x.y)*(b.y-y.y) < 0
	})
}

func speedLabel(l envgen.Link) string {
	text := "no link"
	if l.Up {
		text = "? Gb/s"
		if l.SpeedMbps != nil {
			text = fmt.Sprintf("%d Gb/s", *l.SpeedMbps/1000)
		}
	}
	if !l.Seen {
		text += " by address"
	}
	return text
}

// pill is a label on a cable; its first line is bold.
func (c *canvas) pill(at point, colour string, lines []string) {
	width := 0
	for _, l := range lines {
		width = max(width, utf8.RuneCountInString(l))
	}
	w, h := width*7+18, 15*len(lines)+7
	c.add(`<rect x="%d" y="%d" width="%d" height="%d" rx="9" fill="%s" stroke="%s" stroke-width="1.5"/>`,
		at.x-w/2, at.y-h/2, w, h, colourPaper, colour)
	for i, l := range lines {
		weight, ink := "normal", colourFaint
		if i == 0 {
			weight, ink = "bold", colour
		}
		c.text(at.x, at.y-h/2+15+15*i, "middle", fontSans, 11, ink, weight, l)
	}
}

// drawRail draws a link's bar under a row, with a drop from each of its sockets there.
func (s *sheet) drawRail(c *canvas, row, nth, link int) {
	l := s.t.Links[link]
	y := s.railY(row, nth)
	low, high := -1, -1
	for _, e := range s.railed(l) {
		f := s.boxes[e.Node]
		if f.row != row {
			continue
		}
		at := f.socketAt(e.Slot)
		c.add(`<path d="M%d %d V%d" %s/>`, at.x, at.y, y, s.stroke(link))
		if low < 0 || at.x < low {
			low = at.x
		}
		high = max(high, at.x)
	}
	if k := slices.Index(s.trunks, link); k >= 0 {
		low = s.trunkX(k)
	}
	words := append([]string{linkKind(l), strings.TrimSuffix(speedLabel(l), " by address")}, linkSubnets(s.t, link)...)
	text := strings.Join(words[:min(len(words), 6)], " · ")
	if !l.Switched {
		c.add(`<path d="M%d %d H%d" %s/>`, low, y, high, s.stroke(link))
		c.pill(point{max((low+high)/2, low+4*len(text)), y}, s.linkColour(link), []string{text})
		return
	}
	width := utf8.RuneCountInString(text)*7 + 30
	if high-low+60 < width {
		high = low + width - 60
	}
	c.add(`<rect x="%d" y="%d" width="%d" height="24" rx="6" fill="%s"/>`, low-30, y-12, high-low+60, s.linkColour(link))
	c.text((low+high)/2, y+4, "middle", fontSans, 12, colourPaper, "bold", text)
}

func (s *sheet) railY(row, nth int) int { return s.bottom[row] + 34 + nth*railPx }

func (s *sheet) trunkX(k int) int { return marginPx + 26*k }

// drawTrunks joins the rails of links that have ports in several rows.
func (s *sheet) drawTrunks(c *canvas) {
	for k, link := range s.trunks {
		first, last := -1, -1
		for row, links := range s.rails {
			if nth := slices.Index(links, link); nth >= 0 {
				if first < 0 {
					first = s.railY(row, nth)
				}
				last = s.railY(row, nth)
			}
		}
		c.add(`<path d="M%d %d V%d" %s/>`, s.trunkX(k), first, last, s.stroke(link))
	}
}

// drawFindings writes the findings under the picture and returns where the page ends.
func (s *sheet) drawFindings(c *canvas, y int) int {
	for _, f := range s.t.Findings {
		if f.Severity == envgen.SeverityInfo {
			continue
		}
		c.badge(s.left+8, y, []envgen.Finding{f})
		c.text(s.left+26, y+4, "start", fontMono, 11, severityColour(f.Severity), "bold", f.Code)
		y += 17
		for _, line := range wrap(plain.Line(f.Text), (s.width-s.left-marginPx-26)/7, "") {
			c.text(s.left+26, y+3, "start", fontSans, 12, colourInk, "normal", line)
			y += 16
		}
		y += 10
	}
	return y + marginPx/2
}
