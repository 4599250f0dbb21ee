package launcher

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestExitWords(t *testing.T) {
	tests := []struct {
		exit   Exit
		status int
		text   string
	}{
		{Exit{}, 0, "exit 0"},
		{Exit{Code: 7}, 7, "exit 7"},
		{Exit{Signal: 9}, 137, "killed by SIGKILL (9)"},
		{Exit{Signal: 11, Code: 3}, 139, "killed by SIGSEGV (11)"},
		{Exit{Signal: 34}, 162, "killed by signal 34 (34)"},
		{Exit{Error: `exec "pyhton3": not found`}, 125, `exec "pyhton3": not found`},
		{Exit{Code: 143, ByUs: true}, 143, "exit 143"},
	}
	for _, tt := range tests {
		if got := tt.exit.Status(); got != tt.status {
			t.Errorf("%+v: status %d, want %d", tt.exit, got, tt.status)
		}
		if got := tt.exit.String(); got != tt.text {
			t.Errorf("%+v: %q, want %q", tt.exit, got, tt.text)
		}
		if got := tt.exit.Failed(); got != (tt.status != 0) {
			t.Errorf("%+v: failed is %v", tt.exit, got)
		}
	}
}

func TestRootCause(t *testing.T) {
	at := func(rank int, ms int, e Exit) RankExit {
		return RankExit{Rank: rank, Host: "spark1", Time: time.UnixMilli(int64(ms)), Exit: e}
	}
	fail, ended := Exit{Code: 1}, Exit{Signal: 15, ByUs: true}
	killed, lost := Exit{Signal: 9}, Exit{Code: 1, LostPeer: true}
	crash, abort := Exit{Signal: 11}, Exit{Code: 11, Cause: "MPI_Abort with code 11", Deliberate: true}
	own, noticed := Exit{Code: 9, Deliberate: true},
		Exit{Code: 15, Cause: "MPI_Abort with code 15", Deliberate: true, LostPeer: true}
	var crashes []RankExit
	for rank := range 63 {
		crashes = append(crashes, at(rank, 10+rank, crash))
	}
	tests := map[string]struct {
		exits []RankExit
		want  int // -1 = none
	}{
		"nothing has ended":          {nil, -1},
		"all is well":                {[]RankExit{at(0, 1, Exit{}), at(1, 2, Exit{})}, -1},
		"the earliest, not the last": {[]RankExit{at(2, 5, fail), at(0, 9, fail), at(1, 3, fail)}, 1},
		"ended by us is no cause":    {[]RankExit{at(0, 1, ended), at(1, 2, fail)}, 1},
		"only ended by us":           {[]RankExit{at(0, 1, ended), at(1, 2, ended)}, -1},
		"a success comes first":      {[]RankExit{at(0, 1, Exit{}), at(1, 2, fail)}, 1},
		"never ran": {[]RankExit{at(0, 2, fail),
			at(3, 1, Exit{Error: "exec: not found"})}, 3},
		"at once: the lowest rank": {[]RankExit{at(2, 1, fail), at(1, 1, fail)}, 1},
		"seen late, and killed": {[]RankExit{at(0, 20, fail), at(1, 25, killed),
			at(2, 22, Exit{Code: 2})}, 1},
		"seen late, and unlike": {[]RankExit{at(0, 20, fail), at(1, 25, Exit{Code: 7}),
			at(2, 22, fail)}, 1},
		"unlike, but later": {[]RankExit{at(0, 20, fail), at(1, 190, Exit{Code: 7}),
			at(2, 22, fail)}, 0},
		"killed, but later":      {[]RankExit{at(0, 20, fail), at(1, 190, killed)}, 0},
		"two cannot outvote one": {[]RankExit{at(0, 20, fail), at(1, 25, Exit{Code: 7})}, 0},
		"each one is unlike": {[]RankExit{at(0, 20, fail), at(1, 25, Exit{Code: 7}),
			at(2, 22, Exit{Code: 2})}, 0},
		"an abort may be a notice": {[]RankExit{at(0, 20, Exit{Code: 7}),
			at(1, 25, Exit{Signal: 6})}, 0},
		"only lost peers": {[]RankExit{at(0, 20, lost), at(1, 10, lost)}, 1},
		"a crash seen before the abort that it is of": {[]RankExit{at(6, 400, abort), at(2, 10, crash),
			at(5, 12, crash)}, 6},
		"one of 64": {append(crashes, at(63, 900, abort)), 63},
		"the first of several aborts": {[]RankExit{at(2, 10, crash), at(6, 40, abort),
			at(3, 30, abort), at(1, 50, abort)}, 3},
		"an abort without a crash, seen late":        {[]RankExit{at(2, 20, fail), at(6, 60, abort)}, 6},
		"a crash seen before the exit that it is of": {[]RankExit{at(6, 40, own), at(2, 10, crash)}, 6},
		"a rank that dies, and one that goes on":     {[]RankExit{at(6, 5000, abort), at(2, 10, crash)}, 2},
		"a crash that others abort over": {[]RankExit{at(6, 40, noticed), at(3, 45, noticed),
			at(2, 60, crash)}, 2},
		"no program kills its neighbour by leaving": {[]RankExit{at(6, 40, abort), at(2, 10, killed)}, 2},
		"nor does it have the node end one": {[]RankExit{at(6, 40, abort),
			at(2, 10, Exit{Signal: 9, Cause: "memory"})}, 2},
		"a crash of a program that has left its own way": {[]RankExit{at(6, 40, Exit{Code: 9}), at(2, 10, crash)}, 2},
		"a cause behind lost peers":                      {[]RankExit{at(0, 20, lost), at(1, 10, lost), at(2, 900, fail)}, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := RootCause(tt.exits)
			switch {
			case tt.want == -1 && got != nil:
				t.Errorf("rank %d is blamed", got.Rank)
			case tt.want != -1 && (got == nil || got.Rank != tt.want):
				t.Errorf("got %+v, want rank %d", got, tt.want)
			}
		})
	}
}

