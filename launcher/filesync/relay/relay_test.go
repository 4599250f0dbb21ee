package relay

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var seeds = flag.Int("seeds", 40, "how many seeds TestRandomKills tries; TestRandomFaults tries half of them")

// inFlight is what a node has of a file in memory: the pieces under way.
const inFlight = window * testChunk

func TestChainFetchesOnce(t *testing.T) {
	inWorld(t, 4, 20, func(t *testing.T, w *world) {
		w.beginAll()
		w.wait()
		if w.once() != len(w.content) {
			t.Errorf("%d bytes came from outside for a file of %d", w.once(), len(w.content))
		}
		for link, n := range w.sent {
			if link[1] != link[0]+1 || n != len(w.content) {
				t.Errorf("node%d sent %d bytes to node%d: want the file, to the next one only", link[0], n, link[1])
			}
		}
		want := []string{"node0: outside", "node1: node0", "node2: node1", "node3: node2"}
		if got := w.told(); len(got) != 4 || strings.Join(sorted(got), "|") != strings.Join(want, "|") {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// Nodes hear of a file one after the other.
func TestChainBeginsAnyhow(t *testing.T) {
	inWorld(t, 3, 20, func(t *testing.T, w *world) {
		for _, i := range []int{2, 1, 0} {
			w.begin(i)
			time.Sleep(700 * time.Millisecond)
		}
		w.wait()
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice", w.twice())
		}
	})
}

func TestWrongBytesOfMiddleNode(t *testing.T) {
	inWorld(t, 4, 20, func(t *testing.T, w *world) {
		w.nodes[1].wrong = true
		w.beginAll()
		w.wait()
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice from outside, though node0 had them", w.twice())
		}
		if got := strings.Join(w.told(), "\n"); !strings.Contains(got, "node2: node1 left: sent wrong bytes at 0\nnode2: node0") {
			t.Errorf("node2 did not leave node1, by name, for node0:\n%s", got)
		}
	})
}

func TestSilentSourceIsLeft(t *testing.T) {
	inWorld(t, 4, 20, func(t *testing.T, w *world) {
		w.beginAll()
		time.Sleep(100 * time.Millisecond)
		w.mu.Lock()
		w.nodes[1].hangs = true
		w.mu.Unlock()
		began := time.Now()
		w.wait()
		if took := time.Since(began); took < stall || took > stall+2*time.Second {
			t.Errorf("it took %s to go on", took)
		}
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice from outside", w.twice())
		}
		if got := strings.Join(w.told(), "\n"); !strings.Contains(got, "node2: node1 left: gave nothing for 5 s") {
			t.Errorf("node1 is not named:\n%s", got)
		}
	})
}

// A dead upstream's work is taken over, by one node.
func TestFirstNodeDies(t *testing.T) {
	inWorld(t, 4, 40, func(t *testing.T, w *world) {
		w.beginAll()
		time.Sleep(200 * time.Millisecond)
		w.kill(0)
		w.wait()
		// node0 alone had what it had not handed on.
		if most := 3 * inFlight; w.twice() > most {
			t.Errorf("%d bytes came twice, want %d at most", w.twice(), most)
		}
		if got := strings.Join(w.told(), "\n"); strings.Count(got, ": outside") != 2 {
			t.Errorf("want node0, then one other to read from outside:\n%s", got)
		}
	})
}

// An agent that comes back within 5 s costs nothing but what was under way.
func TestFirstNodeComesBack(t *testing.T) {
	inWorld(t, 4, 40, func(t *testing.T, w *world) {
		w.beginAll()
		time.Sleep(200 * time.Millisecond)
		w.kill(0)
		time.Sleep(2 * time.Second)
		w.begin(0)
		w.wait()
		if w.twice() > inFlight {
			t.Errorf("%d bytes came twice, want the pieces under way: %d at most", w.twice(), inFlight)
		}
	})
}

// It comes back when another one reads from outside already.
func TestFirstNodeComesBackLate(t *testing.T) {
	inWorld(t, 3, 200, func(t *testing.T, w *world) {
		w.beginAll()
		time.Sleep(200 * time.Millisecond)
		w.kill(0)
		time.Sleep(6 * time.Second)
		w.begin(0)
		w.wait()
		if most := 3 * inFlight; w.twice() > most {
			t.Errorf("%d bytes came twice, want %d at most", w.twice(), most)
		}
	})
}

func TestMiddleNodeDies(t *testing.T) {
	inWorld(t, 4, 40, func(t *testing.T, w *world) {
		w.beginAll()
		time.Sleep(200 * time.Millisecond)
		w.kill(2)
		w.wait()
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice from outside", w.twice())
		}
	})
}

