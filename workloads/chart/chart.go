// Package chart decides how figures are drawn as one SVG picture: lines of points over an axis, with their spread.
//
// It must not know what the figures are of, nor read or write a file.
package chart

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Chart is a picture. Points lie between 0 and 1 across.
type Chart struct {
	Title, Foot string
	Y           string // what is measured, with its unit
	X           string // what differs; may be empty
	Ticks       []Tick
	Lines       []Line
}

// Tick is a label below the axis.
type Tick struct {
	At   float64
	Text string
}

// Line is a row of points. What is expected, and not measured, is Dashed and has no dots.
type Line struct {
	Name   string // for the legend; may be empty
	Dashed bool
	Points []Point
}

// Point is a figure; its spread is from Low to High where they differ.
type Point struct{ At, Y, Low, High float64 }

// colours tell lines apart for most who see red and green as one; a dashed line is grey.
var colours = [...]string{"#2a7", "#c60", "#36c", "#a3a", "#970", "#07a", "#b24", "#555"}

// A picture's size and its margins, in its own units.
const (
	width, left, right = 760, 70, 20
	above, below       = 40, 68
	plot               = 320 // the height of what is between them
	row                = 18  // of the legend
)

// SVG draws it.
func (c Chart) SVG() []byte {
	legend, bottom, top := 0, 0.0, 0.0
	for _, l := range c.Lines {
		if l.Name != "" {
			legend += row
		}
		for _, p := range l.Points {
			bottom, top = min(bottom, p.Y, p.Low), max(top, p.Y, p.High)
		}
	}
	if top > 0 || bottom == 0 {
		top = niceTop(top)
	}
	if bottom < 0 {
		bottom = -niceTop(-bottom)
	}
	height := above + plot + below + legend
	var b strings.Builder
	put := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	x := func(at float64) float64 { return left + at*(width-left-right) }
	y := func(v float64) float64 { return above + plot - (v-bottom)/(top-bottom)*plot }
	put(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" `+
		`font-size="12">`, width, height)
	put(`<rect width="%d" height="%d" fill="white"/>`, width, height)
	put(`<text x="%d" y="22" font-size="14">%s</text>`, left, text(c.Title, 90))
	for i := range 5 {
		v := bottom + (top-bottom)*float64(i)/4
		put(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1[2]f" stroke="#ddd"/>`, left, y(v), width-right)
		put(`<text x="%d" y="%.1f" text-anchor="end">%s</text>`, left-8, y(v)+4, strconv.FormatFloat(v, 'g', 4, 64))
	}
	put(`<text x="16" y="%d" transform="rotate(-90 16 %[1]d)" text-anchor="middle">%s</text>`, above+plot/2, text(c.Y, 60))
	every := max(1, (len(c.Ticks)+9)/10) // labels that do not overlap
	for i := 0; i < len(c.Ticks); i += every {
		put(`<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, x(c.Ticks[i].At), above+plot+20,
			text(c.Ticks[i].Text, 100/min(len(c.Ticks), 10)))
	}
	put(`<text x="%d" y="%d" text-anchor="middle">%s</text>`, (left+width-right)/2, above+plot+38, text(c.X, 90))
	solid, named := 0, 0
	for _, l := range c.Lines {
		colour, dash := "#888", ` stroke-dasharray="6 4"`
		if !l.Dashed {
			colour, dash = colours[solid%len(colours)], ""
			solid++
		}
		var points []string
		for _, p := range l.Points {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(p.At), y(p.Y)))
			if !l.Dashed {
				put(`<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, x(p.At), y(p.Y), colour)
			}
			if p.Low < p.High {
				put(`<line x1="%.1f" y1="%.1f" x2="%.1[1]f" y2="%.1[3]f" stroke="%[4]s"/>`, x(p.At), y(p.Low), y(p.High), colour)
			}
		}
		put(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`, strings.Join(points, " "), colour, dash)
		if l.Name != "" {
			at := above + plot + 56 + named*row
			named++
			put(`<circle cx="%d" cy="%d" r="4" fill="%s"/>`, left+4, at-4, colour)
			put(`<text x="%d" y="%d">%s</text>`, left+14, at, text(l.Name, 100))
		}
	}
	put(`<text x="%d" y="%d">%s</text>`+"\n</svg>", left, height-10, text(c.Foot, 105))
	return []byte(b.String())
}

// niceTop is 1, 2, 2.5 or 5 times a power of ten, no less than v: the upper end of an axis.
func niceTop(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 2.5, 5} {
		if v <= n*unit {
			return n * unit
		}
	}
	return 10 * unit
}

// text is what can stand between two tags, and is n letters long at most.
func text(s string, n int) string {
	if utf8.RuneCountInString(s) > n {
		s = string([]rune(s)[:n-1]) + "…"
	}
	return html.EscapeString(plain.Line(s))
}
