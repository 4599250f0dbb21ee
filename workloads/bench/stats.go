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

// Alpha is the probability below which a difference is not taken for chance, as benchstat has it.
const Alpha = 0.05

// MannWhitney is the two-sided p of the Mann-Whitney U test: how likely ranks as uneven as these are where both samples
// come from one distribution. It is exact, ties included (by the distribution of midranks over all ways to deal them
// out), so samples are MaxRepeats at most; of larger ones, which no run of ours has, it is 1.
func MannWhitney(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 || max(len(a), len(b)) > MaxRepeats {
		return 1
	}
	all := slices.Sorted(slices.Values(slices.Concat(a, b)))
	// Twice the midrank of a value is a whole number: how many are less, and how many are not more, and one.
	twice := func(v float64) int {
		less, _ := slices.BinarySearch(all, v)
		more, _ := slices.BinarySearch(all, math.Nextafter(v, math.Inf(1)))
		return less + more + 1
	}
	seen, top := 0, len(all)*(len(all)+1)
	for _, v := range a {
		seen += twice(v)
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
// where there is none, tp, with those of the fewest. tp may grow with nodes, or stay as it is.
func Scaling(groups []Group) (out []Scale) {
	for _, g := range groups {
		by, n := g.machines()
		from, first, label := n, g, ""
		for _, o := range groups {
			name, m := o.machines()
			same := o.Value("tp") == g.Value("tp")
			grows := o.Value("tp") == o.Value(by) && g.Value("tp") == g.Value(by)
			if name != by || m >= from || o.without(by, "tp") != g.without(by, "tp") || !same && !grows {
				continue
			}
			if from, first, label = m, o, g.without(by, "tp"); same {
				label = g.without(by)
			}
		}
		for _, f := range g.Figures {
			base := first.figure(f.Name)
			if from == n || base == nil || f.Better != Higher || Median(base.Values) <= 0 {
				continue
			}
			speedup := Median(f.Values) / Median(base.Values)
			out = append(out, Scale{label, f.Name, by, from, n, speedup, speedup * float64(from) / float64(n)})
		}
	}
	return out
}

func (c Case) machines() (by string, n int) {
	for _, by := range []string{"nodes", "tp"} {
		if n, err := strconv.Atoi(c.Value(by)); err == nil && n > 0 {
			return by, n
		}
	}
	return "", 0
}
