package doctor

import (
	"bufio"
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// parseLimits reads the soft limits of /proc/PID/limits, whose columns have fixed widths and names with spaces.
func parseLimits(text string) (memlock, files *Limit) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "Max locked memory"); ok {
			memlock = parseLimit(rest)
		}
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			files = parseLimit(rest)
		}
	}
	return memlock, files
}

func parseLimit(columns string) *Limit {
	f := strings.Fields(columns)
	if len(f) == 0 {
		return nil
	}
	if f[0] == "unlimited" {
		return &Limit{Unlimited: true}
	}
	n, err := strconv.ParseUint(f[0], 10, 64)
	if err != nil {
		return nil
	}
	return &Limit{Value: n}
}

// numbered gives the lines of a configuration file without comments and empty ones, with their numbers from 1.
func numbered(text string) []line {
	var out []line
	n := 0
	for l := range strings.Lines(text) {
		n++
		if l, _, _ = strings.Cut(l, "#"); strings.TrimSpace(l) != "" {
			out = append(out, line{n, strings.TrimSpace(l)})
		}
	}
	return out
}

type line struct {
	number int
	text   string
}

// parseConf reads an NCCL configuration file: NAME=VALUE, comments from #. Only NCCL's own names
// are taken.
func parseConf(text string) []Setting {
	var out []Setting
	for _, l := range numbered(text) {
		name, value, ok := strings.Cut(l.text, "=")
		if name = strings.TrimSpace(name); ok && strings.HasPrefix(name, "NCCL_") {
			out = append(out, Setting{Line: l.number, Name: name, Value: strings.TrimSpace(value)})
		}
	}
	return out
}

