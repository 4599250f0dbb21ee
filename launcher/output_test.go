package launcher

import "testing"

func TestSizeInWords(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 64 << 20: "64 MiB", 2684354560: "2.5 GiB",
		3 << 50: "3072 TiB"} {
		if got := Size(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
