package ibtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// Matrix is all cells of a test between the same hosts in rows and columns: from those at
// the left to those on top. Where several cables join a pair, or columns, the terminal's
// width, has no room for it, there is a list in its place.
func Matrix(p Plan, cells []Cell, test string, columns int) string {
	of := slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool { return c.Test != test })
	if len(of) == 0 {
		return ""
	}
	between := map[[2]string][]Cell{}
	met := map[string]bool{}
	several := false
	for _, c := range of {
		key := [2]string{c.From, c.To}
		between[key] = append(between[key], c)
		several = several || len(between[key]) > 1
		met[c.From], met[c.To] = true, true
	}
	var hosts []string
	for _, n := range p.Nodes {
		if met[n.Host] {
			hosts = append(hosts, n.Host)
		}
	}
	unit := "us, one way, the slower lane"
	if IsBandwidth(test) {
		unit = "Gb/s, all lanes of a cable at once"
	}
	head := fmt.Sprintf("%s: %s\n", Program(test), unit)
	width := 9
	for _, h := range hosts {
		width = max(width, len(h)+2)
	}
	if several || (len(hosts)+1)*width > columns {
		return head + list(of)
	}
	var b strings.Builder
	b.WriteString(head)
	row := func(first string, cell func(string) string) {
		line := fmt.Sprintf("%-*s", width, first)
		for _, h := range hosts {
			line += fmt.Sprintf("%*s", width, cell(h))
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	row("", func(h string) string { return h })
	for _, from := range hosts {
		row(from, func(to string) string {
			if c := between[[2]string{from, to}]; c != nil {
				return c[0].figure()
			}
			// Latency is there and back: one figure stands for both ways.
			if c := between[[2]string{to, from}]; c != nil && !IsBandwidth(test) {
				return c[0].figure()
			}
			return "-"
		})
	}
	return b.String()
}

// list has a line for each cell.
func list(cells []Cell) string {
	wide := 0
	name := func(c Cell) string { return fmt.Sprintf("%s -> %s  %s", c.From, c.To, c.Port) }
	for _, c := range cells {
		wide = max(wide, len(name(c)))
	}
	var b strings.Builder
	for _, c := range cells {
		fmt.Fprintf(&b, "%-*s  %8s\n", wide, name(c), c.figure())
	}
	return b.String()
}

// figure is what stands in the matrix; one that is not good has a mark.
func (c Cell) figure() string {
	mark := ""
	if c.Grade == nettest.Low {
		mark = "!"
	}
	switch {
	case c.Gbps != nil:
		return gbps(*c.Gbps) + mark
	case c.Micros != nil:
		return fmt.Sprintf("%.2f%s", *c.Micros, mark)
	}
	return "failed"
}

// gbps writes a bandwidth: RDMA in software has little of it.
func gbps(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// LaneText tells of every lane of a cell: "rocep1s0f0 -> rocep1s0f0 98.1 Gb/s".
func (c Cell) LaneText() string {
	var words []string
	for _, l := range c.Lanes {
		text := l.From + " -> " + l.To + " "
		switch {
		case l.Error != "":
			text += "failed"
		case l.Measured.Gbps != nil && IsBandwidth(c.Test):
			text += gbps(*l.Measured.Gbps) + " Gb/s"
		default:
			text += fmt.Sprintf("%.2f us", *l.Measured.latency())
			if m := l.Measured; m.Min != nil && m.P99 != nil {
				text += fmt.Sprintf(" (%.2f at best, 99 %% within %.2f)", *m.Min, *m.P99)
			}
		}
		words = append(words, text)
	}
	return strings.Join(words, ", ")
}
