package doctor

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func mkfifo(path string) error { return unix.Mkfifo(path, 0o644) }

func TestParseDriver(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX aarch64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  12.3.0": "550.54.15",
		"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build":                             "580.95.05",
		"NVRM version: something else": "",
		"GCC version: 13.3.0":          "",
	} {
		if got := parseDriver(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestParsePackage(t *testing.T) {
	for folder, want := range map[string][2]string{
		"nvidia_nccl_cu12-2.27.3.dist-info":   {"nccl", "2.27.3"},
		"torch-2.9.0+cu130.dist-info":         {"torch", "2.9.0+cu130"},
		"vllm-0.11.1rc2.dev1.dist-info":       {"vllm", "0.11.1rc2.dev1"},
		"torch-1.13.0a0-py3.11.egg-info":      {"torch", "1.13.0a0"},
		"torchaudio-2.9.0.dist-info":          {},
		"torch.dist-info":                     {},
		"torch-2.9.0":                         {},
		"nvidia_nccl_cu12-evil.dist-info":     {},
		"nvidia_nvshmem_cu12-3.3.9.dist-info": {},
	} {
		name, version, ok := parsePackage(folder)
		if ok != (want[0] != "") || ok && (name != want[0] || version != want[1]) {
			t.Errorf("%s: %q %q %v, want %q", folder, name, version, ok, want)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	sorted := []string{"2.9.1", "2.20.5", "2.21", "2.21.5", "2.28.3", "2.30.7", "10.0"}
	for i, a := range sorted {
		for k, b := range sorted {
			if got := compareVersions(a, b); (got < 0) != (i < k) || (got > 0) != (i > k) {
				t.Errorf("%s and %s: %d", a, b, got)
			}
		}
	}
}

func TestParseNft(t *testing.T) {
	chain := `{"chain":{"family":"inet","table":"t","name":"in","hook":"input","policy":"drop"}}`
	rule := func(right string) string {
		return `{"nftables":[` + chain + `,{"rule":{"family":"inet","table":"t","chain":"in","expr":[
			{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":` + right + `}},{"counter":null},{"accept":null}]}}]}`
	}
	for right, want := range map[string][]int{
		`7940`:                         {7940},
		`{"range":[7000,8000]}`:        {7940, 7941},
		`{"set":[22,7941]}`:            {7941},
		`{"set":[{"range":[1,7940]}]}`: {7940},
		`22`:                           nil,
		`"ssh"`:                        nil,
	} {
		f, err := parseNft([]byte(rule(right)), []int{7940, 7941})
		if err != nil || len(f.Drops) != 1 || !slices.Equal(f.Accepts, want) {
			t.Errorf("%s: %+v %v, want %v", right, f, err, want)
		}
	}
	if _, err := parseNft([]byte("table inet filter {"), nil); err == nil {
		t.Error("takes text for JSON")
	}
}

func TestParseIptables(t *testing.T) {
	got := parseIptables("-P INPUT DROP\n-P FORWARD ACCEPT\n-A INPUT -p tcp -m multiport --dports 22,7940:7941 -j "+
		"ACCEPT\n-A INPUT -p tcp --dport 80 -j DROP\n", []int{7940, 7941})
	want := Firewall{Drops: []string{"iptables chain INPUT has policy DROP"}, Accepts: []int{7940, 7941}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := parseIptables("-P INPUT ACCEPT\n", nil); len(got.Drops) != 0 {
		t.Errorf("an open filter drops: %+v", got)
	}
}

// None of the parsers may fall over what a machine, or somebody on it, wrote.
func FuzzParsers(f *testing.F) {
	for _, seed := range []string{
		"Max locked memory  unlimited  unlimited bytes", "NCCL_DEBUG=INFO # x", "[Service]\nLimitMEMLOCK=1",
		"NVRM version: x 1.2 y",
		"MemTotal: 1 kB\nMemAvailable: 1 kB", `22 1 8:1 / /mnt\040x rw - ext4 /dev/sda1 rw`,
		`{"ServerVersion":"1","Runtimes":{"a":null}}`,
		"kind: nvidia.com/gpu", "torch-2.9.dist-info", "libnccl.so.2.28",
		`{"nftables":[{"rule":{"expr":[{"match":{"right":{"set":[1]}}}]}}]}`, "-A INPUT --dport 1 -j ACCEPT", `\777\04`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parseLimits(text)
		for _, s := range parseConf(text) {
			if s.Name[:5] != "NCCL_" || s.Line < 1 {
				t.Errorf("setting %+v", s)
			}
		}
		parseAssignments(text)
		parseUnit(text, "Service", "LimitMEMLOCK")
		parseDriver(text)
		if m, err := parseMemory(text, ""); err == nil && (m.Cached > 1<<63 || m.SwapUsed > m.Swap) {
			t.Errorf("memory %+v", m)
		}
		for _, v := range parseMounts(text) {
			if !slices.Contains(exclusive, v.FS) {
				t.Errorf("volume %+v", v)
			}
		}
		_, _, _, _ = parseDockerInfo([]byte(text))
		parseCDIKind(text)
		parsePackage(text)
		parseLibrary(text)
		_, _ = parseNft([]byte(text), []int{7940})
		parseIptables(text, []int{7940})
		if compareVersions(text, text) != 0 {
			t.Errorf("%q differs from itself", text)
		}
	})
}
