package doctor

import "time"

// Facts are what one node was at one moment. Absent facts are nil or empty, never 0. They travel between nodes and
// into bug reports as they are.
type Facts struct {
	// OS is PRETTY_NAME of /etc/os-release, DGX the release in /etc/dgx-release (empty on other machines), Kernel the
	// running kernel's release.
	OS     string `json:"os,omitempty"`
	DGX    string `json:"dgx,omitempty"`
	Kernel string `json:"kernel,omitempty"`
	// User is the login for whom the node was examined, with that user's home and
	// limits.
	User string `json:"user,omitempty"`
	// RDMA counts the devices in /sys/class/infiniband.
	RDMA int `json:"rdma"`

	Limits   Limits    `json:"limits"`
	Docker   Docker    `json:"docker"`
	NCCLConf []Conf    `json:"nccl_conf,omitempty"`
	Driver   string    `json:"nvidia_driver,omitempty"`
	Packages []Package `json:"packages,omitempty"`
	Clock    Clock     `json:"clock"`
	Disks    []Disk    `json:"disks,omitempty"`
	// Memory is nil where /proc/meminfo could not be read.
	Memory   *Memory   `json:"memory,omitempty"`
	Firewall *Firewall `json:"firewall,omitempty"`
	Programs []Program `json:"programs,omitempty"`
	Volumes  []Volume  `json:"volumes,omitempty"`
	// HubCache is User's; nil where there is none. Models are folders with models, the machine's first.
	HubCache *HubCache    `json:"hub_cache,omitempty"`
	Models   []ModelStore `json:"models,omitempty"`
	// Netplan lists the fabric NICs that more than one netplan file of the node configures.
	Netplan []Mention `json:"netplan,omitempty"`
	// RemoveIPC tells whether logind removes a user's shared memory at the end of the last session, and Lingers
	// whether User is exempt; both nil where there is no logind.
	RemoveIPC *bool `json:"remove_ipc,omitempty"`
	Lingers   *bool `json:"lingers,omitempty"`
	// PeerMem are the lines that load nvidia-peermem, as file:line.
	PeerMem []string `json:"peermem,omitempty"`
	// GPUs are as nvidia-smi has them, where somebody reads them for this machine.
	GPUs []GPU `json:"gpus,omitempty"`
	// GPUSilent says why nvidia-smi, which is there, tells nothing of them.
	GPUSilent string `json:"gpu_silent,omitempty"`
	// Heat are the sensors that know a temperature from which on their device ends itself.
	Heat []Heat `json:"heat,omitempty"`
	// CacheKept says why the agent may not drop the page cache; empty where it may, and where no agent runs.
	CacheKept string `json:"cache_kept,omitempty"`
	// WentOff is set where the boot before this one ended less than a week ago and without a shutdown.
	WentOff *WentOff `json:"went_off,omitempty"`
	// Trouble says which facts could not be read.
	Trouble []string `json:"trouble,omitempty"`
}

// Limit is a resource limit; nil as a *Limit means that it is not known.
type Limit struct {
	Unlimited bool `json:"unlimited,omitempty"`
	// Value is in the resource's unit: bytes for memlock, a number for open files.
	Value uint64 `json:"value,omitempty"`
}

// Limits are the limits of what the agent starts.
type Limits struct {
	// Memlock (bytes) and Files are the agent's own soft limits, which ranks inherit.
	Memlock *Limit `json:"memlock,omitempty"`
	Files   *Limit `json:"files,omitempty"`
	// Unit is LimitMEMLOCK of the service's unit and its drop-ins, as written; empty where none sets
	// it.
	Unit string `json:"unit,omitempty"`
	// PAM are the memlock lines of /etc/security/limits.conf and limits.d, as file:line text. They apply to logins,
	// not to services, contrary to what people expect.
	PAM []string `json:"pam,omitempty"`
}

// Docker is the container engine.
type Docker struct {
	// Installed is the path of its client; empty where there is none.
	Installed string `json:"installed,omitempty"`
	// Version is the running engine's; empty where it does not run, and Trouble then says why.
	Version string `json:"version,omitempty"`
	Trouble string `json:"trouble,omitempty"`
	// Runtimes are the engine's, sorted; CDI the kinds of devices in CDI files: nvidia.com/gpu.
	Runtimes []string `json:"runtimes,omitempty"`
	CDI      []string `json:"cdi,omitempty"`
}

// Conf is a configuration file that NCCL reads by itself.
type Conf struct {
	Path     string    `json:"path"`
	Settings []Setting `json:"settings,omitempty"`
}