func TestRootCauseIsTheSameForEveryObserver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exits := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) RankExit {
			return RankExit{
				Rank: rapid.IntRange(0, 20).Draw(t, "rank"),
				Time: time.UnixMilli(rapid.Int64Range(0, 3).Draw(t, "ms")),
				Exit: Exit{
					Code: rapid.IntRange(0, 2).Draw(t, "code"), Signal: rapid.SampledFrom([]int{0, 0, 9, 11}).Draw(t, "signal"),
					ByUs: rapid.Bool().Draw(t, "byUs"), Deliberate: rapid.Bool().Draw(t, "deliberate"),
					LostPeer: rapid.Bool().Draw(t, "lost"),
				},
			}
		}), 0, 8, func(e RankExit) int { return e.Rank }).Draw(t, "exits")
		want := RootCause(exits)
		rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).Shuffle(len(exits),
			func(i, j int) { exits[i], exits[j] = exits[j], exits[i] })
		if d := cmp.Diff(want, RootCause(exits)); d != "" {
			t.Fatal(d)
		}
	})
}

func TestRankNeverGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := RankStatus{Rank: 1}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			before := r
			to := RankStatus{
				Rank:  1,
				State: RankState(rapid.IntRange(-1, 4).Draw(t, "state")),
				PID:   rapid.IntRange(1, 9).Draw(t, "pid"),
			}
			moved := r.Advance(to)
			switch {
			case r.State < before.State:
				t.Fatalf("went back from %s to %s", before.State, r.State)
			case moved != (to.State > before.State):
				t.Fatalf("%s to %s: moved is %v", before.State, to.State, moved)
			case moved && r != to, !moved && r != before:
				t.Fatalf("%+v told %+v became %+v", before, to, r)
			}
		}
	})
}

func TestEndedStaysEnded(t *testing.T) {
	r := RankStatus{State: RankEnded, Exit: &Exit{Code: 7}}
	if r.Advance(RankStatus{State: RankEnded, Exit: &Exit{}}) || r.Exit.Code != 7 {
		t.Errorf("a second exit replaced the first: %+v", r)
	}
}

// A newer peer may send a number that this version has no word for; it ends up
// in a log line, and must not end the agent.
func TestNumbersWithoutAWord(t *testing.T) {
	for _, text := range []string{Phase(7).String(), Phase(-1).String(), RankState(9).String()} {
		if !strings.HasPrefix(text, "unknown (") {
			t.Errorf("got %q", text)
		}
	}
	if PhaseEnded.String() != "ended" || RankRunning.String() != "running" || PhaseNone.String() != "none" {
		t.Error("the known ones lost their words")
	}
}
