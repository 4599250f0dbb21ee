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

func across(at float64) float64 { return left + at*(width-left-right) }

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
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="14">%s</text>`+"\n", left, escape(clip(c.Title, 90)))
	y := func(v float64) float64 { return above + plot - (v-bottom)/(top-bottom)*plot }
	for i := range 5 {
		v := bottom + (top-bottom)*float64(i)/4
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`+"\n", left, y(v), width-right, y(v))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left-8, y(v)+4,
			strconv.FormatFloat(v, 'g', 4, 64))
	}
	fmt.Fprintf(&b, `<text x="16" y="%d" transform="rotate(-90 16 %[1]d)" text-anchor="middle">%s</text>`+"\n", above+plot/2,
		escape(c.Y))
	every := max(1, (len(c.Ticks)+9)/10) // labels that do not overlap
	for i, t := range c.Ticks {
		if i%every == 0 {
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", across(t.At), above+plot+20,
				escape(clip(t.Text, 100/min(len(c.Ticks), 10))))
		}
	}
	if c.X != "" {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, above+plot+38, escape(c.X))
	}
	c.lines(&b, y)
	fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n</svg>\n", left, height-10, escape(clip(c.Foot, 105)))
	return []byte(b.String())
}

func (c Chart) lines(b *strings.Builder, y func(float64) float64) {
	n, named := 0, 0
	for _, l := range c.Lines {
		colour, dash := "#888", ` stroke-dasharray="6 4"`
		if !l.Dashed {
			colour, dash = colours[n%len(colours)], ""
			n++
		}
		var points []string
		for _, p := range l.Points {
			x := across(p.At)
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, y(p.Y)))
			if !l.Dashed {
				fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x, y(p.Y), colour)
			}
			if p.Low < p.High {
				fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x, y(p.Low), x, y(p.High), colour)
			}
		}
		if len(points) > 0 {
			fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`+"\n", strings.Join(points, " "),
				colour, dash)
		}
		if l.Name != "" {
			at := above + plot + 56 + named*row
			named++
			fmt.Fprintf(b, `<circle cx="%d" cy="%d" r="4" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n", left+4, at-4, colour,
				left+14, at, escape(clip(l.Name, 100)))
		}
	}
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

func clip(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n-1]) + "…"
}

func escape(text string) string { return html.EscapeString(plain.Line(text)) }
