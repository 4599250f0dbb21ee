package doctor

import (
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

// The codes of all findings except the topology's. They are an interface: scripts match them, so a code is never
// renamed or reused.
const (
	// Of the cluster.
	codeNodeAway   = "node-away"
	codeNoLeader   = "no-leader"
	codeNoAgent    = "no-agent"
	codeRemoved    = "removed"
	codeFabricOnly = "fabric-only" // the fabric joins two members, and management does not
	// Of packets between nodes.
	codePeerUnreachable = "peer-unreachable"
	codePathMTU         = "path-mtu"
	codeAddressTaken    = "address-taken"
	codePortUnreachable = "port-unreachable"
	codeUntried         = "reach-untried"
	// Of limits and of what is installed.
	codeMemlock        = "memlock"
	codeOpenFiles      = "open-files"
	codeDockerMissing  = "docker-missing"
	codeDockerDown     = "docker-down"
	codeDockerGPU      = "docker-gpu"
	codeNCCLConf       = "nccl-conf"
	codeNCCLConfBogus  = "nccl-conf-bogus"
	codeNCCLOld        = "nccl-old"
	codePeerMem        = "peermem"
	codeOtherProgram   = "other-sparkrun"
	codeNetplanTwice   = "netplan-twice"
	codeRemoveIPC      = "remove-ipc"
	codeFirewall       = "firewall"
	codeFactsMissing   = "facts-missing"
	codeClockUnsynched = "clock-unsynchronised"
	// Of where models lie.
	codeCacheOwner   = "cache-owner"
	codeModelStorage = "model-storage"
	// Of resources that run short.
	codeDiskFull  = "disk-full"
	codeMemoryLow = "memory-low"
	codePageCache = "page-cache"
	codeSwapUsed  = "swap-used"
	codeFragments = "memory-fragmented"
	codeCMA       = "cma-scratch"
	codeCacheKept = "page-cache-kept"
	// Of what slows or ends a machine.
	codeGPUSilent   = "gpu-silent"
	codeGPUClock    = "gpu-clock"
	codeGPUThrottle = "gpu-throttled"
	codeHeat        = "heat"
	codeBehind      = "load-behind" // of doctor --load alone
	codeWentOff     = "went-off"
	// Of the nodes compared with each other.
	codeClockSkew       = "clock-skew"
	codeDriverUnequal   = "driver-unequal"
	codeNCCLUnequal     = "nccl-unequal"
	codeVLLMUnequal     = "vllm-unequal"
	codeTorchUnequal    = "torch-unequal"
	codeNCCLConfUnequal = "nccl-conf-unequal"
	codeKernelUnequal   = "kernel-unequal"
	codeVolumeShared    = "volume-shared"
)

// Explanations are those of all codes that a finding may have.
func Explanations() []envgen.Explanation {
	var out []envgen.Explanation
	for _, e := range ofCluster {
		out = append(out, envgen.Explanation{Code: e[0], Text: e[1]})
	}
	out = append(out, topology.Explanations()...)
	for _, e := range slices.Concat(ofPackets, ofMachines, ofLoads) {
		out = append(out, envgen.Explanation{Code: e[0], Text: e[1]})
	}
	return out
}

// What the codes mean, in the order in which they are listed.
var (
	ofCluster = [][2]string{
		{codeNoAgent, "no agent runs on this machine: only what the machine itself shows was looked at"},
		{codeRemoved, "this machine was removed from its cluster, and its agent keeps the keys: `sudo sparkrun leave` " +
			"removes them"},
		{codeNoLeader, "the cluster has no leader: nothing can be launched or stopped"},
		{codeFabricOnly, "the leader reaches a member over the fabric alone: the management network between them is " +
			"dead, and nothing else would stand in for the fabric"},
		{codeNodeAway, "a member's agent does not answer: nothing can be launched there, and nothing was learnt of it"},
	}
	ofPackets = [][2]string{
		{codePeerUnreachable, "a ping over a subnet that two nodes share got no answer, though cable and addresses " +
			"are right"},
		{codePathMTU, "small packets pass and packets as large as the MTU do not: a port on the way has a smaller " +
			"MTU, and jobs hang in their first large message"},
		{codeAddressTaken, "another machine answers for an address of this node"},
		{codePortUnreachable, "a node cannot open a connection to another node's agent"},
		{codeUntried, "a check that sends packets was not possible"},
	}
	ofLoads = [][2]string{
		{codeBehind, "under the same load a machine reaches less than 0.8 of its peers' median: doctor --load"},
	}
	ofMachines = [][2]string{
		{codeMemlock, "ranks may lock too little memory: RDMA pins what it sends, and NCCL fails to register its " +
			"buffers"},
		{codeOpenFiles, "ranks may open too few files for the connections and shared memory of a large job"},
		{codeDockerMissing, "Docker is not installed: jobs in containers cannot run there"},
		{codeDockerDown, "Docker is installed and its engine does not answer"},
		{codeDockerGPU, "Docker knows neither the nvidia runtime nor a CDI device: containers have no GPU"},
		{codeNCCLConf, "a file that NCCL reads by itself sets something: it holds for every job and nobody sees it " +
			"in a job's environment"},
		{codeNCCLConfBogus, "a file that NCCL reads sets a variable that NCCL does not have: it does nothing"},
		{codeNCCLOld, "NCCL is too old for what the fabric needs: 2.21 chooses RoCE GIDs itself, 2.30.7 knows rings " +
			"without a switch"},
		{codePeerMem, "nvidia-peermem is loaded at boot, which fails on GB10: GPUDirect RDMA is not supported " +
			"there, and nothing needs it"},
		{codeOtherProgram, "another program is called sparkrun, and may be what a user starts"},
		{codeNetplanTwice, "two netplan files name one NIC: netplan adds their address lists up, and of the rest " +
			"the later file wins"},
		{codeRemoveIPC, "logind removes the shared memory of a user at the end of his last session, also that of " +
			"his running jobs"},
		{codeFirewall, "the packet filter refuses what no rule accepts, and no rule names the agent's ports"},
		{codeFactsMissing, "something about the machine could not be read, and was not judged"},
		{codeClockUnsynched, "nothing keeps the clock: it will drift from the other nodes'"},
		{codeCacheOwner, "root's files lie in a user's cache of models, where downloads as that user fail then"},
		{codeModelStorage, "models lie on storage from which one takes minutes to load"},
		{codeDiskFull, "a disk that the agent or jobs write to is nearly full"},
		{codeMemoryLow, "little memory is available: on unified memory an over-full GPU allocation can freeze the " +
			"whole machine"},
		{codePageCache, "the page cache holds much memory, which counts against the GPU on unified memory"},
		{codeSwapUsed, "memory has been swapped out: jobs on it crawl"},
		{codeFragments, "much memory is free, in small pieces only: allocations of a GPU and of RDMA need large ones, and a " +
			"model loads for minutes or not at all"},
		{codeCMA, "the kernel counts more free CMA memory than it has: it keeps pages for handing over to another kernel " +
			"(KHO), in which RDMA cannot register buffers once other memory is short"},
		{codeCacheKept, "the agent has no right to drop the page cache, as it does before a job with a GPU starts"},
		{codeGPUSilent, "nvidia-smi is there and tells nothing: the GPU is lost, or its driver hangs or is not loaded"},
		{codeGPUClock, "a busy GPU runs at less than half of its highest clock, or under doctor --load at less than 0.8 of " +
			"what sound ones of its kind do: power or firmware holds it back, on a GB10 often until mains is pulled"},
		{codeGPUThrottle, "a GPU slows itself, as it is too hot or its power supply asks for it"},
		{codeHeat, "a device is near the temperature at which it slows down or the machine goes off"},
		{codeWentOff, "the machine went off without a shutdown: mains, heat, a reset or a frozen kernel"},
		{codeClockSkew, "a node's clock is off from the others': logs are out of order, and by much certificates " +
			"are refused"},
		{codeDriverUnequal, "the nodes run different NVIDIA drivers"},
		{codeNCCLUnequal, "the nodes have different NCCL versions in the same place: NCCL refuses to mix them"},
		{codeVLLMUnequal, "the nodes have different vLLM versions in the same place: its workers do not understand " +
			"one another"},
		{codeTorchUnequal, "the nodes have different PyTorch versions in the same place"},
		{codeNCCLConfUnequal, "a file that NCCL reads says something else on another node: what must be alike is not"},
		{codeKernelUnequal, "the nodes run different kernels"},
		{codeVolumeShared, "one ext4, xfs or btrfs volume is mounted for writing on two nodes, which destroys it"},
	}
)
