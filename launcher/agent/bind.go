package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// machine is what ranks are bound to: the processors that this agent may use, grouped by
// the hardware that they share.
type machine struct {
	cores [][]int // hardware threads of one core
	nodes [][]int // of one NUMA node
}

// readMachine reads sysfs (ABI/testing/sysfs-devices-system-cpu, sysfs-devices-node).
func readMachine(sys string) (machine, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return machine{}, fmt.Errorf("read processors: %w", err)
	}
	var m machine
	seen := map[int]bool{}
	for cpu := range len(set) * 64 {
		if !set.IsSet(cpu) || seen[cpu] {
			continue
		}
		core := usable(filepath.Join(sys, fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu)), set)
		if !slices.Contains(core, cpu) {
			core = []int{cpu}
		}
		for _, c := range core {
			seen[c] = true
		}
		m.cores = append(m.cores, core)
	}
	lists, _ := filepath.Glob(filepath.Join(sys, "devices/system/node/node[0-9]*/cpulist"))
	for _, list := range lists {
		if node := usable(list, set); len(node) > 0 { // some nodes have memory only
			m.nodes = append(m.nodes, node)
		}
	}
	if len(m.nodes) == 0 {
		m.nodes = [][]int{slices.Concat(m.cores...)}
	}
	return m, nil
}

// usable reads a list of processors, and leaves out those that we may not use.
func usable(path string, set unix.CPUSet) []int {
	b, _ := os.ReadFile(path)
	return slices.DeleteFunc(parseCPUs(string(b)), func(cpu int) bool { return !set.IsSet(cpu) })
}

// parseCPUs reads the kernel's notation, "0-3,8" (cpuset(7), list format).
func parseCPUs(text string) []int {
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		first, last, both := strings.Cut(part, "-")
		if !both {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil {
			return nil
		}
		for cpu := a; cpu <= b; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// bind gives the processors of one of n local ranks. Whole cores are dealt out in a row;
// the first ranks get one more where they do not divide evenly. A core has two ranks only
// where there are more ranks than cores.
func (m machine) bind(to launcher.Binding, local, n int) []int {
	switch to {
	case launcher.BindNUMA:
		return m.nodes[local%len(m.nodes)]
	case launcher.BindCore:
		c := len(m.cores)
		if n > c {
			return m.cores[local%c]
		}
		first := local*(c/n) + min(local, c%n)
		last := (local+1)*(c/n) + min(local+1, c%n)
		return slices.Concat(m.cores[first:last]...)
	}
	return nil
}
