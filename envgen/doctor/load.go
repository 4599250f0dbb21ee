package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

// Load is a short load on one machine: what it reached, and how its GPU was meanwhile.
type Load struct {
	Node string `json:"node"`
	Host string `json:"host"`
	// Error says why there was none.
	Error string `json:"error,omitempty"`

	For time.Duration `json:"for_ns,omitempty"`
	// Via is what worked: torch 2.9.0, CUDA driver 13.0, processors. Trouble says why it went no better way.
	Via     string `json:"via,omitempty"`
	Trouble string `json:"trouble,omitempty"`
	// Flops are operations a second with numbers of Kind (bf16, fp32, fp64), and Read bytes of memory a second.
	Flops float64 `json:"flops,omitempty"`
	Kind  string  `json:"kind,omitempty"`
	Read  float64 `json:"read_bps,omitempty"`
	// GPU is the one that was loaded: medians of clock and power while it was busy, its highest temperature, and every
	// reason that slowed it. Nil where none was; its figures are absent where nobody reads them.
	GPU *GPU `json:"gpu,omitempty"`
}

// Summed makes of readings while it was busy what Load has of a GPU.
func (l *Load) Summed(readings []GPU) {
	if l.GPU == nil {
		return
	}
	of := func(pick func(GPU) *float64) (all []float64) {
		for _, r := range readings {
			if v := pick(r); v != nil && r.Busy != nil && *r.Busy >= busy {
				all = append(all, *v)
			}
		}
		slices.Sort(all)
		return all
	}
	if all := of(func(g GPU) *float64 { return g.Busy }); len(all) > 0 {
		l.GPU.Busy = new(median(all))
	}
	if all := of(func(g GPU) *float64 { return g.MHz }); len(all) > 0 {
		l.GPU.MHz = new(median(all))
	}
	if all := of(func(g GPU) *float64 { return g.Watts }); len(all) > 0 {
		l.GPU.Watts = new(median(all))
	}
	if all := of(func(g GPU) *float64 { return g.Celsius }); len(all) > 0 {
		l.GPU.Celsius = new(all[len(all)-1])
	}
	for _, r := range readings {
		l.GPU.MaxMHz = cmp.Or(r.MaxMHz, l.GPU.MaxMHz)
		for _, why := range r.Throttle {
			if !slices.Contains(l.GPU.Throttle, why) {
				l.GPU.Throttle = append(l.GPU.Throttle, why)
			}
		}
	}
}

// median is of sorted values; of an even number the upper one, so that of two machines the better counts.
func median(sorted []float64) float64 { return sorted[len(sorted)/2] }

const (
	// behind is which part of its peers' median a machine has to reach.
	behind = 0.8
	// loadedGB10 is the lowest median clock of a sound GB10 under load, in MHz: see clockGB10.
	loadedGB10 = 2281
)

// Judge compares loads with each other, where they are of one kind, and clocks with what the kind of GPU is known for.
func Judge(loads []Load) []envgen.Finding {
	var ch checker
	for i, l := range loads {
		if l.Error != "" {
			continue
		}
		ch.node = &Node{ID: l.Node, Host: l.Host, Facts: &Facts{}}
		if l.GPU != nil {
			ch.node.Facts.GPUs = []GPU{*l.GPU}
			ch.gpus()
			if g := *l.GPU; strings.Contains(g.Name, "GB10") && g.MHz != nil && !g.slow() && *g.MHz < behind*loadedGB10 {
				ch.add(codeGPUClock, envgen.SeverityWarning, fmt.Sprintf("GPU %d of %s runs at %.0f MHz under load, where sound "+
					"GB10s run at %d to 2418: a lower clock may be set there, else shut down and pull the mains plug for a minute",
					g.Index, l.Host, *g.MHz, loadedGB10), g.says(), showGPU)
			}
		}
		ch.behind(loads, i)
	}
	return once(ch.found)
}

// behind says in what a machine is behind its peers.
func (ch *checker) behind(loads []Load, i int) {
	l := loads[i]
	var words, seen []string
	for _, of := range []struct {
		what, unit string
		each       float64
		pick       func(Load) float64
	}{
		{"arithmetic", "Tflop/s", 1e12, func(l Load) float64 { return l.Flops }},
		{"reading memory", "GB/s", 1e9, func(l Load) float64 { return l.Read }},
		{"clock", "MHz", 1, func(l Load) float64 {
			if l.GPU == nil || l.GPU.MHz == nil {
				return 0
			}
			return *l.GPU.MHz
		}},
	} {
		var all []float64
		for _, o := range loads {
			if v := of.pick(o); v > 0 && o.Error == "" && o.alike(l) {
				all = append(all, v)
			}
		}
		slices.Sort(all)
		if v := of.pick(l); v > 0 && v < behind*median(all) {
			words = append(words, fmt.Sprintf("%s %.0f %%", of.what, 100*v/median(all)))
			seen = append(seen, fmt.Sprintf("%s %.3g %s, median %.3g", of.what, v/of.each, of.unit, median(all)/of.each))
		}
	}
	if len(words) > 0 {
		remedy := "sparkrun doctor --node " + l.Host
		if l.GPU != nil {
			remedy = showGPU
		}
		ch.add(codeBehind, envgen.SeverityWarning, fmt.Sprintf("%s is behind its peers under the same load: %s of their median; "+
			"each job with it waits for it", l.Host, strings.Join(words, ", ")), strings.Join(seen, "; "), remedy)
	}
}

// alike reports whether figures of two machines may be compared: one kind of GPU, loaded in one way.
func (l Load) alike(o Load) bool {
	if (l.GPU == nil) != (o.GPU == nil) || l.Kind != o.Kind {
		return false
	}
	return l.GPU == nil || l.GPU.Name == o.GPU.Name
}
