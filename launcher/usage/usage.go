// Package usage reads what a machine and the ranks on it use at this moment: memory, processor, GPUs, disks, heat.
//
// It decides how the texts of /proc, /sys and nvidia-smi are understood. What a machine does not tell is absent (nil or
// empty), never 0.
//
// It must not judge what it reads, nor keep a history: the first is envgen/doctor's, the second whoever asks has.
package usage

import (
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Machine is what one machine uses. Rates are means over Over, which is the time since the reading before.
type Machine struct {
	At   time.Time     `json:"at,omitzero"`
	Over time.Duration `json:"over_ns,omitempty"` // 0: this is the first reading, and there are no rates

	CPU    *CPU    `json:"cpu,omitempty"`
	Memory *Memory `json:"memory,omitempty"`
	GPUs   []GPU   `json:"gpus,omitempty"`
	Disks  []Disk  `json:"disks,omitempty"`
	Heat   []Heat  `json:"heat,omitempty"`
	Ports  []Port  `json:"ports,omitempty"`
	Ranks  []Rank  `json:"ranks,omitempty"`
	// Others are the processes of no rank that hold much of a GPU's memory.
	Others []Other `json:"others,omitempty"`

	// GPUSilent says why nvidia-smi tells nothing of the GPUs; empty: it does, or there is none.
	GPUSilent string `json:"gpu_silent,omitempty"`
}

// CPU is the processors of a machine.
type CPU struct {
	Cores int      `json:"cores"`
	Used  *float64 `json:"used,omitempty"`  // cores in use, 0 to Cores
	Load1 *float64 `json:"load1,omitempty"` // proc_loadavg(5), over a minute
}

// Memory is that of the machine, in bytes; on a GB10 the GPU's, too.
type Memory struct {
	Total     int64 `json:"total_bytes"`
	Available int64 `json:"available_bytes"` // what a new program could get
	Cache     int64 `json:"cache_bytes"`     // pages of files
	Swap      int64 `json:"swap_bytes"`
	SwapUsed  int64 `json:"swap_used_bytes"`
	// LargeFree is free memory in contiguous blocks of 2 MiB or more, by /proc/buddyinfo.
	LargeFree *int64 `json:"large_free_bytes,omitempty"`
	CMA       *int64 `json:"cma_bytes,omitempty"`
	CMAFree   *int64 `json:"cma_free_bytes,omitempty"`
	// Stalled is for which part of the time, 0 to 1, all tasks waited for memory at once (PSI).
	Stalled *float64 `json:"stalled,omitempty"`
	// SwapIn is what is read back from swap, in bytes a second.
	SwapIn *float64 `json:"swap_in_bps,omitempty"`
}

// GPU is one, as nvidia-smi has it.
type GPU struct {
	Index   int      `json:"index"`
	Name    string   `json:"name"`
	Busy    *float64 `json:"busy,omitempty"`          // utilization.gpu, 0 to 1
	MHz     *float64 `json:"clock_mhz,omitempty"`     // clocks.sm
	MaxMHz  *float64 `json:"clock_max_mhz,omitempty"` // clocks.max.sm
	Watts   *float64 `json:"watts,omitempty"`
	Celsius *float64 `json:"celsius,omitempty"`
	Used    *int64   `json:"used_bytes,omitempty"`  // absent on GB10, whose memory is the machine's
	Total   *int64   `json:"total_bytes,omitempty"` // the same
	// Throttle are the reasons that slow it: "hw_thermal_slowdown" and the like; nil: it does not say.
	Throttle []string `json:"throttle,omitzero"`
}

// Disk is a file system that the agent or jobs write to.
type Disk struct {
	Mount string `json:"mount"`
	Total int64  `json:"total_bytes"`
	Free  int64  `json:"free_bytes"` // for others than root
	// Inodes are how many files it can have, InodesFree how many more; nil where that is not bounded.
	Inodes     *uint64 `json:"inodes,omitempty"`
	InodesFree *uint64 `json:"inodes_free,omitempty"`
	// Read and Written are bytes a second of the device below it.
	Read    *float64 `json:"read_bps,omitempty"`
	Written *float64 `json:"written_bps,omitempty"`
}

// Heat is a thermal zone's.
type Heat struct {
	Zone    string  `json:"zone"`
	Celsius float64 `json:"celsius"`
}

// Port is a fabric port: what its RDMA devices and its network interfaces carry, in bytes a second, apart. A job that
// was to use RDMA and does not shows in the second.
type Port struct {
	Name     string   `json:"name"`
	RDMAIn   *float64 `json:"rdma_in_bps,omitempty"`
	RDMAOut  *float64 `json:"rdma_out_bps,omitempty"`
	EtherIn  *float64 `json:"ether_in_bps,omitempty"`
	EtherOut *float64 `json:"ether_out_bps,omitempty"`
}

// Rank is what the processes of one rank use.
type Rank struct {
	Job        launcher.JobID      `json:"job_id"`
	Generation launcher.Generation `json:"generation"`
	Rank       int                 `json:"rank"`
	PIDs       int                 `json:"pids"`
	CPU        *float64            `json:"cpu,omitempty"` // cores in use
	// CPUTime is what they have used, those of its processes included that were seen, or waited for, and have ended: it
	// only grows.
	CPUTime   time.Duration `json:"cpu_time_ns"`
	Memory    int64         `json:"memory_bytes"`
	GPUMemory *int64        `json:"gpu_memory_bytes,omitempty"` // nvidia-smi --query-compute-apps
	// State is of the main process: R, S, D, T or Z as proc_pid_stat(5) has them.
	State string `json:"state,omitempty"`
}

// Other is a process of no rank.
type Other struct {
	PID       int            `json:"pid"`
	Name      string         `json:"name"`
	User      string         `json:"user"`
	Job       launcher.JobID `json:"job_id,omitempty"` // whose mark it bears, as what a job that is over has left
	GPUMemory int64          `json:"gpu_memory_bytes"`
}
