package rendezvous

import (
	"errors"
	"testing"
)

func TestTogether(t *testing.T) {
	for _, tt := range []struct {
		ours, theirs int
		together     bool
	}{
		{4, 4, true}, {4, 3, true}, {4, 5, true}, {4, 2, false}, {4, 6, false},
		{1, 0, true}, // a build that does not say
		{2, 0, false},
	} {
		if err := Together(tt.ours, tt.theirs); (err == nil) != tt.together || err != nil && !errors.Is(err, ErrApart) {
			t.Errorf("%d and %d: %v", tt.ours, tt.theirs, err)
		}
	}
}

// A kind that this build writes and nobody of this protocol knows would stop them all.
func TestSince(t *testing.T) {
	for k, p := range since {
		if p < 1 || p > Protocol {
			t.Errorf("%s has come with protocol %d, this is %d", k, p, Protocol)
		}
	}
	if KindPlan.Since() != 0 || KindDeath.Since() != 1 {
		t.Errorf("%s since %d, %s since %d", KindPlan, KindPlan.Since(), KindDeath, KindDeath.Since())
	}
}
