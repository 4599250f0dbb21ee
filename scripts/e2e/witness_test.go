package e2e

import (
	"flag"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

// TestWitnessStorm in minutes is scripts/torture.
var (
	stormFor   = flag.Duration("storm", 25*time.Second, "how long TestWitnessStorm breaks things; from a minute on more of them, and several at once")
	stormSeed  = flag.Uint64("storm-seed", 1, "of TestWitnessStorm; 0: another each time")
	stormHosts = flag.String("storm-hosts", "3", "of how many hosts its labs are, one after the other: 2,3,5,8; the time is shared")
	stormRound = flag.Duration("storm-round", 3*time.Minute, "after which all has to be whole again, and is looked at")
	stormKeep  = flag.String("storm-keep", "", "where to keep what tells of a storm in which a promise was broken")
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
// ranks saw themselves breaks none of the properties, and nothing is left of them.
func TestWitnessStorm(t *testing.T) {
	seed := *stormSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1e6
	}
	buildWitness(t)
	sizes := strings.Split(*stormHosts, ",")
	next, program := "", ""
	if *stormFor >= time.Minute {
		_, next = nextRelease(t)
		program = filepath.Join(mpiPrograms(t), "mpich5")
	}
	for _, size := range sizes {
		nodes, err := strconv.Atoi(size)
		check(t, err)
		t.Run(size+" hosts", func(t *testing.T) {
			bounds := witness.Bounds{Kill: 10 * time.Second, Tell: 30 * time.Second, StartTimeout: 15 * time.Second, Settle: 5 * time.Second}
			if next == "" {
				t.Logf("again with: -storm %s -storm-seed %d -storm-hosts %s", *stormFor/time.Duration(len(sizes)), seed, size)
				s := newStorm(t, binary, nodes, bounds)
				s.rage(seed, *stormFor, func() bool { return false }, everything...)
				s.judge()
				return
			}
			t.Logf("again with: ./scripts/torture --minutes %.0f --seed %d --hosts %s", math.Ceil(stormFor.Minutes()/float64(len(sizes))), seed, size)
			s := newLongStorm(t, nodes, bounds)
			s.next, s.mpi = next, program
			s.rounds(seed, *stormFor/time.Duration(len(sizes)))
		})
	}
}

// judge ends a storm, and holds it against the promises.
func (s *storm) judge() {
	t := s.t
	t.Helper()
	s.settle()
	s.assertTold()
	s.assertTries()
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
	wrong, _ := filepath.Glob(filepath.Join(s.dir, "wrong.*"))
	for _, path := range wrong {
		text, err := os.ReadFile(path)
		check(t, err)
		s.wrong = append(s.wrong, string(text))
	}
	for _, w := range s.wrong {
		t.Error(w)
	}
	if s.engines {
		s.noContainerLeft(other(s.nodes)...)
	}
	s.wrong, s.counts = nil, map[string]int{}
}
