package nettest

import (
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
