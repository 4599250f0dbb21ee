package nccltest

import (
	"fmt"
	"math"
	"strings"

	"github.com/sparkrun/sparkrun/workloads/chart"
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
	rows := d.Table.Rows
	low, high := math.Inf(1), math.Inf(-1)
	at := func(bytes int64) float64 { return math.Log2(float64(max(1, bytes))) }
	for _, r := range rows {
		low, high = min(low, at(r.Bytes)), max(high, at(r.Bytes))
	}
	c := chart.Chart{Title: d.title(), Y: "busbw, GB/s", Foot: string(d.Verdict.Grade) + ": " + d.Verdict.Text}
	measured, expected := chart.Line{}, chart.Line{Dashed: true}
	for _, r := range rows {
		x := 0.5
		if high > low {
			x = (at(r.Bytes) - low) / (high - low)
		}
		c.Ticks = append(c.Ticks, chart.Tick{At: x, Text: nettest.Size(r.Bytes)})
		measured.Points = append(measured.Points, chart.Point{At: x, Y: r.Bus()})
		if e := d.expected(r.Bytes); e > 0 {
			expected.Points = append(expected.Points, chart.Point{At: x, Y: e})
		}
	}
	c.Lines = []chart.Line{measured, expected}
	return c.SVG()
}

func (d Drawing) title() string {
	t := or(d.Table.Op, "NCCL test") + ", " + d.Table.Tool
	if hosts := d.Table.Hosts(); len(hosts) > 0 {
		t += ", " + strings.Join(hosts, ", ")
	}
	return t
}
