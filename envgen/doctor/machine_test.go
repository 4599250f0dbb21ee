package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

// sound is a Spark with which nothing is wrong.
func sound() Facts {
	const site = "/opt/ml/lib/python3.12/site-packages"
	return Facts{
		OS: "Ubuntu 24.04.3 LTS", Kernel: "6.14.0-1013-nvidia", User: "ada", RDMA: 4, Driver: "580.95.05",
		Limits: Limits{Memlock: &Limit{Unlimited: true}, Files: &Limit{Value: 1 << 20}},
		Docker: Docker{Installed: "/usr/bin/docker", Version: "28.5.1", Runtimes: []string{"nvidia", "runc"}},
		Packages: []Package{
			{"nccl", "2.30.7", site}, {"torch", "2.9.0", site}, {"vllm", "0.11.2", site},
		},
		Clock: Clock{Synchronised: new(true), Offset: new(time.Millisecond), Bound: new(time.Millisecond)},
		Disks: []Disk{{"state", "/var/lib/sparkrun", 100 * gib, 900 * gib}},
		Memory: &Memory{Total: 120 * gib, Free: 100 * gib, Available: 110 * gib, Cached: 10 * gib, Swap: 16 * gib,
			LargeFree: new(uint64(96 * gib)), CMA: new(uint64(0)), CMAFree: new(uint64(0))},
		// Under load, as minefield's trap 124 measured a GB10 after its mains had been pulled.
		GPUs: []GPU{{Name: "NVIDIA GB10", Busy: new(0.96), MHz: new(2281.0), MaxMHz: new(3003.0), Watts: new(92.5),
			Celsius: new(68.0), Throttle: []string{"sw_power_cap"}}},
		Heat:     []Heat{{"nvme Composite", 48.9, 86.8}},
		Firewall: &Firewall{},
		Programs: []Program{{Path: "/usr/local/bin/sparkrun", Ours: true}},
		Volumes: []Volume{
			{"/dev/nvme0n1p2", "/", "ext4", "1111", true, "pcie"}, // cloned: alike everywhere
		},
		RemoveIPC: new(true), Lingers: new(true),
	}
}

