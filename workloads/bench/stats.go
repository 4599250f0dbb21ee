package bench

import (
	"math"
	"slices"
	"strconv"
)

// Quantile is the q-th quantile, 0 to 1, with linear interpolation between the two nearest values, as numpy's
// percentile and so vLLM's benchmark have it. NaN: there is no value.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	at := q * float64(len(v)-1)
	low := int(at)
	if low+1 >= len(v) {
		return v[len(v)-1]
	}
	return v[low] + (at-float64(low))*(v[low+1]-v[low])
}

// Median is the middle value.
func Median(values []float64) float64 { return Quantile(values, .5) }

// Spread is the interquartile range as a part of the median, 0.02 for 2 %.
func Spread(values []float64) float64 {
	m := Median(values)
	if m == 0 || math.IsNaN(m) {
		return 0
	}
	return (Quantile(values, .75) - Quantile(values, .25)) / math.Abs(m)
}

// Alpha is the probability below which a difference is not taken for chance, as benchstat has it.
const Alpha = 0.05

// MannWhitney is the two-sided p of the Mann-Whitney U test: how likely ranks as uneven as these are where both samples
// come from one distribution. It is exact, ties included (by the distribution of midranks over all ways to deal them
// out), so samples are MaxRepeats at most.
func MannWhitney(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 1
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	// Twice the midrank of a value is a whole number: first + last place, from 1.
	twice := func(v float64) int {
		first, _ := slices.BinarySearch(all, v)
		last := first
		for last < len(all) && all[last] == v {
			last++
		}
		return first + 1 + last
	}
	seen, top := 0, 0
	for _, v := range a {
		seen += twice(v)
	}
	for _, v := range all {
		top += twice(v)
	}
	// ways[n][s] counts the ways to choose n of the values whose midranks sum up to s/2.
	ways := make([][]float64, len(a)+1)
	for n := range ways {
		ways[n] = make([]float64, top+1)
	}
	ways[0][0] = 1
	for _, v := range all {
		rank := twice(v)
		for n := len(a); n > 0; n-- {
			for s := top; s >= rank; s-- {
				ways[n][s] += ways[n-1][s-rank]
			}
		}
	}
	var below, above, total float64
	for s, w := range ways[len(a)] {
		total += w
		if s <= seen {
			below += w
		}
		if s >= seen {
			above += w
		}
	}
	return min(1, 2*min(below, above)/total)
}

// leastP is the smallest p that samples of these sizes can have.
func leastP(a, b int) float64 {
	ways := 1.0
	for i := range a {
		ways = ways * float64(b+i+1) / float64(i+1)
	}
	return 2 / ways
}

// Scale is how a figure grows with a number of machines.
type Scale struct {
	Case   string `json:"case"` // without the name that grows
	Figure string `json:"figure"`
	By     string `json:"by"` // "nodes" or "tp"
	From   int    `json:"from"`
	To     int    `json:"to"`
	// Speedup is the figure of To by that of From, and Efficiency its part of To/From.
	Speedup    float64 `json:"speedup"`
	Efficiency float64 `json:"efficiency"`
}

// Scaling compares the rates of cases that differ in how many machines they use, by a varied value called nodes or,
// where there is none, tp.
func Scaling(groups []Group) (out []Scale) {
	for _, g := range groups {
		by, n := machines(g.Values)
		if by == "" {
			continue
		}
		from, first := n, g
		for _, other := range groups {
			if name, m := machines(other.Values); name == by && other.without(by) == g.without(by) && m < from {
				from, first = m, other
			}
		}
		if from == n {
			continue
		}
		for _, f := range g.Figures {
			base := first.figure(f.Name)
			if base == nil || f.Better != Higher || Median(base.Values) <= 0 {
				continue
			}
			speedup := Median(f.Values) / Median(base.Values)
			out = append(out, Scale{g.without(by), f.Name, by, from, n, speedup, speedup * float64(from) / float64(n)})
		}
	}
	return out
}

func machines(values []Setting) (by string, n int) {
	for _, name := range []string{"nodes", "tp"} {
		for _, v := range values {
			if m, err := strconv.Atoi(v.Value); v.Name == name && err == nil && m > 0 {
				return name, m
			}
		}
	}
	return "", 0
}

// without is a case's label without one of its values; tp goes with nodes.
func (g Group) without(by string) string {
	return Label(g.Scenario, slices.DeleteFunc(slices.Clone(g.Values), func(v Setting) bool {
		return v.Name == by || v.Name == "tp"
	}))
}
