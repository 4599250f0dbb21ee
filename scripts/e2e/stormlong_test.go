package e2e

import (
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

// A storm of minutes: what one of seconds has no time for.

// newLongStorm has a Hub between its hosts, and keeps what tells of a broken promise.
func newLongStorm(t testing.TB, nodes int, bounds witness.Bounds) *storm {
	t.Helper()
	hubForLabs(t)
	s := newStorm(t, binary, nodes, bounds)
	s.hub([]string{"--rate", "4000000", "--made", stormModel + "=2x6000000,20x20000"})
	s.together, s.most = 3, 40*time.Second
	s.unwatchAll()
	if s.engines = nodes <= 3; s.engines {
		s.do(append([]string{"engine"}, other(nodes)...)...)
	}
	check(t, os.Mkdir(filepath.Join(s.shared, "sent"), 0o755))
	file := make([]byte, 3<<20)
	_, _ = crand.Read(file)
	check(t, os.WriteFile(filepath.Join(s.shared, "sent/file"), file, 0o644))
	return s
}

// rounds has a storm begin again and again; after each all is whole, and after each third one nothing left.
func (s *storm) rounds(seed uint64, d time.Duration) {
	t := s.t
	t.Cleanup(func() {
		if t.Failed() {
			s.keep(keepIn(seed, s.nodes))
		}
	})
	s.on("spark1", "sparkrun", "launch", "exec", "--nodes", strconv.Itoa(s.nodes), "--", "sleep", "1").must(t)
	first := map[string]holding{}
	goroutines := s.dumps()
	s.calm()
	for range 8 {
		s.on("spark1", "sparkrun", "launch", "exec", "--nodes", strconv.Itoa(s.nodes), "--", "true").must(t)
	}
	s.on("spark1", "sparkrun", "launch", "exec", "--nodes", strconv.Itoa(s.nodes), "--", "sleep", "1").must(t)
	s.assertNothingLeft(other(s.nodes)...)
	for _, h := range other(s.nodes) {
		now := s.holding(h)
		now.goroutines = goroutines[h]
		first[h] = now
	}
	defer func() { // that a fault had it fail is right now and then, and not each time
		for kind, n := range s.tried {
			t.Logf("%s: %d of %d went well", kind, n.well, n.all)
			if n.well == 0 && n.all > 4 {
				t.Errorf("of %d times none went well: %s", n.all, kind)
			}
		}
	}()
	acts := append(everything, stormy...)
	for n, end := uint64(0), time.Now().Add(d); n == 0 || time.Until(end) > 30*time.Second && !t.Failed(); n++ {
		s.dir = filepath.Join(s.shared, strconv.FormatUint(n, 10))
		check(t, os.Mkdir(s.dir, 0o777))
		check(t, os.Chmod(s.dir, 0o777))
		s.tell("round %d begins", n)
		s.watchAll()
		var upgrade sync.WaitGroup
		if n == 0 { // not left to chance
			upgrade.Go(func() { upgrades(&player{storm: s, rng: rand.New(rand.NewPCG(seed, 0))}) })
		}
		s.rage(seed<<16|n, min(*stormRound, time.Until(end)), func() bool { return false }, acts...)
		upgrade.Wait()
		s.tell("all is whole again")
		time.Sleep(s.bounds.Settle + s.bounds.Tell) // what is not told by then never is
		s.judge()
		s.modelIsWhole()
		if last := time.Until(end) <= 30*time.Second; last || n%3 == 2 { // it takes minutes: connections are closed when they are idle for long
			s.nothingLeft(first)
		}
		s.calm()
		if !t.Failed() {
			check(t, os.RemoveAll(s.dir))
		}
		word := "ok"
		if t.Failed() {
			word = "FAILED"
		}
		fmt.Printf("%s  %d hosts, seed %d, round %d: %d launches and %d faults so far: %s\n", time.Now().Format(time.TimeOnly), s.nodes,
			seed, n, len(s.names), len(s.faults), word)
	}
}

// calm waits until all hosts are ready.
func (s *storm) calm() {
	s.t.Helper()
	s.on("spark1", "sparkrun", "status", "--wait-nodes", strconv.Itoa(s.nodes), "--timeout", "90s").must(s.t)
}

// modelIsWhole has the model come to all hosts, whatever became of it before, and go again.
func (s *storm) modelIsWhole() {
	s.t.Helper()
	for _, args := range [][]string{{"pull", stormModel, "--all"}, {"verify", stormModel}, {"rm", stormModel}} {
		s.on("spark1", append([]string{"sparkrun", "model"}, args...)...).must(s.t)
	}
}

func keepIn(seed uint64, nodes int) string {
	if *stormKeep == "" {
		return ""
	}
	return filepath.Join(*stormKeep, fmt.Sprintf("seed-%d-%d-hosts-%s", seed, nodes, time.Now().Format("0102-1504")))
}
