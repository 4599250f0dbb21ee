package nccltest

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// Drawing is a result as people see it.
type Drawing struct {
	Table   Table
	Verdict Verdict
	Ranks   int
}

// expected is what a size should reach; 0 where no figure is known.
func (d Drawing) expected(bytes int64) float64 {
	if d.Verdict.Mark == nil {
		return 0
	}
	return d.Verdict.Mark.Full * d.Verdict.Mark.part(d.Table.Op, bytes, d.Ranks)
}

// top is the bandwidth at the right, or upper, edge.
func (d Drawing) top() float64 {
	top := 0.0
	for _, r := range d.Table.Rows {
		top = max(top, r.Bus(), d.expected(r.Bytes))
	}
	return top
}

var eighths = []rune(" ▏▎▍▌▋▊▉█")

// Text is a line for each size with a bar as long as its bandwidth; │ is what is
// expected. It is columns wide at most, and no narrower than its numbers.
func (d Drawing) Text(columns int) string {
	if len(d.Table.Rows) == 0 {
		return ""
	}
	var b strings.Builder
	head := fmt.Sprintf("%10s  %10s  %13s  %13s  %6s", "SIZE", "TIME", "ALGBW", "BUSBW", "WRONG")
	room := max(0, min(columns, 100)-len(head)-3)
	fmt.Fprintf(&b, "%s\n", head)
	top := d.top()
	for _, r := range d.Table.Rows {
		wrong := "N/A"
		if n, checked := r.Wrong(); checked {
			wrong = fmt.Sprintf("%.0f", n)
		}
		line := fmt.Sprintf("%10s  %10s  %8.2f GB/s  %8.2f GB/s  %6s", nettest.Size(r.Bytes), duration(r.Micros()),
			r.Alg(), r.Bus(), wrong)
		if room > 0 && top > 0 {
			line += "  " + bar(r.Bus()/top, d.expected(r.Bytes)/top, room)
		}
		fmt.Fprintln(&b, strings.TrimRight(line, " "))
	}
	return b.String()
}

// bar draws a share of the room, and a mark at another; 0 draws no mark.
func bar(share, mark float64, room int) string {
	cells := []rune(strings.Repeat(" ", room+1))
	filled := int(math.Round(share * float64(room) * 8))
	for i := range room {
		cells[i] = eighths[max(0, min(8, filled-8*i))]
	}
	if mark > 0 {
		at := min(room, int(math.Round(mark*float64(room))))
		if cells[at] == ' ' {
			cells[at] = '│'
		}
	}
	return string(cells)
}

func duration(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.2f s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.2f ms", us/1e3)
	}
	return fmt.Sprintf("%.1f us", us)
}

// SVG draws bandwidth over message size, with what is expected as a dashed line. Sizes
// have a logarithmic scale.
func (d Drawing) SVG() []byte {
	const width, height, left, right, above, below = 760, 420, 70, 20, 40, 60
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="14">%s</text>`+"\n", left, escape(d.title()))
	top := niceTop(d.top())
	rows := d.Table.Rows
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range rows {
		low, high = min(low, math.Log2(float64(max(1, r.Bytes)))), max(high, math.Log2(float64(max(1, r.Bytes))))
	}
	x := func(bytes int64) float64 {
		if high <= low {
			return (left + width - right) / 2
		}
		return left + (math.Log2(float64(max(1, bytes)))-low)/(high-low)*(width-left-right)
	}
	y := func(gbps float64) float64 { return height - below - gbps/top*(height-above-below) }
	for i := range 5 {
		g := top * float64(i) / 4
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`+"\n", left, y(g), width-right, y(g))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left-8, y(g)+4,
			strconv.FormatFloat(g, 'g', 4, 64))
	}
	fmt.Fprintf(&b, `<text x="16" y="%d" transform="rotate(-90 16 %[1]d)" text-anchor="middle">busbw, GB/s</text>`+"\n", (above+height-below)/2)
	every := max(1, (len(rows)+9)/10) // labels that do not overlap
	var measured, expected []string
	for i, r := range rows {
		if i%every == 0 {
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(r.Bytes), height-below+20,
				nettest.Size(r.Bytes))
		}
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="#2a7"/>`+"\n", x(r.Bytes), y(r.Bus()))
		measured = append(measured, fmt.Sprintf("%.1f,%.1f", x(r.Bytes), y(r.Bus())))
		if e := d.expected(r.Bytes); e > 0 {
			expected = append(expected, fmt.Sprintf("%.1f,%.1f", x(r.Bytes), y(e)))
		}
	}
	fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="#2a7" stroke-width="2"/>`+"\n", strings.Join(measured, " "))
	if len(expected) > 0 {
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="#888" stroke-dasharray="6 4"/>`+"\n",
			strings.Join(expected, " "))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n</svg>\n", left, height-14,
		escape(clip(string(d.Verdict.Grade)+": "+d.Verdict.Text, 105)))
	return []byte(b.String())
}

func (d Drawing) title() string {
	t := or(d.Table.Op, "NCCL test") + ", " + d.Table.Tool
	if hosts := d.Table.Hosts(); len(hosts) > 0 {
		t += ", " + strings.Join(hosts, ", ")
	}
	return clip(t, 90)
}

// niceTop is 1, 2, 2.5 or 5 times a power of ten, no less than v.
func niceTop(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 2.5, 5, 10} {
		if v <= n*unit {
			return n * unit
		}
	}
	return 10 * unit
}

func clip(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n-1]) + "…"
}

func escape(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(text)
}