// Each code has a change to one node of a sound cluster that brings it.
func TestMachines(t *testing.T) {
	rosa := func(write bool) Volume { return Volume{"/dev/nvme1n1", "/mnt/rosa", "ext4", "2222", write, "tcp"} }
	tests := []struct {
		code     string
		severity envgen.Severity
		shape    envgen.Shape
		change   func(f *Facts)
		all      func(f *Facts) // before it, on every node
		says     string
	}{
		{code: codeMemlock, severity: "error", change: func(f *Facts) { f.Limits.Memlock = &Limit{Value: 8 * mib} },
			says: "8 MiB"},
		{code: codeMemlock, severity: "warning",
			change: func(f *Facts) { f.Limits.Memlock, f.User = &Limit{Value: 8 * mib}, "root" }, says: "ranks of other users than root on "},
		{code: codeMemlock, severity: "error", change: func(f *Facts) {
			f.Limits = Limits{Memlock: &Limit{Value: 8 * mib},
				PAM: []string{"/etc/security/limits.conf:3 * soft memlock unlimited"}}
		}, says: "does not hold for services"},
		{code: codeOpenFiles, severity: "warning", change: func(f *Facts) { f.Limits.Files = &Limit{Value: 1024} },
			says: "1024 files"},
		{code: codeDockerMissing, severity: "info", change: func(f *Facts) { f.Docker = Docker{} }},
		{code: codeDockerDown, severity: "warning",
			change: func(f *Facts) { f.Docker = Docker{Installed: "/usr/bin/docker", Trouble: "Cannot connect"} },
			says:   "Cannot connect"},
		{code: codeDockerGPU, severity: "warning", change: func(f *Facts) { f.Docker.Runtimes = []string{"runc"} },
			says: "runtimes runc"},
		{code: codeNCCLConf, severity: "warning", change: conf("NCCL_IB_GID_INDEX", "3"), says: "2: NCCL_IB_GID_INDEX=3"},
		{code: codeNCCLConf, severity: "info", change: conf("NCCL_DEBUG", "INFO")},
		{code: codeNCCLConfBogus, severity: "warning", change: conf("NCCL_TIMEOUT", "600"), says: "PyTorch's"},
		{code: codeNCCLConfUnequal, severity: "warning", change: conf("NCCL_DEBUG", "INFO"),
			says: "NCCL_DEBUG=INFO here, nothing there"},
		{code: codeNCCLOld, severity: "warning", change: func(f *Facts) { f.Packages[0].Version = "2.20.5" }, says: "2.21"},
		{code: codeNCCLOld, severity: "warning", shape: envgen.ShapeRing,
			change: func(f *Facts) { f.Packages[0].Version = "2.28.9" }, says: "2.30.7"},
		{code: codePeerMem, severity: "info", change: func(f *Facts) { f.PeerMem = []string{"/etc/modules:3"} },
			says: "/etc/modules"},
		{code: codeOtherProgram, severity: "warning", change: func(f *Facts) {
			f.Programs = append([]Program{{Path: "/home/ada/.local/bin/sparkrun", Python: true}}, f.Programs...)
		}, says: "Python tool"},
		{code: codeOtherProgram, severity: "info",
			change: func(f *Facts) { f.Programs = append(f.Programs, Program{Path: "/usr/bin/sparkrun"}) }},
		{code: codeNetplanTwice, severity: "error", change: func(f *Facts) {
			f.Netplan = []Mention{{NIC: "enp1s0f0np0", Path: "/etc/netplan/99-dgx-cluster.yaml", Line: 4,
				Effect: "adds 10.0.0.1/24", Remedy: "sudo rm x", Blocks: true}}
		}, says: "99-dgx-cluster.yaml:4"},
		{code: codeRemoveIPC, severity: "warning", change: func(f *Facts) { f.Lingers = new(false) },
			says: "enable-linger ada"},
		{code: codeFirewall, severity: "info",
			change: func(f *Facts) { f.Firewall = &Firewall{Drops: []string{"nft chain inet filter input has policy drop"}} }},
		{code: codeFactsMissing, severity: "info", change: func(f *Facts) { f.Trouble = []string{"meminfo"} }},
		{code: codeClockUnsynched, severity: "warning", change: func(f *Facts) { f.Clock.Synchronised = new(false) }},
		{code: codeCacheOwner, severity: "warning", change: func(f *Facts) {
			f.HubCache = &HubCache{Dir: "/home/ada/.cache/huggingface", Files: 9, Roots: 4}
		}, says: "sudo chown -R ada: /home/ada/.cache/huggingface"},
		{code: codeCacheOwner, severity: "info", change: func(f *Facts) {
			f.HubCache = &HubCache{Dir: "/net/ada/.cache/huggingface", Closed: "open /net/ada: permission denied"}
		}, says: "root_squash"},
		{code: codeModelStorage, severity: "warning", change: slowStore("", false),
			says: "at 100 MB/s: one of 65 GB takes 11 min to load"},
		{code: codeModelStorage, severity: "warning", change: slowStore("nfs", true),
			says: "sparkrun model pull org/m --on spark2"},
		{code: codeDiskFull, severity: "error", change: func(f *Facts) { f.Disks[0].Free = 50 * mib },
			says: "50 MiB of 900 GiB"},
		{code: codeDiskFull, severity: "warning", change: func(f *Facts) { f.Disks[0].Free = 500 * mib }},
		{code: codePageCache, severity: "warning",
			change: func(f *Facts) { f.Memory.Cached, f.Memory.Free = 60*gib, 20*gib }, says: "drop_caches"},
		{code: codeMemoryLow, severity: "warning",
			change: func(f *Facts) { f.Memory.Available, f.Memory.Free = 5*gib, 2*gib }, says: "5.0 GiB"},
		{code: codeSwapUsed, severity: "warning", change: func(f *Facts) { f.Memory.SwapUsed = 10 * gib }},
		{code: codeFragments, severity: "warning", change: func(f *Facts) { f.Memory.LargeFree = new(uint64(16 * mib)) },
			says: "16 MiB of it in blocks of 2 MiB or more"},
		{code: codeCMA, severity: "warning",
			change: func(f *Facts) { f.Memory.CMA, f.Memory.CMAFree = new(uint64(0)), new(uint64(940604<<10)) },
			says:   "kho=off"},
		{code: codeCacheKept, severity: "warning",
			change: func(f *Facts) { f.CacheKept = "open /proc/sys/vm/drop_caches: permission denied; it runs as uid 1000" },
			says:   "uid 1000"},
		{code: codeGPUSilent, severity: "error",
			change: func(f *Facts) { f.GPUs, f.GPUSilent = nil, "Unable to determine the device handle: GPU is lost" },
			says:   "GPU is lost"},
		{code: codeGPUClock, severity: "warning", change: func(f *Facts) { *f.GPUs[0].MHz, *f.GPUs[0].Watts = 799, 19.5 },
			says: "busy at 799 MHz, less than half of its 3003"},
		{code: codeGPUClock, severity: "warning", change: func(f *Facts) { *f.GPUs[0].MHz, f.GPUs[0].MaxMHz = 1035, nil },
			says: "NVIDIA GB10, 96 % busy, 1035 MHz, 92 W, 68 °C"},
		{code: codeGPUThrottle, severity: "warning",
			change: func(f *Facts) { f.GPUs[0].Throttle = []string{"sw_power_cap", "sw_thermal_slowdown"} },
			says:   "it is too hot"},
		{code: codeGPUThrottle, severity: "warning", change: func(f *Facts) {
			*f.GPUs[0].MHz, f.GPUs[0].Throttle = 700, []string{"hw_power_brake_slowdown"}
		}, says: "its power supply asks for it"},
		{code: codeHeat, severity: "warning", change: func(f *Facts) { f.GPUs[0].Celsius = new(92.0) }, says: "92 °C"},
		{code: codeHeat, severity: "warning", change: func(f *Facts) { f.Heat[0].Celsius = 81.9 },
			says: "nvme Composite of spark2 is at 82 °C"},
		{code: codeWentOff, severity: "warning",
			change: func(f *Facts) { f.WentOff = &WentOff{Last: time.Date(2026, 9, 1, 14, 2, 11, 0, time.UTC)} },
			says:   "spark2 went off without being told, Tue 1 Sep 14:02"},
		{code: codeClockSkew, severity: "warning", change: func(f *Facts) { f.Clock.Offset = new(-5 * time.Second) },
			says: "behind"},
		{code: codeClockSkew, severity: "error", change: func(f *Facts) { f.Clock.Offset = new(5 * time.Minute) },
			says: "ahead"},
		{code: codeDriverUnequal, severity: "warning", change: func(f *Facts) { f.Driver = "570.1" },
			says: "570.1 here, 580.95.05 on"},
		{code: codeKernelUnequal, severity: "info", change: func(f *Facts) { f.Kernel = "6.11" }},
		{code: codeNCCLUnequal, severity: "warning", change: func(f *Facts) { f.Packages[0].Version = "2.31.1" },
			says: "2.31.1 here"},
		{code: codeTorchUnequal, severity: "warning", change: func(f *Facts) { f.Packages[1].Version = "2.8.0" }},
		{code: codeVLLMUnequal, severity: "warning", change: func(f *Facts) { f.Packages[2].Version = "0.10.0" }},
		{code: codeVolumeShared, severity: "error", all: func(f *Facts) { f.Volumes = append(f.Volumes, rosa(false)) },
			change: func(f *Facts) {
				f.Volumes = []Volume{rosa(true), {"/dev/nvme2n1", "/mnt/other", "xfs", "3333", true, "tcp"}}
			}},
	}
	hosts := []string{"spark1", "spark2", "spark3"}
	cluster := func(shape envgen.Shape, all, change func(*Facts)) []envgen.Finding {
		var nodes []Node
		for i, h := range hosts {
			f := sound()
			if all != nil {
				all(&f)
			}
			if change != nil && i == 1 {
				change(&f)
			}
			nodes = append(nodes, Node{ID: "id-" + h, Host: h, Facts: &f})
		}
		return machines(nodes, shape)
	}
	for _, shape := range []envgen.Shape{envgen.ShapeSwitch, envgen.ShapeRing} {
		if found := cluster(shape, nil, nil); len(found) != 0 {
			t.Fatalf("a sound %s: %+v", shape, found)
		}
	}
	covered := map[string]bool{}
	for _, tc := range tests {
		covered[tc.code] = true
		t.Run(tc.code+" "+string(tc.severity), func(t *testing.T) {
			found := cluster(tc.shape, tc.all, tc.change)
			i := slices.IndexFunc(found, func(f envgen.Finding) bool { return f.Code == tc.code })
			if i < 0 {
				t.Fatalf("not found among %+v", found)
			}
			f := found[i]
			if tc.code != codeVolumeShared && (f.Host != "spark2" || f.Node != "id-spark2" || f.Severity != tc.severity) {
				t.Errorf("got %+v", f)
			}
			if !strings.Contains(f.Text+" "+f.Evidence+" "+f.Remedy, tc.says) {
				t.Errorf("%+v does not say %q", f, tc.says)
			}
			for _, f := range found {
				if f.Text == "" || f.Evidence == "" || f.Remedy == "" ||
					strings.Contains(f.Text+f.Evidence+f.Remedy, "%!") || strings.Contains(f.Remedy, "\n") {
					t.Errorf("ill formed: %+v", f)
				}
			}
		})
	}
	var explained []string
	for _, e := range ofMachines {
		explained = append(explained, e[0])
		if !covered[e[0]] {
			t.Errorf("%s is not tested", e[0])
		}
	}
	for code := range covered {
		if !slices.Contains(explained, code) {
			t.Errorf("%s is not explained", code)
		}
	}
}

