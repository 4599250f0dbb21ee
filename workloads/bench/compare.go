package bench

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Verdict says what may be concluded of a figure of two runs.
type Verdict string

const (
	Improved Verdict = "better"
	Worsened Verdict = "worse"
	Same     Verdict = "no difference" // none that could not be chance
	TooFew   Verdict = "too few runs"  // so few that no difference could be told from chance
)

// Comparison is of two runs, A and B.
type Comparison struct {
	Circumstances []Difference `json:"circumstances"` // only what differs
	Figures       []Compared   `json:"figures"`
	OnlyA         []string     `json:"only_a,omitempty"` // cases
	OnlyB         []string     `json:"only_b,omitempty"`
	ScalingA      []Scale      `json:"scaling_a,omitempty"`
	ScalingB      []Scale      `json:"scaling_b,omitempty"`
}

// Difference is something that was not as it was.
type Difference struct {
	What string `json:"what"`
	A    string `json:"a"`
	B    string `json:"b"`
}

// Compared is a figure of a case in both runs.
type Compared struct {
	Case    string   `json:"case"`
	Figure  string   `json:"figure"`
	Unit    string   `json:"unit,omitempty"`
	Better  Better   `json:"better"`
	A       Middle   `json:"a"`
	B       Middle   `json:"b"`
	Change  *float64 `json:"change,omitempty"` // from A's median to B's, as a part of A's; nil: that is 0
	P       float64  `json:"p"`                // MannWhitney
	Verdict Verdict  `json:"verdict"`
}

// Middle is a sample in short.
type Middle struct {
	Median float64  `json:"median"`
	Spread *float64 `json:"spread,omitempty"` // the interquartile range as a part of the median; nil: that is 0
	N      int      `json:"n"`
}

// MiddleOf is a sample in short.
func MiddleOf(values []float64) Middle {
	m := Median(values)
	return Middle{m, part(Quantile(values, .75)-Quantile(values, .25), m), len(values)}
}

func part(v, of float64) *float64 {
	if of == 0 {
		return nil
	}
	return new(v / math.Abs(of))
}

// Compare compares B with A, case by case.
func Compare(a, b Run) Comparison {
	ga, gb := a.Groups(), b.Groups()
	c := Comparison{Circumstances: []Difference{}, Figures: []Compared{}, ScalingA: Scaling(ga), ScalingB: Scaling(gb)}
	differ := func(what, a, b string) {
		if d := (Difference{what, cmp.Or(a, "-"), cmp.Or(b, "-")}); a != b && !slices.Contains(c.Circumstances, d) {
			c.Circumstances = append(c.Circumstances, d)
		}
	}
	var inA, inB []Group // of cases that both have
	for _, g := range ga {
		if i := slices.IndexFunc(gb, func(o Group) bool { return o.Label() == g.Label() }); i >= 0 {
			inA, inB = append(inA, g), append(inB, gb[i])
			gb = slices.Delete(gb, i, i+1)
		} else {
			c.OnlyA = append(c.OnlyA, g.Label())
		}
	}
	for _, g := range gb {
		c.OnlyB = append(c.OnlyB, g.Label())
	}
	sa, sb := a.Circumstances(inA...), b.Circumstances(inB...)
	for _, s := range slices.Concat(sa, sb) {
		differ(s.Name, value(sa, s.Name), value(sb, s.Name))
	}
	ka, kb := a.Clocks(), b.Clocks()
	for _, host := range slices.Sorted(maps.Keys(ka)) {
		if x, y := Median(ka[host]), Median(kb[host]); math.Abs(x-y) > 0.05*x { // NaN: B has none
			differ("GPU clock of "+host, fmt.Sprintf("%.0f MHz", x), fmt.Sprintf("%.0f MHz", y))
		}
	}
	for i, g := range inA {
		o, label := inB[i], g.Label()
		x, y := g.words(), o.words()
		differ("command of "+g.Scenario, less(x, y), less(y, x))
		if less(x, y)+less(y, x) == "" { // they have changed places
			differ("command of "+g.Scenario, strings.Join(x, " "), strings.Join(y, " "))
		}
		for _, f := range slices.Concat(g.Figures, o.Figures) {
			differ(f.Name+" of "+label, g.figure(f.Name).kind(), o.figure(f.Name).kind())
		}
		for _, f := range g.Figures {
			if of := o.figure(f.Name); of.kind() == f.kind() {
				c.Figures = append(c.Figures, compared(label, f, *of))
			}
		}
	}
	return c
}

// kind is equal where values may be compared.
func (s *Samples) kind() string {
	if s == nil {
		return ""
	}
	return strings.TrimSpace(s.Unit + " (" + string(s.Better) + " is better)")
}

func compared(label string, a, b Samples) Compared {
	c := Compared{Case: label, Figure: a.Name, Unit: a.Unit, Better: a.Better, A: MiddleOf(a.Values), B: MiddleOf(b.Values),
		P: MannWhitney(a.Values, b.Values)}
	c.Change = part(c.B.Median-c.A.Median, c.A.Median)
	switch more := c.B.Median > c.A.Median; {
	case leastP(c.A.N, c.B.N) >= Alpha:
		c.Verdict = TooFew
	case c.P >= Alpha || c.B.Median == c.A.Median:
		c.Verdict = Same
	case more == (a.Better == Higher):
		c.Verdict = Improved
	default:
		c.Verdict = Worsened
	}
	return c
}

// Circumstances are a run's, and those of some of its cases, as names with their values. One that has changed, as of a
// run that was resumed, has several.
func (r Run) Circumstances(cases ...Group) (out []Setting) {
	set := func(name, value string) {
		i := slices.IndexFunc(out, func(s Setting) bool { return s.Name == name })
		switch {
		case value == "":
		case i < 0:
			out = append(out, Setting{name, value})
		case !slices.Contains(strings.Split(out[i].Value, ", then "), value):
			out[i].Value += ", then " + value
		}
	}
	for _, h := range r.Headers {
		for _, s := range h.Circumstances {
			set(s.Name, s.Value)
		}
	}
	for _, s := range r.Results {
		for _, g := range s.After {
			set("GPU of "+g.Host, g.Name)
			for _, why := range g.Throttle {
				set("GPU slowed on "+g.Host, why)
			}
		}
	}
	for _, g := range cases {
		for _, s := range g.Results {
			set("client of "+g.Scenario, s.Client)
			if s.Server != nil {
				set("engine of "+g.Scenario, s.Server.Engine)
				set("machines of "+g.Label(), strings.Join(s.Server.Hosts, " "))
			}
			if s.Load != nil {
				set("requests of "+g.Label(), fmt.Sprintf("%+v", *s.Load))
			}
			if len(s.Notes) > 0 {
				set("to be known of "+g.Label(), s.Notes[0])
			}
		}
	}
	return out
}

// Clocks are what GPUs' clocks were after runs, MHz by host.
func (r Run) Clocks() map[string][]float64 {
	out := map[string][]float64{}
	for _, s := range r.Results {
		for _, g := range s.After {
			if g.MHz != nil {
				out[g.Host] = append(out[g.Host], *g.MHz)
			}
		}
	}
	return out
}

// words are those of a case's command, with its variables.
func (c Case) words() (out []string) {
	for _, e := range c.Env {
		out = append(out, e.Name+"="+e.Value)
	}
	return append(out, c.Argv...)
}

// less are the words that are not among others.
func less(words, others []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(words), func(w string) bool { return slices.Contains(others, w) }), " ")
}
