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
	var all []Group
	of := []string{} // a group's run
	for _, r := range runs {
		for _, g := range r.Groups() {
			all, of = append(all, g), append(of, r.ID())
		}
	}
	known := map[string]bool{}
	var names []string
	takes := map[string][]string{}
	for _, g := range all {
		for _, f := range g.Figures {
			if !known[f.Name] {
				known[f.Name], names = true, append(names, f.Name)
			}
		}
		for _, v := range g.Values {
			if !slices.Contains(takes[v.Name], v.Value) {
				takes[v.Name] = append(takes[v.Name], v.Value)
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("nothing was measured")
	}
	if d.Figure == "" {
		d.Figure = names[0]
		if d.Figure == Seconds && len(names) > 1 {
			d.Figure = names[1]
		}
	}
	if !known[d.Figure] {
		return nil, fmt.Errorf("no figure %q: there are %s", d.Figure, strings.Join(names, ", "))
	}
	if d.By != "" && takes[d.By] == nil {
		return nil, fmt.Errorf("no value %q varies", d.By)
	}
	if d.By == "" {
		for _, g := range all { // in the file's order, where two take as many
			for _, v := range g.Values {
				if len(takes[v.Name]) > len(takes[d.By]) {
					d.By = v.Name
				}
			}
		}
	}
	return draw(all, of, len(runs) > 1, d, takes[d.By]).SVG(), nil
}

func draw(all []Group, of []string, several bool, d Drawn, values []string) chart.Chart {
	slices.SortStableFunc(values, func(a, b string) int {
		x, xerr := strconv.ParseFloat(a, 64)
		y, yerr := strconv.ParseFloat(b, 64)
		if xerr != nil || yerr != nil {
			return 0
		}
		return cmp.Compare(x, y)
	})
	c := chart.Chart{X: d.By, Y: d.Figure, Title: d.Figure, Foot: "medians, from the lower to the upper quartile"}
	at := func(i int) float64 { return (float64(i) + 0.5) / float64(max(1, len(values))) }
	for i, v := range values {
		c.Ticks = append(c.Ticks, chart.Tick{At: at(i), Text: v})
	}
	for i, g := range all {
		f := g.figure(d.Figure)
		if f == nil {
			continue
		}
		c.Y = strings.TrimSuffix(f.Name+", "+f.Unit, ", ")
		place := max(0, slices.IndexFunc(g.Values, func(v Setting) bool { return v.Name == d.By }))
		x := 0.5
		rest := slices.Clone(g.Values)
		if len(rest) > 0 && rest[place].Name == d.By {
			x = at(slices.Index(values, rest[place].Value))
			rest = slices.Delete(rest, place, place+1)
		}
		name := Label(g.Scenario, rest)
		if several {
			name = of[i] + ": " + name
		}
		n := slices.IndexFunc(c.Lines, func(l chart.Line) bool { return l.Name == name })
		if n < 0 {
			n, c.Lines = len(c.Lines), append(c.Lines, chart.Line{Name: name})
		}
		c.Lines[n].Points = append(c.Lines[n].Points, chart.Point{At: x, Y: Median(f.Values), Low: Quantile(f.Values, .25),
			High: Quantile(f.Values, .75)})
	}
	for _, l := range c.Lines {
		slices.SortFunc(l.Points, func(a, b chart.Point) int { return cmp.Compare(a.At, b.At) })
	}
	return c
}