func conf(name, value string) func(*Facts) {
	return func(f *Facts) {
		f.NCCLConf = []Conf{{Path: "/etc/nccl.conf", Settings: []Setting{{Line: 2, Name: name, Value: value}}}}
	}
}

// One volume on several nodes: one writer may stay, and disks that no network
// carries are copies.
func TestVolumes(t *testing.T) {
	node := func(host string, write bool, transport string) Node {
		return Node{ID: host, Host: host,
			Facts: &Facts{Volumes: []Volume{{"/dev/nvme1n1", "/mnt/rosa", "ext4", "2222", write, transport}}}}
	}
	told := func(nodes ...Node) map[string]envgen.Severity {
		out := map[string]envgen.Severity{}
		for _, f := range machines(nodes, "") {
			if f.Code == codeVolumeShared {
				out[f.Host] = f.Severity
			}
		}
		return out
	}
	tests := map[string]struct {
		nodes []Node
		want  map[string]envgen.Severity
	}{
		"two writers": {[]Node{node("a", true, "tcp"), node("b", true, "tcp")},
			map[string]envgen.Severity{"b": "error"}},
		"iscsi, three": {[]Node{node("a", true, "iscsi"), node("b", true, "iscsi"), node("c", false, "iscsi")},
			map[string]envgen.Severity{"b": "error", "c": "warning"}},
		"readers":            {[]Node{node("a", false, "tcp"), node("b", false, "tcp")}, nil},
		"a writer":           {[]Node{node("a", true, "tcp")}, nil},
		"cloned system disk": {[]Node{node("a", true, "pcie"), node("b", true, "pcie")}, nil},
	}
	for name, tc := range tests {
		got := told(tc.nodes...)
		if len(got) != len(tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		for host, s := range tc.want {
			if got[host] != s {
				t.Errorf("%s: %v, want %v", name, got, tc.want)
			}
		}
	}
}

// A version on one node and none on another is no difference: the job's
// environment may be elsewhere.
func TestUnequalNeedsBoth(t *testing.T) {
	a, b := sound(), sound()
	b.Packages, b.Driver = nil, ""
	for _, f := range machines([]Node{{ID: "a", Host: "a", Facts: &a}, {ID: "b", Host: "b", Facts: &b}}, "") {
		if strings.HasSuffix(f.Code, "-unequal") {
			t.Errorf("%+v", f)
		}
	}
}

// A witness has no ranks: whatever they would need is not missed there, and not
// compared. What the vote needs is.
func TestWitnessLacksNothing(t *testing.T) {
	small := Facts{
		OS: "Debian GNU/Linux 12", Kernel: "6.1.0", User: "ada", Driver: "470.0", RDMA: 1,
		Limits: Limits{Memlock: &Limit{Value: 8 * mib}, Files: &Limit{Value: 1024}},
		Memory: &Memory{Total: 4 * gib, Free: gib, Available: gib / 4, Cached: 2 * gib, Swap: gib, SwapUsed: gib},
		Clock:  Clock{Synchronised: new(true), Offset: new(time.Millisecond), Bound: new(time.Millisecond)},
		Disks:  []Disk{{"state", "/var/lib/sparkrun", 10 * gib, 30 * gib}}, PeerMem: []string{"/etc/modules:3"},
		RemoveIPC: new(true), Lingers: new(false), Programs: []Program{{Path: "/usr/local/bin/sparkrun", Ours: true}},
	}
	conf("NCCL_IB_DISABLE", "1")(&small)
	a, b := sound(), sound()
	nodes := []Node{{ID: "a", Host: "spark1", Facts: &a}, {ID: "b", Host: "spark2", Facts: &b},
		{ID: "c", Host: "pi", Facts: &small, Witness: true}}
	if found := machines(nodes, ""); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	small.Clock = Clock{Synchronised: new(false), Offset: new(time.Hour), Bound: new(time.Millisecond)}
	small.Disks[0].Free = 0
	var codes []string
	for _, f := range machines(nodes, "") {
		codes = append(codes, f.Code+" "+f.Host)
	}
	if want := []string{codeDiskFull + " pi", codeClockUnsynched + " pi", codeClockSkew + " pi"}; !slices.Equal(codes,
		want) {
		t.Errorf("got %q, want %q", codes, want)
	}
}
