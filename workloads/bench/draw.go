package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/workloads/chart"
)

// Drawn says what is drawn of runs. Empty fields are chosen: the first figure, and the value that takes most values.
type Drawn struct{ Figure, By string }

// Draw draws a figure of runs over one of the values that vary: medians with their quartiles, a line for each
// combination of the other values and each run.
func Draw(runs []Run, d Drawn) ([]byte, error) {
	var names []string
	takes, most := map[string][]string{}, ""
	for _, r := range runs {
		for _, g := range r.Groups() {
			for _, f := range g.Figures {
				if !slices.Contains(names, f.Name) {
					names = append(names, f.Name)
				}
			}
			for _, v := range g.Values {
				if !slices.Contains(takes[v.Name], v.Value) {
					takes[v.Name] = append(takes[v.Name], v.Value)
				}
				if most == "" || len(takes[v.Name]) > len(takes[most]) {
					most = v.Name
				}
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("nothing was measured")
	}
	if d.Figure = cmp.Or(d.Figure, names[0]); !slices.Contains(names, d.Figure) {
		return nil, fmt.Errorf("no figure %q: there are %s", d.Figure, strings.Join(names, ", "))
	}
	if d.By = cmp.Or(d.By, most); d.By != most && takes[d.By] == nil {
		return nil, fmt.Errorf("no value %q varies", d.By)
	}
	return draw(runs, d, takes[d.By]).SVG(), nil
}

func draw(runs []Run, d Drawn, values []string) chart.Chart {
	slices.SortStableFunc(values, func(a, b string) int {
		x, xerr := strconv.ParseFloat(a, 64)
		y, yerr := strconv.ParseFloat(b, 64)
		if xerr != nil || yerr != nil {
			return 0
		}
		return cmp.Compare(x, y)
	})
	c := chart.Chart{X: d.By, Title: d.Figure, Foot: "medians, from the lower to the upper quartile"}
	at := func(i int) float64 { return (float64(i) + 0.5) / float64(len(values)) }
	for i, v := range values {
		c.Ticks = append(c.Ticks, chart.Tick{At: at(i), Text: v})
	}
	for _, r := range runs {
		for _, g := range r.Groups() {
			f := g.figure(d.Figure)
			if f == nil {
				continue
			}
			c.Y = strings.TrimSuffix(f.Name+", "+f.Unit, ", ")
			x := 0.5
			if i := slices.Index(values, g.Value(d.By)); i >= 0 {
				x = at(i)
			}
			name := g.without(d.By)
			if len(runs) > 1 {
				name = r.ID() + ": " + name
			}
			n := slices.IndexFunc(c.Lines, func(l chart.Line) bool { return l.Name == name })
			if n < 0 {
				n, c.Lines = len(c.Lines), append(c.Lines, chart.Line{Name: name})
			}
			c.Lines[n].Points = append(c.Lines[n].Points, chart.Point{At: x, Y: Median(f.Values), Low: Quantile(f.Values, .25),
				High: Quantile(f.Values, .75)})
		}
	}
	for _, l := range c.Lines {
		slices.SortFunc(l.Points, func(a, b chart.Point) int { return cmp.Compare(a.At, b.At) })
	}
	return c
}
