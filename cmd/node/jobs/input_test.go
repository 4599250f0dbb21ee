package jobs

import (
	"context"
	"errors"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// One rank that still reads is enough; none is an error that says so.
func TestReachAll(t *testing.T) {
	job := rendezvous.Job{Plan: rendezvous.Plan{World: 3, Nodes: []rendezvous.Place{{FirstRank: 0, Ranks: 2}, {FirstRank: 2, Ranks: 1}}}}
	only := func(alive ...int) func(context.Context, rendezvous.Place, int) error {
		return func(_ context.Context, _ rendezvous.Place, rank int) error {
			for _, r := range alive {
				if r == rank {
					return nil
				}
			}
			return wire.ErrNoReader
		}
	}
	for name, tc := range map[string]struct {
		stdin launcher.Stdin
		alive []int
		want  error
	}{
		"all of them":     {launcher.StdinAll, []int{0, 1, 2}, nil},
		"one is left":     {launcher.StdinAll, []int{2}, nil},
		"none is left":    {launcher.StdinAll, nil, wire.ErrNoReader},
		"the one":         {"1", []int{1}, nil},
		"the one is gone": {"1", []int{0, 2}, wire.ErrNoReader},
		"there is none":   {"7", []int{0, 1, 2}, wire.ErrNoReader},
	} {
		if err := reachAll(t.Context(), job, tc.stdin.Has, only(tc.alive...)); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("broken")
	err := reachAll(t.Context(), job, launcher.StdinAll.Has, func(context.Context, rendezvous.Place, int) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}
