package bench

import (
	"cmp"
	"fmt"
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
	Case    string  `json:"case"`
	Figure  string  `json:"figure"`
	Unit    string  `json:"unit,omitempty"`
	Better  Better  `json:"better"`
	A       Middle  `json:"a"`
	B       Middle  `json:"b"`
	Ratio   float64 `json:"ratio"` // of the medians, B by A; 0 where that of A is 0
	P       float64 `json:"p"`     // MannWhitney
	Verdict Verdict `json:"verdict"`
}

// Middle is a sample in short.
type Middle struct {
	Median float64 `json:"median"`
	Spread float64 `json:"spread"` // see the function
	N      int     `json:"n"`
}

// MiddleOf is a sample in short.
func MiddleOf(values []float64) Middle {
	return Middle{Median(values), Spread(values), len(values)}
}

// Compare compares B with A, case by case.
func Compare(a, b Run) Comparison {
	ga, gb := a.Groups(), b.Groups()
	c := Comparison{Circumstances: circumstances(a, b, ga, gb), Figures: []Compared{}, ScalingA: Scaling(ga),
		ScalingB: Scaling(gb)}
	for _, g := range ga {
		i := slices.IndexFunc(gb, func(o Group) bool { return o.Label() == g.Label() })
		if i < 0 {
			c.OnlyA = append(c.OnlyA, g.Label())
			continue
		}
		for _, f := range g.Figures {
			if o := gb[i].figure(f.Name); o != nil {
				c.Figures = append(c.Figures, compared(g.Label(), f, *o))
			}
		}
	}
	for _, g := range gb {
		if !slices.ContainsFunc(ga, func(o Group) bool { return o.Label() == g.Label() }) {
			c.OnlyB = append(c.OnlyB, g.Label())
		}
	}
	return c
}

func compared(label string, a, b Samples) Compared {
	c := Compared{Case: label, Figure: a.Name, Unit: a.Unit, Better: a.Better, A: MiddleOf(a.Values), B: MiddleOf(b.Values),
		P: MannWhitney(a.Values, b.Values)}
	if c.A.Median != 0 {
		c.Ratio = c.B.Median / c.A.Median
	}
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

// Circumstances are a run's, as names with their values.
func (r Run) Circumstances() (out []Setting) {
	set := func(name, value string) {
		i := slices.IndexFunc(out, func(s Setting) bool { return s.Name == name })
		switch {
		case value == "":
		case i < 0:
			out = append(out, Setting{name, value})
		case !strings.HasSuffix(out[i].Value, value): // it was resumed, and is another now
			out[i].Value += ", then " + value
		}
	}
	for _, h := range r.Headers {
		set("sparkrun", h.Sparkrun)
		set("cluster", cmp.Or(h.Cluster, "none: "+h.Unlearned))
		var hosts []string
		for _, n := range h.Nodes {
			hosts = append(hosts, n.Host)
		}
		set("machines", strings.Join(hosts, " "))
		for _, n := range h.Nodes {
			set("agent of "+n.Host, n.Sparkrun)
			set("kernel of "+n.Host, n.Kernel)
			set("NVIDIA driver of "+n.Host, n.Driver)
		}
		if t := h.NCCLTest; t != nil {
			set("last nccl-test", fmt.Sprintf("%s %.1f GB/s, %s", t.Op, t.Bus, t.Grade))
		}
	}
	throttled := map[string][]string{}
	for _, s := range r.Results {
		for _, g := range s.After {
			for _, why := range g.Throttle {
				if !slices.Contains(throttled[g.Host], why) {
					throttled[g.Host] = append(throttled[g.Host], why)
					set("GPU slowed on "+g.Host, strings.Join(throttled[g.Host], " "))
				}
			}
		}
	}
	return out
}

// clocks are the medians of what GPUs' clocks were after runs, MHz by host.
func (r Run) clocks() map[string]float64 {
	all, out := map[string][]float64{}, map[string]float64{}
	for _, s := range r.Results {
		for _, g := range s.After {
			if g.MHz != nil {
				all[g.Host] = append(all[g.Host], *g.MHz)
			}
		}
	}
	for host, mhz := range all {
		out[host] = Median(mhz)
	}
	return out
}

// circumstances are those that differ: of the runs, then of cases that both have.
func circumstances(a, b Run, ga, gb []Group) (out []Difference) {
	out = []Difference{}
	differ := func(what, a, b string) {
		if d := (Difference{what, cmp.Or(a, "-"), cmp.Or(b, "-")}); a != b && !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	get := func(all []Setting, name string) string {
		for _, s := range all {
			if s.Name == name {
				return s.Value
			}
		}
		return ""
	}
	ca, cb := a.Circumstances(), b.Circumstances()
	for _, s := range ca {
		differ(s.Name, s.Value, get(cb, s.Name))
	}
	for _, s := range cb {
		differ(s.Name, get(ca, s.Name), s.Value)
	}
	ka, kb := a.clocks(), b.clocks()
	for _, h := range a.Last().Nodes {
		if x, y := ka[h.Host], kb[h.Host]; x > 0 && y > 0 && math.Abs(x-y) > 0.05*x {
			differ("GPU clock of "+h.Host, fmt.Sprintf("%.0f MHz", x), fmt.Sprintf("%.0f MHz", y))
		}
	}
	for _, g := range ga {
		i := slices.IndexFunc(gb, func(o Group) bool { return o.Label() == g.Label() })
		if i < 0 || len(g.Results) == 0 || len(gb[i].Results) == 0 {
			continue
		}
		x, y := g.Results[len(g.Results)-1], gb[i].Results[len(gb[i].Results)-1]
		differ("client of "+g.Scenario, x.Client, y.Client)
		if x.Server != nil && y.Server != nil {
			differ("engine of "+g.Scenario, x.Server.Engine, y.Server.Engine)
			differ("machines of "+g.Label(), strings.Join(x.Server.Hosts, " "), strings.Join(y.Server.Hosts, " "))
		}
		differ("command of "+g.Scenario, rest(x, y), rest(y, x))
		if x.Load != nil && y.Load != nil {
			differ("requests of "+g.Label(), fmt.Sprintf("%+v", *x.Load), fmt.Sprintf("%+v", *y.Load))
		}
	}
	return out
}

// rest are the words of a command that the other does not have.
func rest(a, b Result) string {
	words := func(r Result) (w []string) {
		for _, e := range r.Env {
			w = append(w, e.Name+"="+e.Value)
		}
		return append(w, r.Argv...)
	}
	other := words(b)
	return strings.Join(slices.DeleteFunc(words(a), func(w string) bool { return slices.Contains(other, w) }), " ")
}
