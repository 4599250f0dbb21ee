package host

import "github.com/sparkrun/sparkrun/envgen"

// The codes of all findings. They are an interface: scripts match them, so a code is never renamed or reused.
const (
	// Of limits and of what is installed.
	CodeMemlock        = "memlock"
	CodeOpenFiles      = "open-files"
	CodeDockerMissing  = "docker-missing"
	CodeDockerDown     = "docker-down"
	CodeDockerGPU      = "docker-gpu"
	CodeNCCLConf       = "nccl-conf"
	CodeNCCLConfBogus  = "nccl-conf-bogus"
	CodeNCCLOld        = "nccl-old"
	CodePeerMem        = "peermem"
	CodeOtherProgram   = "other-sparkrun"
	CodeNetplanTwice   = "netplan-twice"
	CodeRemoveIPC      = "remove-ipc"
	CodeFirewall       = "firewall"
	CodeFactsMissing   = "facts-missing"
	CodeClockUnsynched = "clock-unsynchronised"
	// Of what runs short.
	CodeDiskFull  = "disk-full"
	CodeMemoryLow = "memory-low"
	CodePageCache = "page-cache"
	CodeSwapUsed  = "swap-used"
	// Of nodes compared.
	CodeClockSkew       = "clock-skew"
	CodeDriverUnequal   = "driver-unequal"
	CodeNCCLUnequal     = "nccl-unequal"
	CodeVLLMUnequal     = "vllm-unequal"
	CodeTorchUnequal    = "torch-unequal"
	CodeNCCLConfUnequal = "nccl-conf-unequal"
	CodeKernelUnequal   = "kernel-unequal"
	CodeVolumeShared    = "volume-shared"
)

// Explanations has all codes, each with what it means.
func Explanations() []envgen.Explanation {
	return []envgen.Explanation{
		{Code: CodeMemlock, Text: "ranks may lock too little memory: RDMA pins what it sends, and NCCL fails to register its buffers"},
		{Code: CodeOpenFiles, Text: "ranks may open too few files for the connections and shared memory of a large job"},
		{Code: CodeDockerMissing, Text: "Docker is not installed: jobs in containers cannot run there"},
		{Code: CodeDockerDown, Text: "Docker is installed and its engine does not answer"},
		{Code: CodeDockerGPU, Text: "Docker knows neither the nvidia runtime nor a CDI device: containers have no GPU"},
		{Code: CodeNCCLConf, Text: "a file that NCCL reads by itself sets something: it holds for every job and nobody sees it in a job's environment"},
		{Code: CodeNCCLConfBogus, Text: "a file that NCCL reads sets a variable that NCCL does not have: it does nothing"},
		{Code: CodeNCCLOld, Text: "NCCL is too old for what the fabric needs: 2.21 chooses RoCE GIDs itself, 2.30.7 knows rings without a switch"},
		{Code: CodePeerMem, Text: "nvidia-peermem is loaded at boot, which fails on GB10: GPUDirect RDMA is not supported there, and nothing needs it"},
		{Code: CodeOtherProgram, Text: "another program is called sparkrun, and may be what a user starts"},
		{Code: CodeNetplanTwice, Text: "two netplan files name one NIC: netplan adds their address lists up, and of the rest the later file wins"},
		{Code: CodeRemoveIPC, Text: "logind removes the shared memory of a user at the end of his last session, also that of his running jobs"},
		{Code: CodeFirewall, Text: "the packet filter refuses what no rule accepts, and no rule names the agent's ports"},
		{Code: CodeFactsMissing, Text: "something about the machine could not be read, and was not judged"},
		{Code: CodeClockUnsynched, Text: "nothing keeps the clock: it will drift from the other nodes'"},
		{Code: CodeDiskFull, Text: "a disk that the agent or jobs write to is nearly full"},
		{Code: CodeMemoryLow, Text: "little memory is available: on unified memory an over-full GPU allocation can freeze the whole machine"},
		{Code: CodePageCache, Text: "the page cache holds much memory, which counts against the GPU on unified memory"},
		{Code: CodeSwapUsed, Text: "memory has been swapped out: jobs on it crawl"},
		{Code: CodeClockSkew, Text: "a node's clock is off from the others': logs are out of order, and by much certificates are refused"},
		{Code: CodeDriverUnequal, Text: "the nodes run different NVIDIA drivers"},
		{Code: CodeNCCLUnequal, Text: "the nodes have different NCCL versions in the same place: NCCL refuses to mix them"},
		{Code: CodeVLLMUnequal, Text: "the nodes have different vLLM versions in the same place: its workers do not understand one another"},
		{Code: CodeTorchUnequal, Text: "the nodes have different PyTorch versions in the same place"},
		{Code: CodeNCCLConfUnequal, Text: "a file that NCCL reads says something else on another node: what must be alike is not"},
		{Code: CodeKernelUnequal, Text: "the nodes run different kernels"},
		{Code: CodeVolumeShared, Text: "one ext4, xfs or btrfs volume is mounted for writing on two nodes, which destroys it"},
	}
}
