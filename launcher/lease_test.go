package launcher

import (
	"strings"
	"testing"
	"time"
)

func TestLeaseIsForAnotherAttempt(t *testing.T) {
	good := Spec{
		ID: "jjjj", Nodes: 2, MaxRestarts: 1, Spare: 1, OnPartition: EndOnPartition,
		Stages: []Stage{{Name: "main", Main: true, RanksPerNode: 1, Argv: Lits("true"), Workdir: "/"}},
	}
	for name, tt := range map[string]struct {
		change func(*Spec)
		err    string // empty: none
	}{
		"spare":        {func(*Spec) {}, ""},
		"min and max":  {func(s *Spec) { s.Spare, s.MinNodes = 0, 1 }, ""},
		"no restarts":  {func(s *Spec) { s.Spare, s.MinNodes, s.MaxRestarts = 0, 1, 0 }, "add --max-restarts"},
		"nowhere":      {func(s *Spec) { s.Spare = 0 }, "add --spare"},
		"min is max":   {func(s *Spec) { s.Spare, s.MinNodes = 0, 2 }, "add --spare"},
		"never":        {func(s *Spec) { s.NodeTimeout = Never }, "give one of 5s or more"},
		"too short":    {func(s *Spec) { s.NodeTimeout = time.Second }, "want 5s or more"},
		"unknown word": {func(s *Spec) { s.OnPartition = "die" }, "want continue or end"},
	} {
		t.Run(name, func(t *testing.T) {
			s := good
			tt.change(&s)
			err := s.Validate()
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
	if d := good.Lease(); d != DefaultNodeTimeout {
		t.Errorf("the lease is %s", d)
	}
	if d := good.LeaseOver(); d <= DefaultNodeTimeout+DefaultGrace+5*time.Second {
		t.Errorf("it is over after %s", d)
	}
	good.OnPartition = ContinueOnPartition
	if good.Lease() != 0 {
		t.Error("a lease without --on-partition end")
	}
}

// A rank that its node ended has not completed, though it saved what it had and
// exited with 0.
func TestEndedByItsNodeIsNoSuccess(t *testing.T) {
	if e := (Exit{Cause: "its lease ran out"}); !e.Failed() || e.Status() != ExitOwnFailure {
		t.Errorf("status %d", e.Status())
	}
}
