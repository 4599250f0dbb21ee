package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{"0-3,8\n": {0, 1, 2, 3, 8}, "5": {5}, "": nil, "a-b": nil} {
		if d := cmp.Diff(want, parseCPUs(text)); d != "" {
			t.Errorf("%q: %s", text, d)
		}
	}
}

// Each rank has a share of cores, all are used, and none has two ranks while
// there are enough.
func TestCoresAreDealtOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cores, threads, n := rapid.IntRange(1, 24).Draw(t, "cores"), rapid.IntRange(1, 2).Draw(t, "threads"),
			rapid.IntRange(1, 30).Draw(t, "ranks")
		var m machine
		for c := range cores {
			var core []int
			for i := range threads {
				core = append(core, c+i*cores)
			}
			m.cores = append(m.cores, core)
		}
		ranks := map[int]int{} // on each processor
		for local := range n {
			cpus := m.bind(launcher.BindCore, local, n)
			if len(cpus) < threads || n <= cores && len(cpus)/threads > cores/n+1 {
				t.Fatalf("rank %d of %d has %v", local, n, cpus)
			}
			for _, cpu := range cpus {
				ranks[cpu]++
			}
		}
		if len(ranks) != min(cores, max(n, cores))*threads {
			t.Fatalf("%d of %d processors are used", len(ranks), cores*threads)
		}
		for cpu, k := range ranks {
			if k > (n+cores-1)/cores {
				t.Fatalf("processor %d has %d ranks", cpu, k)
			}
		}
	})
}

func TestNUMANodesAreTakenInTurn(t *testing.T) {
	m := machine{cores: [][]int{{0}, {1}, {2}, {3}}, nodes: [][]int{{0, 1}, {2, 3}}}
	for local, want := range [][]int{{0, 1}, {2, 3}, {0, 1}} {
		if d := cmp.Diff(want, m.bind(launcher.BindNUMA, local, 3)); d != "" {
			t.Errorf("rank %d: %s", local, d)
		}
	}
	if cpus := m.bind(launcher.BindNone, 0, 1); cpus != nil {
		t.Errorf("unbound, but on %v", cpus)
	}
}

// Where sysfs tells nothing, each processor is a core and all are one node.
func TestMachineWithoutTopology(t *testing.T) {
	m, err := readMachine(t.TempDir())
	must(t, err)
	if len(m.cores) == 0 || len(m.nodes) != 1 || len(m.nodes[0]) != len(m.cores) {
		t.Errorf("read %+v", m)
	}
	first := m.cores[0][0]
	sys := t.TempDir()
	node := filepath.Join(sys, "devices/system/node/node0")
	must(t, os.MkdirAll(node, 0o755))
	must(t, os.WriteFile(filepath.Join(node, "cpulist"), fmt.Appendf(nil, "%d,99999\n", first), 0o600))
	m, err = readMachine(sys)
	must(t, err)
	if d := cmp.Diff([][]int{{first}}, m.nodes); d != "" {
		t.Errorf("nodes %s", d)
	}
}

// The ranks that an order describes have what it says, from their first line on.
func TestRanksAreConfined(t *testing.T) {
	n := newNode(t)
	a := n.as(`ulimit -n; read line; echo "$line"; grep Cpus_allowed_list /proc/self/status > /dev/null && echo bound`)
	st := &a.Spec.Stages[0]
	st.Ulimits = []launcher.Ulimit{{Name: "nofile", Soft: 77, Hard: 99}}
	st.BindTo, st.Stdin = launcher.BindCore, "0"
	n.launch(a)
	must(t, n.a.Input(n.ctx, key, 0, InputChunk{Data: []byte("typed\n")}))
	n.hear(launcher.Ended)
	b, err := os.ReadFile(filepath.Join(n.cfg.LogDir, string(job), "1", "rank-0.out"))
	must(t, err)
	if got := string(b); got != "77\ntyped\nbound\n" {
		t.Errorf("it wrote %q", got)
	}
}
