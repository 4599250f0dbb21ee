package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var containerRounds = flag.Int("container-rounds", 0, "TestContainerFailpoints: how often an agent is killed on the way to a container")

// An agent dies at any step between Prepare and the first act of a container's program, also where the
// step is the outer half's or the shim's: the program runs once, or the launch ends with 125 and none did;
// nothing is left, in the engine neither.
func TestContainerFailpoints(t *testing.T) {
	if *containerRounds == 0 {
		t.Skip("takes minutes: -container-rounds 200")
	}
	dir := scratch(t)
	build, list := filepath.Join(dir, "sparkrun"), filepath.Join(dir, "points")
	out, err := exec.Command("go", "run", "../failpoint", "-o", build, "-points", list, "../../cmd/sparkrun", "../../launcher/agent", "../../launcher/preflight", "../../launcher/shim", "../../launcher/container").CombinedOutput()
	if err != nil {
		t.Fatalf("build with failpoints: %v\n%s", err, out)
	}
	witness := filepath.Join(dir, "witness")
	if err := os.Mkdir(witness, 0o777); err != nil || os.Chmod(witness, 0o777) != nil {
		t.Fatal(err)
	}
	s := spawner{lab: upWith(t, build, 3), witness: witness, tally: &tally{}}
	s.from = s.leader("spark1")
	victims := other(3, s.from)
	for _, h := range victims {
		s.on(h, "install", "-d", "-m", "777", "/tmp/failpoint").must(t)
	}
	s.do(append([]string{"engine"}, victims...)...)
	var way []spawnKill
	kinds := []spawnKind{{"box", []string{"--image", "lab/busybox", "--mount", witness, "--mount", "/tmp/failpoint"}}}
	for _, k := range s.kills(victims[0], readPoints(t, list), kinds) {
		// The inner half sees nobody outside of its container.
		inside := slices.ContainsFunc([]string{"inner.go", "hand.go"}, func(f string) bool { return strings.HasPrefix(k.where, "container/"+f) })
		if k.who == "agent" && !inside {
			way = append(way, k)
		}
	}
	kills := spread(way, *containerRounds)
	began := time.Now()
	var next atomic.Int64
	t.Run("rounds", func(t *testing.T) {
		for _, h := range victims {
			t.Run(h, func(t *testing.T) {
				t.Parallel()
				own := s
				own.lab = &lab{t: t, name: s.name}
				for i := next.Add(1) - 1; i < int64(len(kills)); i = next.Add(1) - 1 {
					own.round(h, fmt.Sprintf("b%d", i), kills[i])
					own.noContainerLeft(h)
					if i%20 == 19 {
						t.Logf("round %d of %d after %s", i+1, len(kills), time.Since(began).Round(time.Second))
					}
				}
			})
		}
	})
	t.Logf("%d places to die, %d rounds in %s: %d launches ended well, %d were broken off before a program ran, %d did not pass the point",
		len(way), len(kills), time.Since(began).Round(time.Second), s.well, s.none, s.missed)
	if s.missed > len(kills)/5 || s.well == 0 {
		t.Error("that is not what the points are for")
	}
}