func TestTwoFaultsAtOnce(t *testing.T) {
	inWorld(t, 4, 60, func(t *testing.T, w *world) {
		w.beginAll()
		time.Sleep(200 * time.Millisecond)
		w.kill(0)
		w.mu.Lock()
		w.nodes[1].wrong = true
		w.mu.Unlock()
		w.wait()
		got := strings.Join(w.told(), "\n")
		if !strings.Contains(got, "node2: node1 left: sent wrong bytes") || !strings.Contains(got, "node1: node0 left") {
			t.Errorf("the two are not named:\n%s", got)
		}
	})
}

func TestOutsideDiesAndComesBack(t *testing.T) {
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprint("silent ", silent), func(t *testing.T) {
			inWorld(t, 2, 40, func(t *testing.T, w *world) {
				set := func(down error, silent bool) {
					w.mu.Lock()
					defer w.mu.Unlock()
					w.down, w.silent = down, silent
				}
				w.beginAll()
				time.Sleep(200 * time.Millisecond)
				if silent {
					set(nil, true)
				} else {
					set(errors.New("bad gateway"), false)
				}
				time.Sleep(time.Minute)
				set(nil, false)
				w.wait()
				if w.twice() > inFlight {
					t.Errorf("%d bytes came twice, want %d at most", w.twice(), inFlight)
				}
				left := 0
				for _, e := range w.told() {
					if strings.Contains(e, "outside left: gave nothing for 5 s") {
						left++
					}
				}
				if left != 2 {
					t.Errorf("that the outside is away was said %d times, want once a node: %q", left, w.told())
				}
			})
		})
	}
}

// A short break of the outside costs no byte.
func TestOutsideBreaksOff(t *testing.T) {
	inWorld(t, 1, 40, func(t *testing.T, w *world) {
		w.beginAll()
		time.Sleep(200 * time.Millisecond)
		w.mu.Lock()
		w.down = errors.New("connection reset")
		w.mu.Unlock()
		time.Sleep(3 * time.Second)
		w.mu.Lock()
		w.down = nil
		w.mu.Unlock()
		w.wait()
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice", w.twice())
		}
	})
}

func TestOutsideRefuses(t *testing.T) {
	inWorld(t, 3, 4, func(t *testing.T, w *world) {
		w.down = fmt.Errorf("%w: gated: set a token", ErrGone)
		w.beginAll()
		for i, n := range w.nodes {
			if <-n.ended; !errors.Is(n.err, ErrGone) {
				t.Errorf("node%d: %v", i, n.err)
			}
		}
	})
}

// The file is another one at the outside than was said: no node takes it for whole, and
// none reads it from outside again.
func TestFileChangedOutside(t *testing.T) {
	inWorld(t, 3, 20, func(t *testing.T, w *world) {
		w.content[1234] ^= 1
		w.beginAll()
		for i, n := range w.nodes {
			if <-n.ended; !errors.Is(n.err, ErrSum) {
				t.Errorf("node%d: %v, want ErrSum", i, n.err)
			}
		}
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice", w.twice())
		}
	})
}

// Who judged the file is gone: the others read their own.
func TestJudgeIsGone(t *testing.T) {
	inWorld(t, 3, 10, func(t *testing.T, w *world) {
		w.begin(0)
		w.wait()
		w.nodes[1].part.data = slices.Clone(w.content)
		w.nodes[1].part.kept = Kept{Sums: w.nodes[0].part.kept.Sums}
		w.kill(0)
		w.begin(1)
		w.begin(2)
		w.wait()
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice", w.twice())
		}
	})
}

// What came from members is hashed when its node has to read the rest from outside.
func TestMemberGoesOnOutside(t *testing.T) {
	inWorld(t, 2, 30, func(t *testing.T, w *world) {
		w.beginAll()
		time.Sleep(200 * time.Millisecond)
		w.kill(0)
		had := w.nodes[1].file.prefix()
		w.wait()
		if had == 0 || had == w.cut.chunks() {
			t.Fatalf("node1 had %d chunks: the test shows nothing", had)
		}
	})
}

func TestDiskFull(t *testing.T) {
	inWorld(t, 3, 20, func(t *testing.T, w *world) {
		w.nodes[1].part.full = true
		w.beginAll()
		<-w.nodes[1].ended
		if err := w.nodes[1].err; err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("node1: %v", err)
		}
		w.forget(1)
		w.wait()
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice", w.twice())
		}
	})
}