// Setting is one line of a Conf.
type Setting struct {
	Line  int    `json:"line"` // from 1
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Package is an installed library that must be the same on all nodes.
type Package struct {
	// Name is nccl, torch or vllm.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Where is the folder it lies in. Packages in the same folder on two nodes are meant to be
	// equal.
	Where string `json:"where"`
}

// Clock is the node's, at the moment it was examined.
type Clock struct {
	// Synchronised is as the kernel says (adjtimex); nil where it did not say.
	Synchronised *bool `json:"synchronised,omitempty"`
	// Offset is how far the clock is ahead of the asking node's, plus or minus Bound; both nil where it was not
	// measured.
	Offset *time.Duration `json:"offset,omitempty"`
	Bound  *time.Duration `json:"bound,omitempty"`
}

// Disk is where sparkrun or its jobs write.
type Disk struct {
	// What it is for: state, output, tmp.
	What  string `json:"what"`
	Path  string `json:"path"`
	Free  uint64 `json:"free"` // bytes free for users other than root
	Total uint64 `json:"total"`
}

// Memory is in bytes, from /proc/meminfo.
type Memory struct {
	Total     uint64 `json:"total"`
	Free      uint64 `json:"free"`
	Available uint64 `json:"available"`
	// Cached is the page cache without shared memory, which drop_caches does not free.
	Cached   uint64 `json:"cached"`
	Swap     uint64 `json:"swap"`
	SwapUsed uint64 `json:"swap_used"`
	// LargeFree is free in contiguous blocks of 2 MiB or more, by /proc/buddyinfo.
	LargeFree *uint64 `json:"large_free,omitempty"`
	// CMA and CMAFree are what is set aside for contiguous allocations, and what the kernel counts as free of it.
	CMA     *uint64 `json:"cma,omitempty"`
	CMAFree *uint64 `json:"cma_free,omitempty"`
}

// GPU is one, at the moment it was looked at.
type GPU struct {
	Index   int      `json:"index"`
	Name    string   `json:"name"`
	Busy    *float64 `json:"busy,omitempty"` // 0 to 1
	MHz     *float64 `json:"clock_mhz,omitempty"`
	MaxMHz  *float64 `json:"clock_max_mhz,omitempty"`
	Watts   *float64 `json:"watts,omitempty"`
	Celsius *float64 `json:"celsius,omitempty"`
	// Throttle are the reasons that slow it, as nvidia-smi names them: hw_thermal_slowdown.
	Throttle []string `json:"throttle,omitempty"`
}

// Heat is one sensor.
type Heat struct {
	Sensor   string  `json:"sensor"` // nvme Composite
	Celsius  float64 `json:"celsius"`
	Critical float64 `json:"critical"` // °C
}

// WentOff is an end that nothing announced: mains, heat, a reset, a frozen kernel.
type WentOff struct {
	Last time.Time `json:"last"`          // the last line of that boot's journal
	Back time.Time `json:"back,omitzero"` // when this boot began
}

// Firewall is what the packet filter seems to do: only peers' connections prove it.
type Firewall struct {
	// Drops describes the input chains that refuse what no rule accepts.
	Drops []string `json:"drops,omitempty"`
	// Accepts are those of our ports that a rule accepts.
	Accepts []int `json:"accepts,omitempty"`
}

// Program is one `sparkrun` in PATH.
type Program struct {
	Path string `json:"path"`
	// Ours is true for this agent's own program.
	Ours bool `json:"ours,omitempty"`
	// Python is true for a Python script.
	Python bool `json:"python,omitempty"`
}

// Volume is a mounted file system that only one machine at a time may mount for writing.
type Volume struct {
	Device string `json:"device"`
	Dir    string `json:"dir"`
	FS     string `json:"fs"`
	UUID   string `json:"uuid"`
	Write  bool   `json:"write,omitempty"`
	// Transport is how the machine reaches the disk: pcie, tcp, rdma, iscsi, fc; empty where sysfs does not tell.
	Transport string `json:"transport,omitempty"`
}

// Mention is a netplan file that names a fabric NIC which another file names too.
type Mention struct {
	NIC  string `json:"nic"`
	Path string `json:"path"`
	Line int    `json:"line"`
	// Effect says what that does; Remedy is a command that ends it.
	Effect string `json:"effect"`
	Remedy string `json:"remedy"`
	// Blocks is true where the NIC does not get what sparkrun's own file says.
	Blocks bool `json:"blocks,omitempty"`
}

// Measure works out the offset from the four times of one exchange: asked and answered by the asker's clock,
// received and sent by the node's. How the travel time divides between the two ways is not known; half of it bounds
// the error.
func (c *Clock) Measure(asked, received, sent, answered time.Time) {
	way := answered.Sub(asked) - sent.Sub(received)
	offset, bound := (received.Sub(asked)+sent.Sub(answered))/2, max(way, 0)/2
	c.Offset, c.Bound = &offset, &bound
}
