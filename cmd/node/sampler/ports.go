package sampler

import (
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
			counts, before := now.devices[twin.Name], was.devices[twin.Name]
			add(&u.RDMAIn, rate(counts, before, "port_rcv_data", over), wordBytes)
			add(&u.RDMAOut, rate(counts, before, "port_xmit_data", over), wordBytes)
			counts, before = now.interfaces[twin.Netdev], was.interfaces[twin.Netdev]
			add(&u.EtherIn, rate(counts, before, "rx_bytes", over), 1)
			add(&u.EtherOut, rate(counts, before, "tx_bytes", over), 1)
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