// A slow reader slows nobody.
func TestSlowDownstream(t *testing.T) {
	inWorld(t, 3, 40, func(t *testing.T, w *world) {
		w.nodes[2].part.slow = time.Second // a chunk
		w.beginAll()
		began := time.Now()
		<-w.nodes[1].ended
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("node1 took %s", took)
		}
		w.wait()
	})
}

func TestLimit(t *testing.T) {
	inWorld(t, 2, 16, func(t *testing.T, w *world) {
		w.limit = testChunk // a second
		w.beginAll()
		began := time.Now()
		w.wait()
		if took := time.Since(began); took < 14*time.Second || took > 19*time.Second {
			t.Errorf("16 chunks at one a second took %s", took)
		}
		if left := strings.Join(w.told(), "\n"); strings.Contains(left, "left") {
			t.Errorf("a source was left for a limit of ours:\n%s", left)
		}
	})
}

// A cable between two neighbours is cut: the others stand in.
func TestNeighboursCannotReachEachOther(t *testing.T) {
	inWorld(t, 4, 30, func(t *testing.T, w *world) {
		w.cutOff[[2]int{1, 2}] = true
		w.beginAll()
		w.wait()
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice", w.twice())
		}
	})
}

func TestEmptyFile(t *testing.T) {
	inWorld(t, 2, 1, func(t *testing.T, w *world) {
		w.content, w.cut.size = nil, 0
		w.sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
		for _, n := range w.nodes {
			n.part.data = nil
		}
		w.beginAll()
		w.wait()
	})
}

// TestRandomKills: whatever dies and comes back when, no node takes a wrong byte, and from
// outside nothing comes twice but what was under way at a node that died reading there.
func TestRandomKills(t *testing.T) {
	for seed := range *seeds {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 21))
			w := newWorld(t, 2+rng.IntN(3), 8+rng.IntN(40))
			w.beginAll()
			allowed := 0
			for range 1 + rng.IntN(6) {
				time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
				i := rng.IntN(len(w.nodes))
				w.mu.Lock()
				outside := w.nodes[i].file.isOutside()
				w.mu.Unlock()
				if w.kill(i); outside {
					allowed += inFlight
				}
				// Within the 5 s for which a node is awaited: after that what it alone had is
				// fetched again.
				time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
				w.begin(i)
				time.Sleep(500 * time.Millisecond) // in which it is seen
				if rng.IntN(3) == 0 {
					time.Sleep(time.Duration(rng.IntN(7000)) * time.Millisecond)
				}
			}
			w.wait()
			if twice := w.twice(); twice > allowed {
				t.Errorf("seed %d: %d bytes came twice from outside, %d were under way; events %q", seed, twice, allowed,
					w.told())
			}
			w.stopAll()
		})
		if t.Failed() {
			return
		}
	}
}

// TestRandomFaults: whatever happens, for however long, in the end each node that lives has
// the file, and not another one.
func TestRandomFaults(t *testing.T) {
	for seed := range *seeds / 2 {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 22))
			w := newWorld(t, 3+rng.IntN(3), 8+rng.IntN(40))
			some := func() *worldNode { return w.nodes[rng.IntN(len(w.nodes))] }
			w.beginAll()
			for range 2 + rng.IntN(8) {
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
				i := rng.IntN(len(w.nodes))
				kill := rng.IntN(2) == 0
				if kill && w.nodes[i].file != nil {
					w.kill(i)
				}
				w.mu.Lock()
				switch rng.IntN(5) {
				case 0:
					some().wrong = true
				case 1:
					n := some()
					n.hangs = !n.hangs
				case 2:
					w.silent = !w.silent
				case 3:
					w.down = errors.New("bad gateway")
				case 4:
					a, b := rng.IntN(len(w.nodes)), rng.IntN(len(w.nodes))
					w.cutOff[[2]int{a, b}] = !w.cutOff[[2]int{a, b}]
				}
				w.mu.Unlock()
				time.Sleep(time.Duration(rng.IntN(20_000)) * time.Millisecond)
				if w.nodes[i].file == nil && rng.IntN(4) > 0 {
					w.begin(i)
				}
			}
			w.mu.Lock()
			w.silent, w.down = false, nil
			clear(w.cutOff)
			w.mu.Unlock()
			w.wait()
			w.stopAll()
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (f *File) isOutside() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.outside
}
