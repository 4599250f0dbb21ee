package workloads

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// Sizes say how a model is cut: tensor and pipeline parallelism make one copy of it, data
// parallelism is the number of copies. 0: not decided.
type Sizes struct{ TP, PP, DP int }

// Product is how many machines they take.
func (z Sizes) Product() int { return max(z.TP, 1) * max(z.PP, 1) * max(z.DP, 1) }

func (z Sizes) String() string {
	var parts []string
	for _, p := range []struct {
		flag string
		n    int
	}{{"--tp", z.TP}, {"--pp", z.PP}, {"--dp", z.DP}} {
		if p.n > 1 {
			parts = append(parts, fmt.Sprintf("%s %d", p.flag, p.n))
		}
	}
	if len(parts) == 0 {
		return "--tp 1"
	}
	return strings.Join(parts, " ")
}

// Spread decides the sizes for a number of nodes, of which each has one GPU, so that their
// product is that number. What was asked for is kept. Tensor parallelism comes first, as a power
// of two that divides the model's attention heads; what is left over is pipeline parallelism. Why
// is a sentence where that is not what one would expect. Its errors wrap launcher.ErrInvalid, and
// name the nearest that works. A model that is not known is taken to divide by all.
func Spread(nodes int, asked Sizes, model *Model) (z Sizes, why string, err error) {
	if model == nil {
		model = &Model{}
	}
	z, why, reason := cut(nodes, asked, *model)
	if reason == "" {
		return z, why, nil
	}
	what := asked.String()
	if asked == (Sizes{}) {
		what = Machines(nodes)
	}
	err = fmt.Errorf("%s: %w: %s", what, launcher.ErrInvalid, reason)
	if near, ok := nearestSizes(nodes, asked, *model); ok {
		err = fmt.Errorf("%w; nearest that works on %s: %s", err, Machines(nodes), near)
	} else if n, near, ok := nearestNodes(nodes, asked, *model); ok {
		err = fmt.Errorf("%w; nearest that works: --nodes %d, with %s", err, n, near)
	}
	return Sizes{}, "", err
}

// cut decides the sizes, or says why they cannot be.
func cut(nodes int, asked Sizes, model Model) (z Sizes, why, reason string) {
	if p := asked.Product(); p > nodes || nodes%p != 0 || asked.TP > 0 && asked.PP > 0 && asked.DP > 0 && p != nodes {
		reason = fmt.Sprintf("that takes %d GPUs, and %s have %d, one each", p, Machines(nodes), nodes)
		if nodes == 1 {
			reason = fmt.Sprintf("that takes %d GPUs, and 1 machine has 1", p)
		}
		if p > nodes {
			reason += fmt.Sprintf(" (--nodes %d has as many)", p)
		}
		return Sizes{}, "", reason
	}
	if asked.TP > 0 {
		if bad := model.refusesTP(asked.TP); bad != "" {
			return Sizes{}, "", bad
		}
	}
	z, why, ok := fill(nodes, asked, model)
	switch {
	case !ok:
		return Sizes{}, "", fmt.Sprintf("it does not come to %d GPUs, one on each machine", nodes)
	case model.Layers > 0 && z.PP > model.Layers:
		return Sizes{}, "", fmt.Sprintf("the model has %d layers, and a stage of the pipeline takes one at least",
			model.Layers)
	}
	return z, why, ""
}

// nearestNodes is the number of nodes nearest to one on which what was asked for works, or on which
// anything does: fewer before more.
func nearestNodes(nodes int, asked Sizes, model Model) (int, Sizes, bool) {
	for _, wish := range []Sizes{asked, {DP: asked.DP}, {}} {
		for d := 1; d <= MaxSpread; d++ {
			for _, n := range []int{nodes - d, nodes + d} {
				if n < 1 {
					continue
				}
				if z, _, bad := cut(n, wish, model); bad == "" {
					return n, z, true
				}
			}
		}
	}
	return 0, Sizes{}, false
}

// fill finds the sizes that were not asked for.
func fill(nodes int, asked Sizes, model Model) (z Sizes, why string, ok bool) {
	z = Sizes{max(asked.TP, 1), max(asked.PP, 1), max(asked.DP, 1)}
	left := nodes / z.Product()
	if asked.TP == 0 {
		most := largestPower(left)
		for z.TP = most; z.TP > 1 && model.refusesTP(z.TP) != ""; z.TP /= 2 {
		}
		left /= z.TP
		switch {
		case z.TP < most:
			why = fmt.Sprintf("%s: %s", Sizes{z.TP, left, 1}, model.refusesTP(most))
		case left > 1 && asked.PP == 0:
			why = fmt.Sprintf("%s: tensor parallelism wants a power of two, and %d is none", Sizes{z.TP, left, 1}, nodes/z.DP)
		}
	}
	switch {
	case left == 1:
	case asked.PP == 0:
		z.PP = left
	case asked.DP == 0:
		z.DP = left
	default:
		return Sizes{}, "", false
	}
	return z, why, true
}

// nearestSizes are those with the fewest of the wishes given up: DP last.
func nearestSizes(nodes int, asked Sizes, model Model) (Sizes, bool) {
	for _, wish := range []Sizes{{PP: asked.PP, DP: asked.DP}, {DP: asked.DP}, {}} {
		if nodes%wish.Product() != 0 || wish == asked {
			continue
		}
		if z, _, ok := fill(nodes, wish, model); ok && (model.Layers == 0 || z.PP <= model.Layers) {
			return z, true
		}
	}
	return Sizes{}, false
}

// refusesTP says why the model cannot be cut so; empty: it can, for all that is known. The
// servers' own rules: heads are dealt out evenly, and so are those of keys and values, or each
// of these is copied as often.
func (m Model) refusesTP(tp int) string {
	switch {
	case m.Heads > 0 && m.Heads%tp != 0:
		return fmt.Sprintf("the model's %d attention heads do not divide by %d", m.Heads, tp)
	case m.KVHeads > tp && m.KVHeads%tp != 0, m.KVHeads > 0 && m.KVHeads < tp && tp%m.KVHeads != 0:
		return fmt.Sprintf("the model's %d heads of keys and values cannot be dealt out to %d", m.KVHeads, tp)
	}
	return ""
}

// largestPower is the largest power of two that divides n.
func largestPower(n int) int { return n & -n }

// MaxSpread is how many machines are thought of beside those that were asked for, or for a model that is
// too large for fewer.
const MaxSpread = 64

// Machines counts them in words.
func Machines(n int) string {
	if n == 1 {
		return "1 machine"
	}
	return strconv.Itoa(n) + " machines"
}

// PerToken is what a token takes of one node's cache, in bytes, at 16 bits a number.
func (m Model) PerToken(z Sizes) int64 {
	tp := int64(z.TP)
	if m.Latent {
		tp = 1
	} else if m.KVHeads > 0 {
		tp = min(tp, int64(m.KVHeads)) // beyond that they are copied
	}
	return 2 * m.KVPerToken / (tp * int64(z.PP))
}
