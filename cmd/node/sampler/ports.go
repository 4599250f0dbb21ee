package sampler

import (
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/usage"
)

// totals are what devices and interfaces have counted since they are up.
type totals struct{ devices, interfaces map[string]map[string]uint64 }

// wordBytes is what the data counters of an RDMA port count in (InfiniBand specification, PortCounters).
const wordBytes = 4

// ports gives what each physical port carries, by its first interface's name: its twins added up. Over is the time since
// was.
func ports(inv envgen.Inventory, now, was totals, over time.Duration) (all []usage.Port) {
	for _, p := range envgen.Ports(inv) {
		u := usage.Port{Name: p.Twins[0].Netdev}
		if u.Name == "" {
			u.Name = p.Twins[0].Name
		}
		for _, twin := range p.Twins {
			device, before := now.devices[twin.Name], was.devices[twin.Name]
			add(&u.RDMAIn, rate(device, before, "port_rcv_data", over), wordBytes)
			add(&u.RDMAOut, rate(device, before, "port_xmit_data", over), wordBytes)
			nic, before2 := now.interfaces[twin.Netdev], was.interfaces[twin.Netdev]
			add(&u.EtherIn, rate(nic, before2, "rx_bytes", over), 1)
			add(&u.EtherOut, rate(nic, before2, "tx_bytes", over), 1)
			for name, n := range device {
				if before, known := before[name]; known && n > before && isError(name) {
					if u.Errors == nil {
						u.Errors = map[string]uint64{}
					}
					u.Errors[name] += n - before
				}
			}
		}
		all = append(all, u)
	}
	return all
}

func rate(now, before map[string]uint64, name string, over time.Duration) *float64 {
	n, is := now[name]
	b, was := before[name]
	if !is || !was {
		return nil
	}
	return usage.Rate(&n, &b, over)
}

func add(sum **float64, more *float64, unit float64) {
	switch {
	case more == nil:
	case *sum == nil:
		*sum = new(*more * unit)
	default:
		**sum += *more * unit
	}
}

// isError goes by words, as firmware brings new counters: of the port (symbol_error, link_downed, port_rcv_errors,
// port_xmit_discards), of RoCE (out_of_sequence, packet_seq_err, local_ack_timeout_err, rx_icrc_encapsulated,
// roce_adp_retrans, rnr_nak_retry_err). What tells of congestion alone (np_cnp_sent, port_xmit_wait) is none, nor what
// each end of a connection counts (req_cqe_flush_error, resp_cqe_flush_error).
func isError(counter string) bool {
	if strings.Contains(counter, "flush") {
		return false
	}
	for _, word := range []string{"err", "link_downed", "discard", "out_of_sequence", "icrc", "retrans", "drops", "timeout"} {
		if strings.Contains(counter, word) {
			return true
		}
	}
	return false
}
