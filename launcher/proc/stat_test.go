package proc

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	line := "42 (a) b (c) R 7 40 39 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 123 45 1844\n"
	got, ok := ParseStat([]byte(line))
	if want := (Stat{PID: 42, PPID: 7, Group: 40, Session: 39, Ticks: 987654, State: 'R', Spent: 11, Reaped: 15}); !ok || got != want {
		t.Errorf("%+v %v, want %+v", got, ok, want)
	}
	self, ok := Here.Stat(os.Getpid())
	if !ok || self.PPID != os.Getppid() || self.Group != unix.Getpgrp() {
		t.Errorf("own entry %+v %v", self, ok)
	}
}

func TestBelow(t *testing.T) {
	procs := []Stat{
		{PID: 2, PPID: 1}, {PID: 3, PPID: 2}, {PID: 4, PPID: 3, State: 'Z'}, {PID: 5, PPID: 4},
		{PID: 6, PPID: 1}, {PID: 7, PPID: 6}, {PID: 8, PPID: 9}, {PID: 9, PPID: 8}, {PID: 10, PPID: 0},
	}
	pids := func(ps []Stat) map[int]bool {
		m := map[int]bool{}
		for _, p := range ps {
			m[p.PID] = true
		}
		return m
	}
	for _, tc := range []struct {
		root   int
		except map[int]bool
		want   map[int]bool
	}{
		{1, nil, map[int]bool{2: true, 3: true, 4: true, 5: true, 6: true, 7: true}},
		{1, map[int]bool{2: true}, map[int]bool{6: true, 7: true}},
		{8, nil, map[int]bool{9: true, 8: true}}, // a ring ends
	} {
		if d := cmp.Diff(tc.want, pids(Below(procs, []int{tc.root}, tc.except))); d != "" {
			t.Errorf("below %d: %s", tc.root, d)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a) b (c) R 7 40 39 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 123"))
	f.Add([]byte(") ("))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := ParseStat(b)
		if !ok {
			return
		}
		line := fmt.Sprintf("%d (x) %s %d %d %d%s %d 0 %d%s %d 0", p.PID, []byte{p.State}, p.PPID, p.Group, p.Session,
			strings.Repeat(" 0", 7), p.Spent, p.Reaped, strings.Repeat(" 0", 5), p.Ticks)
		if again, ok := ParseStat([]byte(line)); !ok || again != p {
			t.Errorf("%q gave %+v, written out %+v", b, p, again)
		}
	})
}
