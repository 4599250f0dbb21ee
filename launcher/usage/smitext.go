package usage

import (
	"math"
	"strconv"
	"strings"
)

// reasons are the bits of clocks_event_reasons.active that mean a clock below what was asked for (nvml.h,
// nvmlClocksEventReason...). An idle GPU (0x1), clocks that somebody has set (0x2, 0x100) and sync boost (0x10) are none.
var reasons = []struct {
	bit  uint64
	name string // as nvidia-smi calls it
}{
	{0x4, "sw_power_cap"},
	{0x8, "hw_slowdown"},
	{0x20, "sw_thermal_slowdown"},
	{0x40, "hw_thermal_slowdown"},
	{0x80, "hw_power_brake_slowdown"},
}

// ThrottleReasons are those that a GPU's Throttle can have.
func ThrottleReasons() (all []string) {
	for _, r := range reasons {
		all = append(all, r.name)
	}
	return all
}

// ParseGPU reads a line that nvidia-smi gives for gpuFields and a field of reasons, without units:
//
//	0, NVIDIA GB10, 0, 2405, 3003, 10.80, 52, [N/A], [N/A], 0x0000000000000000
func ParseGPU(line string) (g GPU, ok bool) {
	f := strings.Split(line, ", ")
	if more := len(f) - (strings.Count(gpuFields, ",") + 1); more < 0 || more > 1 {
		return GPU{}, false
	}
	n, err := strconv.Atoi(f[0])
	if err != nil || n < 0 || n > 1<<10 {
		return GPU{}, false
	}
	g = GPU{Index: n, Name: f[1], Busy: told(f[2], 0.01), MHz: told(f[3], 1), MaxMHz: told(f[4], 1), Watts: told(f[5], 1),
		Celsius: told(f[6], 1), Used: mebibytes(f[7]), Total: mebibytes(f[8])}
	if len(f) > 9 {
		if mask, err := strconv.ParseUint(strings.TrimPrefix(f[9], "0x"), 16, 64); err == nil {
			g.Throttle = []string{}
			for _, r := range reasons {
				if mask&r.bit != 0 {
					g.Throttle = append(g.Throttle, r.name)
				}
			}
		}
	}
	return g, true
}

// told reads a number; "[N/A]", "[Not Supported]" and "[Unknown Error]" are none.
func told(text string, unit float64) *float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) { // these are no numbers of JSON's either
		return nil
	}
	return new(v * unit)
}

func mebibytes(text string) *int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n >= 1<<43 {
		return nil
	}
	return new(n << 20)
}

// App is a process on a GPU.
type App struct {
	GPU string
	PID int
}

// ParseApp reads a line that nvidia-smi gives for appFields, without units, and how many bytes it tells of:
//
//	GPU-5a52b3b5-007e-2b55-79f2-d0f2ebe55a52, 6330, 96073
func ParseApp(line string) (a App, bytes int64, ok bool) {
	f := strings.Split(line, ", ")
	if len(f) != 3 {
		return App{}, 0, false
	}
	pid, err := strconv.Atoi(f[1])
	held := mebibytes(f[2])
	if err != nil || held == nil {
		return App{}, 0, false
	}
	return App{f[0], pid}, *held, true
}
