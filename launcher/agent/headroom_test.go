package agent

import (
	"strings"
	"testing"
	"time"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// trace is what a machine goes through: in each part memory and the counters change evenly.
type trace []struct {
	for_    time.Duration
	to      float64 // GiB available at the part's end
	stalled float64 // part of the time
	swapIn  float64 // MiB a second
}

// run plays a trace on a machine with so much memory, and returns the first verdict of each kind that was not calm.
func (tr trace) run(total int64, begin float64) (warned, ended string, left float64) {
	h := headroom{floor: total / 40}
	s := sample{at: time.Unix(0, 0), total: total, available: int64(begin * gib)}
	h.judge(s)
	for _, p := range tr {
		from, n := float64(s.available), int(p.for_/guardEvery)
		for i := range n {
			s.at = s.at.Add(guardEvery)
			s.available = int64(from + (p.to*gib-from)*float64(i+1)/float64(n))
			s.stalled += time.Duration(p.stalled * float64(guardEvery))
			s.swapped += int64(p.swapIn * mib * guardEvery.Seconds())
			switch v, text := h.judge(s); {
			case v == ends:
				return warned, text, float64(s.available) / gib
			case v == warns && warned == "":
				warned = text
			}
		}
	}
	return warned, "", float64(s.available) / gib
}

// Traces as owners of GB10s have told them (see headroom.go), and what a healthy server does.
func TestHeadroom(t *testing.T) {
	const spark = 1217 * gib / 10
	for name, tc := range map[string]struct {
		begin float64
		trace trace
		ends  string  // in the text; empty: it must not be ended
		least float64 // GiB that must be left then
		warns bool
	}{
		"a slow leak": {begin: 40, trace: trace{{for_: 20 * time.Minute, to: 1}},
			ends: "33.3 MiB a second", least: 3},
		"a step below the floor": {begin: 5, trace: trace{{for_: 5 * time.Second, to: 5}, {for_: guardEvery, to: 2.5}},
			ends: "less than the --memory-floor of 3 GiB", least: 2.5},
		"29 GiB go down to 2.5 in 9 s": {begin: 29, trace: trace{{for_: 9 * time.Second, to: 2.5}},
			ends: "fell by 2.9 GiB a second", least: 8},
		"22 GiB collapse within 2 s": {begin: 22, trace: trace{{for_: 2 * time.Second, to: 0}}, ends: "fell by", least: 3},
		"the machine hangs at 7 GiB": {begin: 90, trace: trace{{for_: 30 * time.Second, to: 20}, {for_: 5 * time.Second, to: 0}},
			ends: "fell by 4 GiB a second", least: 7},
		"a model that is read at 20 GiB/s comes to rest at 30": {begin: 110,
			trace: trace{{for_: 4 * time.Second, to: 30}, {for_: time.Minute, to: 30}}},
		"a model that is read at 0.75 GiB/s comes to rest at 6": {begin: 110,
			trace: trace{{for_: 138500 * time.Millisecond, to: 6.2}, {for_: time.Minute, to: 6.2}}, warns: true},
		"a KV cache of 40 GiB is taken at once, between two samples": {begin: 50,
			trace: trace{{for_: 5 * time.Second, to: 50}, {for_: guardEvery, to: 25}, {for_: guardEvery, to: 8},
				{for_: time.Minute, to: 7}}, warns: true},
		"a server with 7 GiB left reads large files": {begin: 7,
			trace: trace{{for_: time.Minute, to: 6.9, stalled: 0.4}, {for_: time.Minute, to: 7, stalled: 0.3}}, warns: true},
		"a server with 3.2 GiB left and cold pages in swap": {begin: 3.3,
			trace: trace{{for_: 10 * time.Minute, to: 3.22, swapIn: 2}}, warns: true},
		"page cache fills": {begin: 60, trace: trace{{for_: time.Minute, to: 59.8, stalled: 0.5}}},
		"swap is thrashed above the floor": {begin: 6,
			trace: trace{{for_: 10 * time.Second, to: 5.5, stalled: 0.5, swapIn: 90}},
			ends:  "all tasks waited for memory for 50 % of the time, and 90 MiB a second came back from swap", least: 5},
		"it falls, and all tasks wait": {begin: 12, trace: trace{{for_: 20 * time.Second, to: 2, stalled: 0.35}},
			ends: "all tasks waited for memory for 35 % of the time, and it fell by 512 MiB a second", least: 7},
		"the same with much left": {begin: 80, trace: trace{{for_: 10 * time.Second, to: 60, stalled: 0.5, swapIn: 90}}},
		"all tasks wait for a moment": {begin: 5,
			trace: trace{{for_: 5 * time.Second, to: 5}, {for_: guardEvery, to: 4.5, stalled: 1, swapIn: 200},
				{for_: time.Minute, to: 5}}, warns: true},
	} {
		warned, ended, left := tc.trace.run(spark, tc.begin)
		if (ended != "") != (tc.ends != "") || !strings.Contains(ended, tc.ends) || left < tc.least {
			t.Errorf("%s: with %.1f GiB left: %q, want %q with %.1f", name, left, ended, tc.ends, tc.least)
		}
		if (warned != "") != tc.warns && tc.ends == "" {
			t.Errorf("%s: warned %q", name, warned)
		}
	}
}
