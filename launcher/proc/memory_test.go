package proc

import "testing"

func TestParseMemory(t *testing.T) {
	got, err := ParseMemory("MemTotal:       32768 kB\nMemFree: 1 kB\nMemAvailable:    1024 kB\nHugePages_Total:       0\n")
	if want := (Memory{Total: 32 << 20, Free: 1 << 10, Available: 1 << 20}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := ParseMemory("MemTotal: 32768 kB\nMemAvailable: 0 kB\n"); err != nil || got.Available != 0 {
		t.Errorf("nothing left: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "MemTotal: much kB\nMemAvailable: 1 kB\n", "MemTotal: 32768 kB\nMemFree: 1 kB\n"} {
		if _, err := ParseMemory(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if m, err := ReadMemory(); err != nil || m.Available <= 0 || m.Available > m.Total {
		t.Errorf("this machine: %+v, %v", m, err)
	}
}
