package relay

import (
	"fmt"
	"testing"
	"time"
)

// TestChainTakesLittleLonger: 2 GB go to four nodes, over links of 250 Mb/s, in little more
// than the time of one copy: chunks are handed on while the next ones arrive. Bytes and rate
// are those divided by 256; time is virtual, so that processors and disks cost nothing.
func TestChainTakesLittleLonger(t *testing.T) {
	const chunks, scale = 128, ChunkBytes / testChunk
	for _, nodes := range []int{1, 2, 4, 8} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			inWorld(t, nodes, chunks, func(t *testing.T, w *world) {
				rate := 250e6 / 8 / float64(scale)
				w.pace = 0
				w.links = map[[2]int]*Limit{{outsideIndex, 0}: NewLimit(int64(rate))}
				for i := range nodes {
					w.links[[2]int{i, i + 1}] = NewLimit(int64(rate))
				}
				one := time.Duration(float64(len(w.content)) / rate * float64(time.Second))
				began := time.Now()
				w.beginAll()
				w.wait()
				ratio := float64(time.Since(began)) / float64(one)
				t.Logf("%d nodes: %s, %.3f of one copy's %s", nodes, time.Since(began).Round(time.Millisecond), ratio,
					one.Round(time.Millisecond))
				if most := 1.15; ratio > most && nodes <= 4 {
					t.Errorf("%.3f of one copy's time, want %.2f at most", ratio, most)
				}
				if w.once() != len(w.content) {
					t.Errorf("%d bytes from outside", w.once())
				}
			})
		})
	}
}