// parseAssignments reads NAME=VALUE files of systems: os-release, dgx-release, /etc/environment. The last wins.
func parseAssignments(text string) map[string]string {
	out := map[string]string{}
	for _, l := range numbered(text) {
		name, value, ok := strings.Cut(strings.TrimPrefix(l.text, "export "), "=")
		if ok {
			out[strings.TrimSpace(name)] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return out
}

// parseUnit returns the last value of a key of a unit file's section; an empty one resets it.
func parseUnit(text, section, key string) (value string, ok bool) {
	at := ""
	for _, l := range numbered(text) {
		if strings.HasPrefix(l.text, ";") {
			continue
		}
		if strings.HasPrefix(l.text, "[") {
			at = l.text
			continue
		}
		if name, v, found := strings.Cut(l.text, "="); found && at == "["+section+"]" && strings.TrimSpace(name) == key {
			value, ok = strings.TrimSpace(v), true
		}
	}
	return value, ok
}

// parseDriver extracts the version from /proc/driver/nvidia/version, for the proprietary and the open
// module: "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build".
func parseDriver(text string) string {
	for l := range strings.Lines(text) {
		if !strings.HasPrefix(l, "NVRM version:") {
			continue
		}
		for _, word := range strings.Fields(l) {
			if strings.Contains(word, ".") && strings.Trim(word, "0123456789.") == "" {
				return word
			}
		}
	}
	return ""
}

func parseMemory(meminfo, buddyinfo string) (*Memory, error) {
	m, err := proc.ParseMemory(meminfo)
	if err != nil {
		return nil, err
	}
	out := &Memory{Total: uint64(m.Total), Free: uint64(m.Free), Available: uint64(m.Available), Cached: uint64(m.Cached),
		Swap: uint64(m.Swap), SwapUsed: uint64(m.SwapUsed)}
	if m.CMA != nil && m.CMAFree != nil {
		out.CMA, out.CMAFree = new(uint64(*m.CMA)), new(uint64(*m.CMAFree))
	}
	if n, err := proc.ParseFreeBlocks(buddyinfo, int64(os.Getpagesize()), largeBlock); err == nil {
		out.LargeFree = new(uint64(n))
	}
	return out, nil
}

// exclusive are file systems that keep state in the memory of the only machine that may mount them.
var exclusive = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"}

// parseMounts reads /proc/PID/mountinfo (proc(5)): the machine's file systems on block devices. One mounted at
// several places is listed once, as writable where any mount is.
func parseMounts(text string) []Volume {
	var out []Volume
	for l := range strings.Lines(text) {
		before, after, ok := strings.Cut(l, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 || !slices.Contains(exclusive, g[0]) || !strings.HasPrefix(g[1], "/dev/") {
			continue
		}
		options := strings.Split(f[5]+","+g[2], ",")
		v := Volume{Device: unescape(g[1]), Dir: unescape(f[4]), FS: g[0], Write: !slices.Contains(options, "ro")}
		if i := slices.IndexFunc(out, func(o Volume) bool { return o.Device == v.Device }); i >= 0 {
			out[i].Write = out[i].Write || v.Write
			continue
		}
		out = append(out, v)
	}
	return out
}

// unescape decodes mountinfo's octal: a space is \040.
func unescape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// parseDockerInfo reads `docker info --format {{json .}}`, which also answers without an engine, and then says
// why.
func parseDockerInfo(data []byte) (version, trouble string, runtimes []string, err error) {
	var info struct {
		ServerVersion string
		ServerErrors  []string
		Runtimes      map[string]json.RawMessage
	}
	if err := json.Unmarshal(data, &info); err != nil {
		return "", "", nil, err
	}
	for name := range info.Runtimes {
		runtimes = append(runtimes, name)
	}
	slices.Sort(runtimes)
	return info.ServerVersion, strings.Join(info.ServerErrors, "; "), runtimes, nil
}

// parseCDIKind finds the kind of a CDI file, YAML or JSON: its top-level key.
func parseCDIKind(text string) string {
	var spec struct {
		Kind string `json:"kind"`
	}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		if json.Unmarshal([]byte(text), &spec) != nil {
			return ""
		}
		return spec.Kind
	}
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		if kind, ok := strings.CutPrefix(s.Text(), "kind:"); ok {
			return strings.Trim(strings.TrimSpace(kind), `"'`)
		}
	}
	return ""
}

// parsePackage splits the name of a Python package's metadata folder: torch-2.9.0+cu130.dist-info. NCCL's wheels are
// nvidia_nccl_cu13 and the like.
func parsePackage(folder string) (name, version string, ok bool) {
	base, isDist := strings.CutSuffix(folder, ".dist-info")
	if !isDist {
		base, isDist = strings.CutSuffix(folder, ".egg-info")
	}
	name, version, found := strings.Cut(base, "-")
	version, _, _ = strings.Cut(version, "-py") // the suffix of an egg
	name = strings.ReplaceAll(strings.ToLower(name), "-", "_")
	if strings.HasPrefix(name, "nvidia_nccl_cu") {
		name = "nccl"
	}
	known := name == "nccl" || name == "torch" || name == "vllm"
	return name, version, isDist && found && known && version != "" && version[0] >= '0' && version[0] <= '9'
}

// parseLibrary extracts the version from libnccl.so.2.28.3; the bare libnccl.so.2 has none.
func parseLibrary(file string) (version string, ok bool) {
	version, ok = strings.CutPrefix(file, "libnccl.so.")
	return version, ok && strings.Contains(version, ".")
}

// compareVersions orders 2.9.1 before 2.28.3, number by number; other parts (2.9.0+cu130) are compared as text.
func compareVersions(a, b string) int {
	parts := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == '.' || r == '+' || r == '-' })
	}
	return slices.CompareFunc(parts(a), parts(b), func(a, b string) int {
		x, errA := strconv.ParseUint(a, 10, 64)
		y, errB := strconv.ParseUint(b, 10, 64)
		if errA == nil && errB == nil {
			return cmp.Compare(x, y)
		}
		return strings.Compare(a, b)
	})
}
