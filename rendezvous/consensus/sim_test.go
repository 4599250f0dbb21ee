//go:debug randseednop=0
package consensus

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	oldrand "math/rand"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seedsFlag = flag.Int("seeds", 8, "how many seeds each simulation runs")
	seedFlag  = flag.Uint64("seed", 0, "run this seed only")
	bugFlag   = flag.String("bug", "", "seed this bug, one of the names below")
)

// bug is a fault of the product, seeded to see it found.
type bug string

const (
	noBug          bug = ""
	noFsync        bug = "fsync skipped"
	staleRead      bug = "stale read served"
	staleLeader    bug = "stale read served by who last led"
	noFence        bug = "fence dropped"
	sameGeneration bug = "generation not raised"
	startTwice     bug = "retry started twice"
)

// bubble runs one seed in a bubble. raft draws its election timeouts from the
// global math/rand, which is seeded, too; one goroutine at a time makes most of
// the rest of it repeat.
func bubble(t *testing.T, seed uint64, fn func(t *testing.T)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	oldrand.Seed(int64(seed)) //nolint:staticcheck // raft's source can be seeded in no other way
	defer func() {
		if left := recover(); left != nil && !onlyLostFutures() {
			panic(left)
		}
	}()
	synctest.Test(t, fn)
}

// onlyLostFutures says whether each goroutine that is left in a bubble waits for
// a future that raft dropped: it answers none of the entries that its state
// machine's queue holds when it shuts down (hashicorp/raft issue 498).
func onlyLostFutures() bool {
	all := make([]byte, 1<<20)
	for {
		if n := runtime.Stack(all, true); n < len(all) {
			all = all[:n]
			break
		}
		all = make([]byte, 2*len(all))
	}
	for _, g := range strings.Split(string(all), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		if strings.Contains(head, "synctest bubble") && !strings.Contains(g, "raft.(*deferError).Error(") {
			return false
		}
	}
	return true
}

// recordRun is one run of clients that submit, get and cancel by the record.
func recordRun(t *testing.T, seed uint64, b bug) []violation {
	var s *sim
	bubble(t, seed, func(t *testing.T) {
		s = newSim(t, seed, b, nil)
		span := 15 * time.Second
		until := time.Now().Add(span)
		jobs := 4 + s.rng.IntN(8)
		var clients sync.WaitGroup
		for i := range 3 + s.rng.IntN(3) {
			clients.Go(func() { s.client(i, until, jobs) })
		}
		s.operate(span, []func(){
			s.split, s.oneWay, s.isolate, s.crash, s.crash, s.blackout, s.slowDisk, s.hungDisk, s.roughNet, s.transfer,
			s.wipeFollower,
		})
		clients.Wait()
		if s.heal() {
			s.survivors()
		} else {
			s.violated("recovery", "the cluster does not come together again")
		}
		s.end()
	})
	s.check()
	t.Logf("fingerprint %x", s.fingerprint())
	return s.broken
}

// fingerprint is equal for two runs in which the clients saw the same and the
// record went through the same: how far a seed repeats its run.
func (s *sim) fingerprint() []byte {
	h := sha256.New()
	for _, i := range slices.Sorted(maps.Keys(s.states)) {
		fmt.Fprintln(h, i, s.states[i])
	}
	for _, e := range s.history.events {
		fmt.Fprintln(h, e.ClientId, e.Kind, e.Value)
	}
	return h.Sum(nil)[:4]
}

// seeds runs what -seeds and -seed ask for.
func seeds(t *testing.T, run func(t *testing.T, seed uint64) []violation) {
	first, last := uint64(1), uint64(*seedsFlag)
	if *seedFlag != 0 {
		first, last = *seedFlag, *seedFlag
	}
	begin := time.Now()
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			for _, v := range run(t, seed) {
				t.Errorf("%s: %s", v.check, v.text)
			}
		})
		if t.Failed() {
			t.Fatalf("again with: go test ./rendezvous/consensus -run '^%s$' -seed %d", t.Name(), seed)
		}
	}
	n := last - first + 1
	t.Logf("%d seeds, %.0f a minute", n, float64(n)/time.Since(begin).Minutes())
}

// The record under every fault: submit, get and cancel are linearizable (P1), an
// acknowledged submit survives (P5), and the state machines agree at every index
// (P8).
func TestSimRecord(t *testing.T) {
	seeds(t, func(t *testing.T, seed uint64) []violation { return recordRun(t, seed, bug(*bugFlag)) })
}
