package metrics

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/usage"
)

// memory tells of the machine's memory, which the GPU of a Spark uses, too.
func (m *Metrics) memory(p *page, now *usage.Memory) {
	if floor := m.cfg.MemoryFloor; floor > 0 {
		p.gauge("sparkrun_memory_floor_bytes", "Below so much available memory the guard ends the largest job.").
			add(float64(floor))
		p.counter("sparkrun_memory_guard_ended_total", "Jobs that the memory guard has ended on this machine.").
			add(float64(m.cfg.Ranks.Guarded()))
	}
	if now != nil {
		p.gauge("sparkrun_memory_bytes", "Memory of the machine.").add(float64(now.Total))
		p.gauge("sparkrun_memory_available_bytes", "What a new program could get.").add(float64(now.Available))
		p.gauge("sparkrun_memory_swap_bytes", "Swap space of the machine.").add(float64(now.Swap))
		p.gauge("sparkrun_memory_swap_free_bytes", "Swap space that is not used.").add(float64(now.Swap - now.SwapUsed))
		if now.CMA != nil && now.CMAFree != nil {
			p.gauge("sparkrun_memory_cma_bytes", "Memory set aside for contiguous allocations.").add(float64(*now.CMA))
			p.gauge("sparkrun_memory_cma_free_bytes", "What is free of it.").add(float64(*now.CMAFree))
		}
		if now.LargeFree != nil {
			p.gauge("sparkrun_memory_free_large_blocks_bytes", "Free memory in contiguous blocks of 2 MiB or more.").
				add(float64(*now.LargeFree))
		}
	}
	if waited, err := m.cfg.Proc.MemoryPressure(); err == nil {
		p.counter("sparkrun_memory_pressure_waiting_seconds_total", "For how long a task has waited for memory (PSI).").
			add(waited.Some.Seconds())
		p.counter("sparkrun_memory_pressure_stalled_seconds_total", "For how long all tasks have at once (PSI).").
			add(waited.Full.Seconds())
	}
}

// ranks tells what jobs hold on this machine, and what each rank uses.
func (m *Metrics) ranks(p *page, now usage.Machine) {
	held := map[launcher.JobID]int64{}
	for key, bytes := range m.cfg.Ranks.Held() {
		held[key.Job] += bytes
	}
	f := p.gauge("sparkrun_job_memory_bytes", "What a job's ranks hold on this machine, by the GPU, too.")
	for _, job := range slices.Sorted(maps.Keys(held)) {
		f.add(float64(held[job]), "job_id", string(job))
	}
	used := p.counter("sparkrun_rank_cpu_seconds_total", "Processor time of a rank's processes.")
	memory := p.gauge("sparkrun_rank_memory_bytes", "What a rank's processes hold, without the GPU.")
	gpu := p.gauge("sparkrun_rank_gpu_memory_bytes", "What a rank's processes hold by the GPU, as its driver says.")
	for _, r := range now.Ranks {
		of := []string{"job_id", string(r.Job), "generation", strconv.FormatUint(uint64(r.Generation), 10), "rank",
			strconv.Itoa(r.Rank)}
		used.add(r.CPUTime.Seconds(), of...)
		memory.add(float64(r.Memory), of...)
		if r.GPUMemory != nil {
			gpu.add(float64(*r.GPUMemory), of...)
		}
	}
}

