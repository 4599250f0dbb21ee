// Package figures decides how what machines and ranks use is put into words. What is not told is "-".
//
// It must not judge them.
package figures

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// GPU is how busy a machine's GPUs are, by their mean, how warm the warmest is, and whether that is much or one is slowed down.
func GPU(gpus []usage.GPU) string {
	busy, n, warmest := 0.0, 0, 0.0
	for _, g := range gpus {
		if g.Busy != nil {
			busy, n = busy+*g.Busy, n+1
		}
		if g.Celsius != nil {
			warmest = max(warmest, *g.Celsius)
		}
	}
	var told []string
	if n > 0 {
		told = append(told, fmt.Sprintf("%.0f%%", 100*busy/float64(n)))
	}
	if warmest > 0 {
		told = append(told, fmt.Sprintf("%.0f°C", warmest))
	}
	switch {
	case slices.ContainsFunc(gpus, func(g usage.GPU) bool { return doctor.Slowed(g.Name, g.Throttle, g.Busy, g.MHz, g.MaxMHz) != "" }):
		told = append(told, "slow")
	case warmest >= doctor.HotGPU:
		told = append(told, "hot")
	}
	return cmp.Or(strings.Join(told, " "), "-")
}

// Memory is what of a machine's is in use.
func Memory(m *usage.Memory) string {
	if m == nil || m.Total == 0 {
		return "-"
	}
	return ofGiB(m.Total-m.Available, m.Total)
}

// ofGiB is a part of a machine's memory, to the GiB; of little there is a digit more.
func ofGiB(part, whole int64) string {
	const gib = 1 << 30
	text := strconv.FormatFloat(float64(part)/gib, 'f', 1, 64)
	if part >= 10*gib {
		text = strconv.FormatFloat(float64(part)/gib, 'f', 0, 64)
	}
	return fmt.Sprintf("%s of %.0f GiB", strings.TrimSuffix(text, ".0"), float64(whole)/gib)
}

// WideHeads are above what Wide gives.
var WideHeads = []string{"W", "MHZ", "CPU", "LOAD", "SWAP", "DISK FREE", "RDMA GB/S", "ETHERNET GB/S"}

// Wide is what else a machine uses: its GPUs' power and clock, processors, swap, the fullest disk, the fabric.
func Wide(u *wire.NodeUsage) []string {
	watts, mhz := 0.0, 0.0
	for _, g := range u.GPUs {
		if g.Watts != nil {
			watts += *g.Watts
		}
		if g.MHz != nil {
			mhz = max(mhz, *g.MHz)
		}
	}
	whole := func(v float64) string {
		if v == 0 {
			return "-"
		}
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	cpu, load := "-", "-"
	if c := u.CPU; c != nil {
		if cpu = cores(c.Used); c.Used != nil {
			cpu += fmt.Sprintf(" of %d", c.Cores)
		}
		if c.Load1 != nil {
			load = fmt.Sprintf("%.1f", *c.Load1)
		}
	}
	swap := "-"
	if m := u.Memory; m != nil && m.Swap > 0 {
		swap = ofGiB(m.SwapUsed, m.Swap)
	}
	disk := "-"
	least := int64(-1)
	for _, d := range u.Disks {
		if least < 0 || d.Free < least {
			least, disk = d.Free, launcher.Size(d.Free)
		}
	}
	rdma, ether := Ports(u.Ports)
	return []string{whole(watts), whole(mhz), cpu, load, swap, disk, rdma, ether}
}

// Ports are what a machine's fabric ports carry, in and out, in GB/s.
func Ports(ports []usage.Port) (rdma, ether string) {
	sum := func(of func(usage.Port) (in, out *float64)) string {
		var in, out float64
		told := false
		for _, p := range ports {
			if i, o := of(p); i != nil && o != nil {
				in, out, told = in+*i, out+*o, true
			}
		}
		if !told {
			return "-"
		}
		return fmt.Sprintf("%.2f/%.2f", in/1e9, out/1e9)
	}
	return sum(func(p usage.Port) (in, out *float64) { return p.RDMAIn, p.RDMAOut }),
		sum(func(p usage.Port) (in, out *float64) { return p.EtherIn, p.EtherOut })
}

func cores(used *float64) string {
	if used == nil {
		return "-"
	}
	return strconv.FormatFloat(*used, 'f', 1, 64)
}

// RankHeads are above what Rank gives.
var RankHeads = []string{"CPU", "MEMORY", "GPU MEM"}

// Rank is what one rank uses, or several together; nil: it is not told.
func Rank(r *usage.Rank) []string {
	if r == nil {
		return []string{"-", "-", "-"}
	}
	gpu := "-"
	if r.GPUMemory != nil {
		gpu = launcher.Size(*r.GPUMemory)
	}
	return []string{cores(r.CPU), launcher.Size(r.Memory), gpu}
}

// RankState is what a rank's main process does, in words for what proc_pid_stat(5) has letters for.
func RankState(r *usage.Rank) string {
	if r == nil || r.State == "" {
		return "-"
	}
	switch r.State {
	case "R":
		return "running"
	case "S":
		return "sleeping"
	case "D":
		return "waits for I/O"
	case "T", "t":
		return "suspended"
	case "Z", "X":
		return "ended"
	}
	return r.State
}

// Of is what a job's rank uses, on the machine that has told of it; nil: none has.
func Of(nodes []wire.NodeUsage, j rendezvous.Job, rank int) *usage.Rank {
	for _, n := range nodes {
		for i, r := range n.Ranks {
			if r.Job == j.Spec.ID && r.Generation == j.Plan.Generation && r.Rank == rank {
				return &n.Ranks[i]
			}
		}
	}
	return nil
}

// Sum is what all ranks of a job use; nil: no machine has told of any.
func Sum(nodes []wire.NodeUsage, j rendezvous.Job) (all *usage.Rank) {
	add := func(to **float64, v *float64) {
		if v != nil {
			if *to == nil {
				*to = new(0.0)
			}
			**to += *v
		}
	}
	for rank := range j.Plan.World {
		r := Of(nodes, j, rank)
		if r == nil {
			continue
		}
		if all == nil {
			all = &usage.Rank{}
		}
		all.Memory += r.Memory
		add(&all.CPU, r.CPU)
		if r.GPUMemory != nil {
			all.GPUMemory = new(*r.GPUMemory + deref(all.GPUMemory))
		}
	}
	return all
}

func deref(v *int64) int64 {
	if v == nil {
		return 0
	}
	return *v
}
