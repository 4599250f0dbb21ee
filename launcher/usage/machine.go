package usage

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// Ticks are what the processors have counted since the boot, in clock ticks.
type Ticks struct {
	Cores     int
	Used, All uint64
}

// ParseTicks reads /proc/stat (proc_stat(5)). Waiting for disks is no use; what guests use is in user already.
func ParseTicks(text string) (t Ticks, ok bool) {
	for l := range strings.Lines(text) {
		f := strings.Fields(l)
		if len(f) < 9 || !strings.HasPrefix(f[0], "cpu") {
			continue
		}
		if f[0] != "cpu" {
			t.Cores++
			continue
		}
		for i, text := range f[1:9] { // user nice system idle iowait irq softirq steal
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return Ticks{}, false
			}
			t.All += n
			if i != 3 && i != 4 {
				t.Used += n
			}
		}
	}
	return t, t.Cores > 0 && t.All > 0
}

// Since is how many cores were in use on the mean; nil: no time has passed, or what was before is not known.
func (t Ticks) Since(before Ticks) *float64 {
	if before.All == 0 || t.All <= before.All || t.Used < before.Used {
		return nil
	}
	return new(float64(t.Used-before.Used) / float64(t.All-before.All) * float64(t.Cores))
}

// load1 is the load over a minute.
func load1(fs proc.FS) *float64 {
	b, err := os.ReadFile(string(fs) + "/loadavg")
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(b), " ")
	return told(first, 1)
}

// number is the one that a file holds; nil: it holds none.
func number(file string, unit float64) *float64 {
	text, ok := line(file)
	if !ok {
		return nil
	}
	return told(text, unit)
}

func line(file string) (string, bool) {
	b, err := os.ReadFile(file)
	return strings.TrimSpace(string(b)), err == nil
}

// largeBlock is a huge page's size. A machine with many free bytes and few such blocks loads models slowly.
const largeBlock = 2 << 20

func memory(fs proc.FS) *Memory {
	now, err := fs.Memory()
	if err != nil {
		return nil
	}
	m := &Memory{Total: now.Total, Available: now.Available, Cache: now.Cached, Swap: now.Swap, SwapUsed: now.SwapUsed,
		CMA: now.CMA, CMAFree: now.CMAFree}
	if free, err := fs.FreeBlocks(largeBlock); err == nil {
		m.LargeFree = &free
	}
	return m
}

// heat reads thermal zones (Documentation/driver-api/thermal/sysfs-api.rst), and sensors of hwmon that are no zone's: of
// a Spark acpitz, and nvme, mlx5 and the wireless card's. Both count in thousandths of a degree.
func heat(sys string) (all []Heat) {
	zones, _ := filepath.Glob(sys + "/class/thermal/thermal_zone*") // the patterns are valid
	kinds := map[string]bool{}
	for _, dir := range zones {
		kind, known := line(dir + "/type")
		if v := number(dir+"/temp", 1e-3); known && v != nil {
			kinds[kind] = true
			all = append(all, Heat{Zone: kind + " " + strings.TrimPrefix(filepath.Base(dir), "thermal_zone"), Celsius: *v})
		}
	}
	sensors, _ := filepath.Glob(sys + "/class/hwmon/hwmon*/temp*_input")
	slices.Sort(sensors)
	for _, file := range sensors {
		dir, sensor := filepath.Dir(file), strings.TrimSuffix(file, "_input")
		name, known := line(dir + "/name")
		v := number(file, 1e-3)
		if !known || v == nil || kinds[name] { // the kernel makes a hwmon of each zone
			continue
		}
		label, labelled := line(sensor + "_label")
		if !labelled {
			label = filepath.Base(sensor)
		}
		all = append(all, Heat{Zone: name + " " + strings.TrimPrefix(filepath.Base(dir), "hwmon") + " " + label, Celsius: *v})
	}
	return all
}
