package nettest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Traffic is what one device or interface counted during a test.
type Traffic struct {
	Host   string `json:"host"`
	Device string `json:"device"`
	// RDMA: it is an RDMA device, and the bytes are RDMA's.
	RDMA bool `json:"rdma,omitempty"`
	// Sent and Received are bytes.
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
	// Lost counts packets lost or sent again; LostWords are the counters.
	Lost      uint64 `json:"lost,omitempty"`
	LostWords string `json:"lost_words,omitempty"`
}

// wordBytes: port_xmit_data and port_rcv_data count words of four bytes (InfiniBand
// Architecture Specification, PortCounters).
const wordBytes = 4

// lossCounters speak of packets that were lost or sent again (mlx5's hw_counters).
var lossCounters = []string{"packet_seq_err", "out_of_sequence", "local_ack_timeout_err", "implied_nak_seq_err",
	"rnr_nak_retry_err", "roce_adp_retrans_to"}

// lossesPerSecond is how many are worth a word: a burst at the start is no harm.
const lossesPerSecond = 1

// Counted is what a node's devices did between two readings of their totals, each by
// device and counter, with span between them. What is lower after than before was reset
// meanwhile, and is left out; so is what one of them lacks.
func Counted(host string, before, after map[string]map[string]uint64, span time.Duration) []Traffic {
	var out []Traffic
	for _, device := range slices.Sorted(maps.Keys(after)) {
		then, known := before[device]
		if !known {
			continue
		}
		now := after[device]
		since := func(name string) (n uint64, ok bool) {
			a, here := now[name]
			b, there := then[name]
			return a - b, here && there && a >= b
		}
		t := Traffic{Host: host, Device: device}
		sent, rdma := since("port_xmit_data")
		received, _ := since("port_rcv_data")
		if rdma {
			t.RDMA, t.Sent, t.Received = true, sent*wordBytes, received*wordBytes
			var words []string
			lost := uint64(0)
			for _, name := range lossCounters {
				if n, ok := since(name); ok && n > 0 {
					lost += n
					words = append(words, fmt.Sprintf("%s +%d", name, n))
				}
			}
			if float64(lost) > lossesPerSecond*span.Seconds() {
				t.Lost, t.LostWords = lost, strings.Join(words, ", ")
			}
		} else {
			var ok bool
			if t.Sent, ok = since("tx_bytes"); !ok {
				continue
			}
			t.Received, _ = since("rx_bytes")
		}
		out = append(out, t)
	}
	return out
}

// Busiest names the device of each host that sent most, for people: "spark1 enp1s0f0np0 1.2 GiB".
func Busiest(traffic []Traffic) []string {
	best := map[string]Traffic{}
	for _, t := range traffic {
		if t.Device != "lo" && t.Sent > best[t.Host].Sent {
			best[t.Host] = t
		}
	}
	var out []string
	for _, host := range slices.Sorted(maps.Keys(best)) {
		out = append(out, fmt.Sprintf("%s %s %s", host, best[host].Device, Size(int64(best[host].Sent))))
	}
	return out
}
