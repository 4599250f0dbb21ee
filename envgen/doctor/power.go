package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

const (
	// busy is from which use on a GPU's clock says something.
	busy = 0.9
	// clockGB10, in MHz, is a GB10's clocks.max.sm. Loaded, sound ones run at 2281 to 2418 MHz and 92 W; those that lack
	// power at 513 to 1035 MHz and 20 W, with no throttle reason (minefield's trap 124,
	// DeepSeek-V4.1-Flash-vLLM-DGX-Spark#1). Half of the highest clock lies between, on other GPUs too.
	clockGB10 = 3003
	// HotGPU, in °C: GB10s slow down at 91 to 92 (open-gpu-kernel-modules#1358).
	HotGPU = 90
	// margin, in °C, is how near to its critical temperature a device is too hot.
	margin = 5
	// forget is for how long an end without a shutdown is told.
	forget = 7 * 24 * time.Hour
)

// slowed are the reasons that no load brings about by itself. sw_power_cap is none: many GPUs reach it at work.
var slowed = map[string]string{
	"hw_thermal_slowdown":     "it is too hot",
	"sw_thermal_slowdown":     "it is too hot",
	"hw_power_brake_slowdown": "its power supply asks for it",
	"hw_slowdown":             "it is too hot, or lacks power",
}

// Slowed says why a GPU of that name is slower than its load makes it, by what it tells; empty: it is not.
func Slowed(name string, throttle []string, busy, mhz, most *float64) string {
	g := GPU{Name: name, Throttle: throttle, Busy: busy, MHz: mhz, MaxMHz: most}
	if why := g.throttled(); why != "" || !g.slow() {
		return why
	}
	return fmt.Sprintf("it is busy at %.0f of %.0f MHz", *g.MHz, g.most())
}

// throttled is the reason that it tells of.
func (g GPU) throttled() string {
	for _, r := range g.Throttle {
		if slowed[r] != "" {
			return slowed[r]
		}
	}
	return ""
}

const showGPU = "nvidia-smi --query-gpu=utilization.gpu,clocks.sm,clocks.max.sm,power.draw,temperature.gpu --format=csv -l 1"

func (ch *checker) gpus() {
	if why := ch.node.Facts.GPUSilent; why != "" {
		ch.add(codeGPUSilent, envgen.SeverityError, fmt.Sprintf("nvidia-smi on %s tells nothing of its GPU: if its driver "+
			"hangs or has lost it, restart the machine", ch.node.Host), why, "nvidia-smi; sudo dmesg | grep -e NVRM -e Xid")
	}
	for _, g := range ch.node.Facts.GPUs {
		what := fmt.Sprintf("GPU %d of %s", g.Index, ch.node.Host)
		why := g.throttled()
		if why != "" {
			ch.add(codeGPUThrottle, envgen.SeverityWarning, what+" slows itself: "+why+
				"; look at its air, its fans and its power supply", g.says(), "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER")
		}
		if g.slow() && why == "" {
			ch.add(codeGPUClock, envgen.SeverityWarning, fmt.Sprintf("%s is busy at %.0f MHz, less than half of its %.0f: if it "+
				"stays there, shut the machine down and pull its mains plug for a minute, a reboot does not help", what, *g.MHz,
				g.most()), g.says(), showGPU)
		}
		if g.Celsius != nil && *g.Celsius >= HotGPU {
			ch.add(codeHeat, envgen.SeverityWarning, fmt.Sprintf("%s is at %.0f °C, where it slows down and machines have gone "+
				"off: give it air, or a lower clock", what, *g.Celsius), g.says(), "sudo nvidia-smi -lgc 0,2100")
		}
	}
}

// most is the highest clock in MHz; 0: not known.
func (g GPU) most() float64 {
	switch {
	case g.MaxMHz != nil:
		return *g.MaxMHz
	case strings.Contains(g.Name, "GB10"):
		return clockGB10
	}
	return 0
}

// slow reports whether it works and its clock does not show it.
func (g GPU) slow() bool {
	return g.Busy != nil && *g.Busy >= busy && g.MHz != nil && *g.MHz < g.most()/2
}

// Suspect reports whether another look has to confirm what this one shows: a clock may have been read between two
// kernels.
func (g GPU) Suspect() bool { return g.slow() || len(g.Throttle) > 0 }

func (g GPU) says() string {
	words := []string{or(g.Name, "GPU")}
	for _, v := range []struct {
		n    *float64
		each float64
		unit string
	}{{g.Busy, 100, " % busy"}, {g.MHz, 1, " MHz"}, {g.Watts, 1, " W"}, {g.Celsius, 1, " °C"}} {
		if v.n != nil {
			words = append(words, fmt.Sprintf("%.0f%s", *v.n*v.each, v.unit))
		}
	}
	return strings.Join(append(words, g.Throttle...), ", ")
}

