package nccltest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCounted(t *testing.T) {
	before := map[string]map[string]uint64{
		"rocep1s0f0":   {"port_xmit_data": 100, "port_rcv_data": 10, "packet_seq_err": 5},
		"roceP2p1s0f0": {"port_xmit_data": 100, "port_rcv_data": 10, "packet_seq_err": 5},
		"reset":        {"port_xmit_data": 100},
		"enP7s7":       {"tx_bytes": 7, "rx_bytes": 8},
	}
	after := map[string]map[string]uint64{
		"rocep1s0f0":   {"port_xmit_data": 1100, "port_rcv_data": 20, "packet_seq_err": 8},
		"roceP2p1s0f0": {"port_xmit_data": 100, "port_rcv_data": 10, "packet_seq_err": 905},
		"reset":        {"port_xmit_data": 1},
		"enP7s7":       {"tx_bytes": 17, "rx_bytes": 28},
		"new":          {"tx_bytes": 1 << 40},
	}
	want := []Traffic{
		{Host: "h", Device: "enP7s7", Sent: 10, Received: 20},
		{Host: "h", Device: "roceP2p1s0f0", RDMA: true, Lost: 900, LostWords: "packet_seq_err +900"},
		{Host: "h", Device: "rocep1s0f0", RDMA: true, Sent: 4000, Received: 40}, // three losses in 10 s are no word
	}
	if diff := cmp.Diff(want, Counted("h", before, after, 10*time.Second)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := Counted("h", nil, after, time.Second); len(got) != 0 {
		t.Errorf("a node that told nothing before: %+v", got)
	}
}

// A drawing has a line for each size, keeps to the width, and puts nothing of a host's
// name into the picture's markup.
func TestDrawing(t *testing.T) {
	table := result(2, big, 12)
	table.Devices[0].Host = `<b>&"`
	table.Rows = append(table.Rows, Row{Bytes: 1 << 20, Out: &Point{Micros: 300, Alg: 4, Bus: 2}})
	v := Judge(table, Log{}, pair(t).setting(t))
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
	if strings.Contains(svg, "<b>") || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") || strings.Count(svg, "<polyline") != 2 {
		t.Error(svg)
	}
	empty := Drawing{}
	if svg := string(empty.SVG()); strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error(svg)
	}
}
