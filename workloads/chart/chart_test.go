package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// Whatever the names are, it is XML; whatever the figures are, they are inside.
func TestSVG(t *testing.T) {
	bad := "a<b>&\"'\x00\x1b\u202e\xff"
	for _, values := range [][]float64{{1, 2}, {0}, {-1000, -20}, {-5, 12}, {5e-324}, nil} {
		c := Chart{Title: bad, Foot: bad, X: bad, Y: bad, Lines: []Line{{Name: bad}}}
		for i, v := range values {
			c.Ticks = append(c.Ticks, Tick{float64(i), bad})
			c.Lines[0].Points = append(c.Lines[0].Points, Point{At: float64(i), Y: v})
		}
		svg := string(c.SVG())
		dots, dec := 0, xml.NewDecoder(strings.NewReader(svg))
		for {
			token, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v: %s", err, svg)
			}
			if e, is := token.(xml.StartElement); is && e.Name.Local == "circle" {
				dots++
			}
		}
		if strings.Contains(svg, `cy="-`) || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") || dots != len(values)+1 {
			t.Errorf("%v: %s", values, svg)
		}
	}
}
