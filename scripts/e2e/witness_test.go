package e2e

import (
	"flag"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

var (
	stormFor  = flag.Duration("storm", 25*time.Second, "how long TestWitnessStorm breaks things")
	stormSeed = flag.Uint64("storm-seed", 1, "of TestWitnessStorm; 0: another each time")
)

// witnessBinary is what the ranks of a storm run, built by buildWitness.
var witnessBinary string

// buildWitness builds the witness where all hosts see it.
func buildWitness(t testing.TB) {
	t.Helper()
	if witnessBinary != "" {
		return
	}
	path := filepath.Join(filepath.Dir(binary), "witness")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "./witness/cmd")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build witness: %v\n%s", err, out)
	}
	witnessBinary = path
}

// Jobs come and go while agents, leaders, machines and networks do too: what the
// ranks saw themselves breaks none of the properties.
func TestWitnessStorm(t *testing.T) {
	seed := *stormSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1e6
	}
	t.Logf("again with: go test ./scripts/e2e -run WitnessStorm -storm %s -storm-seed %d", *stormFor, seed)
	buildWitness(t)
	s := newStorm(t, binary, witness.Bounds{Kill: 10 * time.Second, StartTimeout: 15 * time.Second, Settle: 5 * time.Second})
	s.rage(seed, *stormFor, func() bool { return false }, everything...)
	s.settle()
	h := s.history(true)
	for _, v := range witness.Check(h) {
		t.Error(v)
	}
	kinds, tries := map[witness.Kind]int{}, map[witness.Key]bool{}
	for _, r := range h.Records {
		kinds[r.Kind]++
		if r.Kind == witness.Start {
			tries[r.Key()] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		t.Logf("%3d %s", s.counts[name], name)
	}
	t.Logf("%d tries of %d launches, %d ranks, %d lines, %d answers of ps, %d logs", len(tries), len(s.names),
		kinds[witness.Start], kinds[witness.Line], kinds[witness.State], len(h.Logs))
	if len(tries) == 0 || kinds[witness.State] == 0 || len(h.Logs) == 0 {
		t.Error("the storm saw nothing")
	}
}
