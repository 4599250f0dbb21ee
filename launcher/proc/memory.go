package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory is what the kernel says about all memory, in bytes. If GPU and system share it,
// what the GPU holds is missing from Available too.
type Memory struct {
	Total, Free int64
	Available   int64 // what a new program could get
	Cached      int64 // of files: without tmpfs and shared memory
	Swap        int64
	SwapUsed    int64
	// CMA is what is set aside for contiguous allocations, CMAFree what is free of it; nil: the kernel has none.
	CMA, CMAFree *int64
}

// ReadMemory reads that of this machine.
func ReadMemory() (Memory, error) { return Here.Memory() }

// Memory reads that of the machine.
func (fs FS) Memory() (Memory, error) {
	b, err := os.ReadFile(string(fs) + "/meminfo")
	if err != nil {
		return Memory{}, err
	}
	return ParseMemory(string(b))
}

// ParseMemory reads /proc/meminfo, which counts in kibibytes whatever it calls them (proc_meminfo(5)).
func ParseMemory(text string) (Memory, error) {
	bytes := map[string]int64{}
	for l := range strings.Lines(text) {
		name, rest, ok := strings.Cut(l, ":")
		f := strings.Fields(rest)
		if !ok || len(f) == 0 {
			continue
		}
		if n, err := strconv.ParseInt(f[0], 10, 64); err == nil && n >= 0 && n < 1<<53 {
			bytes[name] = n << 10
		}
	}
	m := Memory{Total: bytes["MemTotal"], Free: bytes["MemFree"], Available: bytes["MemAvailable"],
		Swap: bytes["SwapTotal"]}
	m.Cached = bytes["Cached"] - min(bytes["Cached"], bytes["Shmem"])
	m.SwapUsed = m.Swap - min(m.Swap, bytes["SwapFree"])
	if n, has := bytes["CmaTotal"]; has {
		m.CMA = &n
	}
	if n, has := bytes["CmaFree"]; has {
		m.CMAFree = &n
	}
	if _, has := bytes["MemAvailable"]; !has || m.Total == 0 {
		return Memory{}, errors.New("meminfo has no MemTotal or no MemAvailable")
	}
	return m, nil
}

// BootIDFile has the id of the present boot.
const BootIDFile = string(Here) + "/sys/kernel/random/boot_id"

// BootID is the kernel's id of the present boot: it differs after each restart of the machine.
func BootID() (string, error) {
	b, err := os.ReadFile(BootIDFile)
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
