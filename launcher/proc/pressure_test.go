package proc

import (
	"testing"
	"time"
)

func TestParsePressure(t *testing.T) {
	got, err := ParsePressure("some avg10=0.12 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=17\n")
	if want := (Pressure{2500 * time.Millisecond, 17 * time.Microsecond}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", "some avg10=0.12\n", "some avg10=0 total=1\n"} {
		if got, err := ParsePressure(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestParseFreeBlocks(t *testing.T) {
	// Orders 9 and 10 of pages of 4 KiB are of 2 and 4 MiB; order 5 of pages of 64 KiB is of 2 MiB.
	const text = "Node 0, zone      DMA      1      1      1      0      2      1      1      0      1      1      3 \n" +
		"Node 0, zone   Normal    100     90      0      0      0      0      0      0      0      7      0 \n"
	for page, want := range map[int64]int64{4 << 10: (8*2 + 3*4) << 20, 64 << 10: (1*2 + 1*4 + 1*16 + 8*32 + 3*64) << 20} {
		if got, err := ParseFreeBlocks(text, page, 2<<20); err != nil || got != want {
			t.Errorf("pages of %d: %d, %v, want %d", page, got, err, want)
		}
	}
	for _, bad := range []string{"", "Node 0\n", "Node 0, zone DMA x\n"} {
		if got, err := ParseFreeBlocks(bad, 4096, 2<<20); err == nil {
			t.Errorf("%q: %d", bad, got)
		}
	}
}
