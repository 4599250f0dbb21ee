package preflight

import (
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestDefaultMemoryFloor(t *testing.T) {
	for total, want := range map[int64]int64{
		1 << 30:   128 << 20, // a small virtual machine
		32 << 30:  1 << 30,   // a PC
		120 << 30: 3 << 30,   // a Spark
		0:         0,         // a kernel that doesn't tell
		1 << 50:   int64(1<<50) / int64(40),
	} {
		if got := floorOf(total); got != want {
			t.Errorf("of %s: %s, want %s", launcher.Size(total), launcher.Size(got), launcher.Size(want))
		}
	}
}