// power evaluates what ends a machine: a witness needs to stay on, too.
func (ch *checker) power() {
	f, host := ch.node.Facts, ch.node.Host
	for _, h := range f.Heat {
		if h.Celsius >= h.Critical-margin {
			ch.add(codeHeat, envgen.SeverityWarning, fmt.Sprintf("%s of %s is at %.0f °C, and at %.0f it ends itself or the "+
				"machine: give it air", h.Sensor, host, h.Celsius, h.Critical),
				fmt.Sprintf("%.1f °C, critical %.1f", h.Celsius, h.Critical), "grep . /sys/class/hwmon/hwmon*/{name,temp*_input,temp*_crit}")
		}
	}
	if w := f.WentOff; w != nil {
		back := ""
		if !w.Back.IsZero() {
			back = "; it began anew at " + w.Back.Format("15:04")
		}
		ch.add(codeWentOff, envgen.SeverityWarning, fmt.Sprintf("%s went off without being told, %s: mains, heat, a reset or a "+
			"frozen kernel", host, w.Last.Format("Mon 2 Jan 15:04")),
			"the journal of the boot before ends at "+w.Last.Format("15:04:05")+" without a shutdown"+back,
			"sudo journalctl -b -1 -e")
	}
}

// heat reads the sensors that say from which temperature on their device ends itself
// (Documentation/hwmon/sysfs-interface.rst, millidegrees).
func (r *Reader) heat() (out []Heat) {
	found, _ := filepath.Glob(filepath.Join(r.cfg.Sysfs, "class/hwmon/hwmon*/temp*_crit"))
	for _, path := range found {
		base := strings.TrimSuffix(path, "_crit")
		degrees := func(of string) float64 {
			b, _ := os.ReadFile(of) // a sensor without a value gives an error
			n, _ := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
			return n / 1000
		}
		h := Heat{Celsius: degrees(base + "_input"), Critical: degrees(path)}
		if h.Celsius <= 0 || h.Critical < 50 || h.Critical > 150 { // limits that nobody has set are 0, or far off
			continue
		}
		name, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "name"))
		label, _ := os.ReadFile(base + "_label")
		h.Sensor = or(strings.TrimSpace(strings.TrimSpace(string(name))+" "+strings.TrimSpace(string(label))), filepath.Base(base))
		out = append(out, h)
	}
	return out
}

// The journal's marks of an end that was asked for (systemd's sd-messages.h): logind's word, the target that all goes
// down by, and the journal's own last line.
const (
	journalShutdown = "98268866d1d54a499c4e98921d93bc40"
	journalStop     = "d93fb3c9c24d451a97cea615ce59c00b"
)

// wentOff looks how the boot before this one ended; nil where it ended as it should, long ago, or nobody knows. Only a
// journal that outlives boots does, and only to whom may read all of it (--system).
func (r *Reader) wentOff(ctx context.Context) *WentOff {
	if !r.exists("/var/log/journal") {
		return nil
	}
	before := func(match ...string) (lines string, err error) {
		out, err := r.bounded(ctx, "journalctl", append([]string{"--system", "-q", "-b", "-1", "-n", "1", "-o", "json",
			"--output-fields=MESSAGE_ID"}, match...)...)
		return strings.TrimSpace(string(out)), err
	}
	text, err := before()
	last, id := parseJournal(text)
	if err != nil || last.IsZero() || id == journalStop || r.cfg.Now().Sub(last) > forget {
		return nil
	}
	told, err := before("MESSAGE_ID="+journalShutdown, "+", "UNIT=shutdown.target")
	if err != nil || told != "" {
		return nil
	}
	w := &WentOff{Last: last}
	for l := range strings.Lines(r.text("/proc/stat")) {
		if s, ok := strings.CutPrefix(l, "btime "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64); err == nil {
				w.Back = time.Unix(n, 0)
			}
		}
	}
	return w
}

// parseJournal reads a line of `journalctl -o json`: its time, zero for none, and which message it is.
func parseJournal(line string) (at time.Time, id string) {
	var entry struct {
		At string `json:"__REALTIME_TIMESTAMP"` // microseconds
		ID any    `json:"MESSAGE_ID"`
	}
	if json.Unmarshal([]byte(line), &entry) != nil {
		return time.Time{}, ""
	}
	n, err := strconv.ParseInt(entry.At, 10, 64)
	if err != nil {
		return time.Time{}, ""
	}
	id, _ = entry.ID.(string)
	return time.UnixMicro(n), id
}
