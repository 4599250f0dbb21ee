package proc

import "testing"

func TestParseSwappedIn(t *testing.T) {
	if n, err := ParseSwappedIn("nr_free_pages 7\npswpin 3\npswpout 9\n", 4096); n != 3*4096 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	for _, bad := range []string{"", "pswpin_x 3\n", "pswpin many\n"} {
		if _, err := ParseSwappedIn(bad, 4096); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if n, err := Here.SwappedIn(); err != nil || n < 0 {
		t.Errorf("this machine: %d, %v", n, err)
	}
}
