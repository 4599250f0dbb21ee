package usage

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Lines of nvidia-smi. The first two are an H200's (driver 580.159.04), idle and under load. The third is a GB10's, of
// whose row (github.com, an LMDS fleet's test of 2026-08-13: "NVIDIA GB10, [N/A], 12.1, [N/A], 0, 52, 10.8, ..., 2405,
// 3003") the fields are put in our order.
func TestParseGPU(t *testing.T) {
	for _, tc := range []struct {
		line string
		want GPU
	}{
		{"0, NVIDIA H200, 0, 345, 1980, 79.53, 35, 0, 143771, 0x0000000000000001", GPU{Name: "NVIDIA H200",
			Busy: new(0.), MHz: new(345.), MaxMHz: new(1980.), Watts: new(79.53), Celsius: new(35.), Used: new(int64(0)),
			Total: new(int64(143771 << 20)), Throttle: []string{}}},
		{"1, NVIDIA H200, 100, 1980, 1980, 548.68, 61, 5527, 143771, 0x0000000000000000", GPU{Index: 1, Name: "NVIDIA H200",
			Busy: new(1.), MHz: new(1980.), MaxMHz: new(1980.), Watts: new(548.68), Celsius: new(61.),
			Used: new(int64(5527 << 20)), Total: new(int64(143771 << 20)), Throttle: []string{}}},
		{"0, NVIDIA GB10, 0, 2405, 3003, 10.80, 52, [N/A], [N/A], 0x0000000000000000", GPU{Name: "NVIDIA GB10",
			Busy: new(0.), MHz: new(2405.), MaxMHz: new(3003.), Watts: new(10.8), Celsius: new(52.), Throttle: []string{}}},
		{"0, NVIDIA GB10, 96, 507, 3003, 12.00, 88, [N/A], [N/A], 0x0000000000000068", GPU{Name: "NVIDIA GB10",
			Busy: new(0.96), MHz: new(507.), MaxMHz: new(3003.), Watts: new(12.), Celsius: new(88.),
			Throttle: []string{"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown"}}},
		{"0, X, [Not Supported], [Unknown Error], [N/A], [N/A], N/A, [Insufficient Permissions], [GPU requires reset], [N/A]",
			GPU{Name: "X"}},
		{"0, X, nan, inf, -Inf, NaN, Infinity, -1, 17592186044415, 0x0", GPU{Name: "X", Throttle: []string{}}},
		{"0, X, 1, 2, 3, 4, 5, 6, 7", GPU{Name: "X", Busy: new(0.01), MHz: new(2.), MaxMHz: new(3.), Watts: new(4.),
			Celsius: new(5.), Used: new(int64(6 << 20)), Total: new(int64(7 << 20))}},
	} {
		got, ok := ParseGPU(tc.line)
		if d := cmp.Diff(tc.want, got); !ok || d != "" {
			t.Errorf("%s: %v %s", tc.line, ok, d)
		}
	}
	for _, line := range []string{"", "No devices were found", "-1, X, 1, 2, 3, 4, 5, 6, 7", "0, X, 1",
		"0, X, 1, 2, 3, 4, 5, 6, 7, 0x0, 9", "Unable to determine the device handle for GPU0: 0000:0F:00.0: Unknown Error"} {
		if g, ok := ParseGPU(line); ok {
			t.Errorf("%q is a GPU: %+v", line, g)
		}
	}
}

func TestParseApp(t *testing.T) {
	if a, bytes, ok := ParseApp("GPU-5a, 6330, 96073"); a != (App{"GPU-5a", 6330}) || bytes != 96073<<20 || !ok {
		t.Error(a, bytes, ok)
	}
	for _, line := range []string{"GPU-5a, 1, [N/A]", "No running processes found", "gpu_uuid, pid, used_gpu_memory [MiB]", "",
		"GPU-5a, 1, -1", "GPU-5a, 1, 17592186044415"} {
		if _, _, ok := ParseApp(line); ok {
			t.Errorf("%q is a process", line)
		}
	}
}

// Of two machines of two cores, the second reading half a second later.
func TestTicks(t *testing.T) {
	const head = "cpu  7185 0 687 98323 335 0 128 1 0 0\ncpu0 3444 0 65 3046 104 0 21 0 0 0\ncpu1 1 0 0 0 0 0 0 0 0 0\nintr 5\n"
	before, ok := ParseTicks(head)
	if want := (Ticks{Cores: 2, Used: 7185 + 687 + 128 + 1, All: 7185 + 687 + 98323 + 335 + 128 + 1}); !ok || before != want {
		t.Fatalf("%+v %v", before, ok)
	}
	now := before
	now.Used, now.All = now.Used+75, now.All+100
	if got := now.Since(before); got == nil || *got != 1.5 {
		t.Error(got)
	}
	if before.Since(now) != nil || now.Since(now) != nil || now.Since(Ticks{}) != nil {
		t.Error("no time has passed")
	}
	for _, text := range []string{"", "cpu 1 2 3\n", "cpu  1 2 3 x 5 6 7 8 9\ncpu0 1 1 1 1 1 1 1 1\n"} {
		if _, ok := ParseTicks(text); ok {
			t.Errorf("%q is read", text)
		}
	}
}

func TestParseBlockStat(t *testing.T) {
	// Documentation/block/stat.rst has the fields; an NVMe's of this kernel.
	read, written := ParseBlockStat("  122045    10 8201378   48211   309217   301884 21650632  1214883  0  150000 1263094\n")
	if read == nil || *read != 8201378*512 || *written != 21650632*512 {
		t.Error(read, written)
	}
	if read, _ := ParseBlockStat("1 2 3"); read != nil {
		t.Error("too short a line is read")
	}
}

// As on a Spark: zones of ACPI, whose hwmon says the same again, and sensors of the NVMe disk and the network card.
func TestHeat(t *testing.T) {
	sys := t.TempDir()
	for name, text := range map[string]string{
		"class/thermal/thermal_zone0/type": "acpitz\n",
		"class/thermal/thermal_zone0/temp": "53600\n",
		"class/thermal/thermal_zone1/type": "acpitz\n", // and its sensor does not answer
		"class/hwmon/hwmon0/name":          "acpitz\n",
		"class/hwmon/hwmon0/temp1_input":   "53600\n",
		"class/hwmon/hwmon1/name":          "nvme\n",
		"class/hwmon/hwmon1/temp1_input":   "29850\n",
		"class/hwmon/hwmon1/temp1_label":   "Composite\n",
		"class/hwmon/hwmon2/name":          "mlx5\n",
		"class/hwmon/hwmon2/temp1_input":   "61000\n",
		"class/hwmon/hwmon2/temp1_crit":    "105000\n",
	} {
		file := filepath.Join(sys, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []Heat{{"acpitz 0", 53.6}, {"nvme 1 Composite", 29.85}, {"mlx5 2 temp1", 61}}
	if d := cmp.Diff(want, heat(sys)); d != "" {
		t.Error(d)
	}
	if heat(t.TempDir()) != nil {
		t.Error("a machine without sensors tells of them")
	}
}
