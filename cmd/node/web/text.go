package web

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// rateText is a rate of bytes a second; – where it is not known.
func rateText(v *float64) string {
	if v == nil {
		return "–"
	}
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "kB/s"}} {
		if n := *v / unit.of; n >= 1 {
			return fmt.Sprintf("%.1f %s", n, unit.name)
		}
	}
	return fmt.Sprintf("%.0f B/s", *v)
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

// level is the colour of a part of what runs out, 0 to 1.
func level(v float64) string {
	switch {
	case v > 0.95:
		return "full"
	case v > 0.85:
		return "high"
	}
	return ""
}

// bar is a picture of a part of a whole, 0 to 1, of a colour.
func bar(v float64, colour string) template.HTML {
	v = min(max(v, 0), 1)
	return template.HTML(fmt.Sprintf(`<svg class="bar %s" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">`+ //nolint:gosec // numbers
		`<rect class="rest" width="100" height="4"/><rect width="%.1f" height="4"/></svg>`, colour, 100*v))
}

// trail is a picture of the last readings, each 0 to 1.
func trail(of []float64) template.HTML {
	if len(of) < 2 {
		return `<svg class="trail" viewBox="0 0 59 20" preserveAspectRatio="none" aria-hidden="true"></svg>`
	}
	var b strings.Builder
	for i, v := range of {
		fmt.Fprintf(&b, "%d,%.1f ", trailLen-len(of)+i, 19-18*math.Min(math.Max(v, 0), 1))
	}
	return template.HTML(`<svg class="trail" viewBox="0 0 59 20" preserveAspectRatio="none" aria-hidden="true">` + //nolint:gosec // numbers
		`<polyline points="` + strings.TrimSpace(b.String()) + `" vector-effect="non-scaling-stroke"/></svg>`)
}
