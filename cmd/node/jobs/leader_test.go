package jobs

import (
	"slices"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// Of a job's machines those are told that management does not reach, and whose URL answers nobody.
func TestJobsOverFabric(t *testing.T) {
	plan := rendezvous.Plan{Nodes: []rendezvous.Place{{Host: "b"}, {Host: "c"}}}
	ended := rendezvous.Job{Plan: plan, Outcome: &rendezvous.Outcome{}}
	all := []rendezvous.JobStatus{{Job: rendezvous.Job{Plan: plan}}, {Job: ended}}
	markFabricOnly(all, []string{"b"})
	if got := all[0].FabricOnly; !slices.Equal(got, []string{"b"}) || all[1].FabricOnly != nil {
		t.Errorf("%v, and of one that has ended %v", got, all[1].FabricOnly)
	}
}
