package relay

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// The first nodes have no way to the outside: the next one that has takes over, they have it from that one, and are
// not asked for more by those behind.
func TestNextNodeHasAWayOutside(t *testing.T) {
	inWorld(t, 4, 40, func(t *testing.T, w *world) {
		w.nodes[0].noWay, w.nodes[1].noWay = true, true
		w.beginAll()
		began := time.Now()
		w.wait()
		if took := time.Since(began); took > 2*stall+10*time.Second {
			t.Errorf("it took %s: want 5 s for each that has no way, and the file's", took)
		}
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice", w.twice())
		}
		if w.sent[[2]int{2, 3}] != len(w.content) {
			t.Errorf("node3 had %d bytes from node2", w.sent[[2]int{2, 3}])
		}
		for i, n := range []int{1, 1, 0, 0} {
			got := 0
			for _, e := range w.told() {
				if strings.HasPrefix(e, fmt.Sprintf("node%d: outside left: gave nothing for 5 s: no route to host", i)) {
					got++
				}
			}
			if got != n {
				t.Errorf("node%d said %d times that it gets nothing, want %d: %q", i, got, n, w.told())
			}
		}
	})
}

// The outside comes back for a node that is not the first, after all had given it up for the moment.
func TestAnyNodeGetsAWayOutside(t *testing.T) {
	inWorld(t, 3, 20, func(t *testing.T, w *world) {
		for _, n := range w.nodes {
			n.noWay = true
		}
		w.beginAll()
		time.Sleep(time.Minute)
		w.mu.Lock()
		w.nodes[1].noWay = false
		w.mu.Unlock()
		began := time.Now()
		w.wait()
		if took := time.Since(began); took > 4*stall+10*time.Second {
			t.Errorf("it took %s", took)
		}
		if w.twice() != 0 {
			t.Errorf("%d bytes came twice", w.twice())
		}
	})
}

// Where nobody gets anything it ends, and says what it was.
func TestNobodyHasAWayOutside(t *testing.T) {
	inWorld(t, 3, 4, func(t *testing.T, w *world) {
		for _, n := range w.nodes {
			n.noWay = true
		}
		w.beginAll()
		began := time.Now()
		for i, n := range w.nodes {
			if <-n.ended; !errors.Is(n.err, ErrNoSource) || !strings.Contains(n.err.Error(), "no route to host") {
				t.Errorf("node%d: %v", i, n.err)
			}
		}
		if took := time.Since(began); took < sourceless || took > sourceless+30*time.Second {
			t.Errorf("it ended after %s", took)
		}
	})
}

// A chain of which nobody may ask the outside ends too, once who had the file is gone; before, it stays a chain.
func TestNoOutsideAtAll(t *testing.T) {
	inWorld(t, 3, 40, func(t *testing.T, w *world) {
		w.begin(0)
		w.wait()
		w.noOutside = true
		w.begin(1)
		w.begin(2)
		time.Sleep(100 * time.Millisecond)
		w.kill(0)
		w.mu.Lock()
		n := w.sent[[2]int{0, 2}]
		w.mu.Unlock()
		if n != 0 {
			t.Errorf("node2 had %d bytes from node0", n)
		}
		for i, n := range w.nodes[1:] {
			if <-n.ended; !errors.Is(n.err, ErrNoSource) {
				t.Errorf("node%d: %v", i+1, n.err)
			}
		}
	})
}
