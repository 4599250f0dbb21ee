package nccltest

import (
	"strings"
	"testing"
)

// A drawing has a line for each size, keeps to the width, and puts nothing of a host's
// name into the picture's markup.
func TestDrawing(t *testing.T) {
	table := result(2, big, 12)
	table.Devices[0].Host = `<b>&"`
	table.Rows = append(table.Rows, Row{Bytes: 1 << 20, Out: &Point{Micros: 300, Alg: 4, Bus: 2}})
	v := Evaluate(table, Log{}, pair(t).setting(t))
	for _, columns := range []int{0, 40, 80, 300} {
		text := Drawing{Table: table, Verdict: v, Ranks: 2}.Text(columns)
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) != 3 || !strings.Contains(lines[1], "16 GiB") || !strings.Contains(lines[2], "N/A") {
			t.Errorf("%d columns:\n%s", columns, text)
		}
		for _, l := range lines {
			if n := len([]rune(l)); n > max(columns, 60) {
				t.Errorf("%d columns: a line has %d", columns, n)
			}
		}
		if columns == 80 && (!strings.Contains(lines[1], "█") || !strings.Contains(lines[1], "│")) {
			t.Errorf("no bar with its mark: %s", lines[1])
		}
	}
	svg := string(Drawing{Table: table, Verdict: v, Ranks: 2}.SVG())
	if strings.Contains(svg, "<b>") || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") ||
		strings.Count(svg, "<polyline") != 2 {
		t.Error(svg)
	}
	empty := Drawing{}
	if svg := string(empty.SVG()); strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error(svg)
	}
}