// gpus tells of GPUs as nvidia-smi does.
func gpus(p *page, all []usage.GPU) {
	busy := p.gauge("sparkrun_gpu_utilization_ratio", "For which part of the time a GPU had work.")
	clock := p.gauge("sparkrun_gpu_clock_hertz", "Clock of a GPU's multiprocessors.")
	highest := p.gauge("sparkrun_gpu_clock_max_hertz", "The highest that it can have.")
	power := p.gauge("sparkrun_gpu_power_watts", "What a GPU draws.")
	heat := p.gauge("sparkrun_gpu_temperature_celsius", "Temperature of a GPU.")
	used := p.gauge("sparkrun_gpu_memory_used_bytes", "Memory of a GPU's own that is used; a Spark's has none.")
	total := p.gauge("sparkrun_gpu_memory_bytes", "Memory of a GPU's own.")
	slowed := p.gauge("sparkrun_gpu_throttled", "Whether a GPU's clock is held down, and by what.")
	for _, g := range all {
		of := []string{"gpu", strconv.Itoa(g.Index), "name", g.Name}
		for _, figure := range []struct {
			of   *family
			v    *float64
			unit float64
		}{{busy, g.Busy, 1}, {clock, g.MHz, 1e6}, {highest, g.MaxMHz, 1e6}, {power, g.Watts, 1}, {heat, g.Celsius, 1}} {
			if figure.v != nil {
				figure.of.add(*figure.v*figure.unit, of...)
			}
		}
		if g.Used != nil && g.Total != nil {
			used.add(float64(*g.Used), of...)
			total.add(float64(*g.Total), of...)
		}
		if g.Throttle == nil { // the driver does not say
			continue
		}
		for _, reason := range usage.ThrottleReasons() {
			slowed.is(slices.Contains(g.Throttle, reason), append(slices.Clone(of), "reason", reason)...)
		}
	}
}

// wordBytes is what the data counters of a port count in (InfiniBand specification, PortCounters).
const wordBytes = 4

// fabric tells what RDMA devices and network interfaces have counted. Of the latter only hardware is told of:
// containers' interfaces come and go.
func (m *Metrics) fabric(p *page) {
	devices, interfaces := m.cfg.Sampler.Totals()
	in := p.counter("sparkrun_rdma_received_bytes_total", "What a port of an RDMA device has received.")
	out := p.counter("sparkrun_rdma_transmitted_bytes_total", "What a port of an RDMA device has sent.")
	events := p.counter("sparkrun_rdma_events_total", "Other counters of a port, by the kernel's names.")
	for _, device := range slices.Sorted(maps.Keys(devices)) {
		for _, name := range slices.Sorted(maps.Keys(devices[device])) {
			n, of := float64(devices[device][name]), []string{"device", device, "port", "1"}
			switch name {
			case "port_rcv_data":
				in.add(n*wordBytes, of...)
			case "port_xmit_data":
				out.add(n*wordBytes, of...)
			default:
				events.add(n, append(of, "counter", name)...)
			}
		}
	}
	link := p.gauge("sparkrun_rdma_link_up", "Whether a port of an RDMA device has a link.")
	inventory := m.cfg.Inventory.Load()
	for _, port := range envgen.Ports(inventory) {
		for _, twin := range port.Twins {
			link.is(twin.State == envgen.StateActive, "device", twin.Name, "port", "1")
		}
	}
	in = p.counter("sparkrun_interface_received_bytes_total", "What a network interface has received, without RDMA.")
	out = p.counter("sparkrun_interface_transmitted_bytes_total", "What a network interface has sent, without RDMA.")
	for _, nic := range inventory.NICs {
		if counts := interfaces[nic.Name]; nic.Physical && counts != nil {
			in.add(float64(counts["rx_bytes"]), "interface", nic.Name)
			out.add(float64(counts["tx_bytes"]), "interface", nic.Name)
		}
	}
}

// agent tells what the agent itself costs, under the names that all programs have for it.
func agent(p *page) {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) == nil {
		p.counter("process_cpu_seconds_total", "Processor time of the agent.").
			add(float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9)
	}
	if b, err := os.ReadFile(string(proc.Here) + "/self/statm"); err == nil {
		// The second field of proc_pid_statm(5) is in pages.
		if f := strings.Fields(string(b)); len(f) > 1 {
			if pages, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				p.gauge("process_resident_memory_bytes", "Memory of the agent.").add(float64(pages * int64(os.Getpagesize())))
			}
		}
	}
}
