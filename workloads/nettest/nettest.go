// Package nettest decides what two tests of the same links have in common, nccl-test (NCCL's collectives) and ib-test
// (perftest's RDMA operations): how a result is graded, which causes a slow one can have and which of them is likely,
// what the devices counted meanwhile, and which earlier test a result is compared with.
//
// It must not run or read anything: topology, inventories, counters and text come in. It knows nothing of what one of
// the tests alone prints or should reach: nccltest and ibtest, below it, do.
package nettest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/sparkrun/sparkrun/envgen"
)

// Grade is a verdict in a word.
type Grade string

const (
	// Good reached what these links give, and every element was right.
	Good Grade = "good"
	// Low was right, and slower than it should be.
	Low Grade = "low"
	// Unjudged was right, and no rate is known to compare it with.
	Unjudged Grade = "unjudged"
	// Failed gave no result, a wrong one, or one that nobody checked.
	Failed Grade = "failed"
	// Stopped was ended by a person before it came to its end.
	Stopped Grade = "stopped"
)

// PassGbps is NVIDIA's mark for one cable between two nodes, 10^9 bits a second: the least that counts as good.
const PassGbps = 175.0

// Setting has the circumstances of a test.
type Setting struct {
	// Topology and Inventories (by node id) are of the whole cluster, before the test.
	Topology    envgen.Topology
	Inventories map[string]envgen.Inventory
	// Traffic is what the nodes' devices counted meanwhile; nil where nobody read it.
	Traffic []Traffic
}

// Last is the latest record of a history that is like another; nil where there is none. A line that is no record (a
// disk that was full, a newer version's) is passed over.
func Last[R any](history []byte, like func(R) bool) *R {
	var last *R
	for line := range bytes.Lines(history) {
		var r R
		if json.Unmarshal(line, &r) == nil && like(r) {
			last = &r
		}
	}
	return last
}

// Size writes bytes as people do: 16 GiB, 8 MiB, 100 B.
func Size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for (v >= 1024 || v > 1 && i > 0 && math.Round(v*10) >= 10240) && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if v == math.Trunc(v) || i == 0 {
		return fmt.Sprintf("%.0f %s", v, units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
