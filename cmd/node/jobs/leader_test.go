package jobs

import (
	"slices"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
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

// A job whose cable was pulled says so, one that meets over another port does not, and of a machine that is away
// nobody knows.
func TestJobsThatLostTheFabric(t *testing.T) {
	port := func(name string, carrier bool) envgen.Inventory {
		return envgen.Inventory{Devices: []envgen.HCA{{Name: name, Netdev: "nic", LinkLayer: envgen.LayerEthernet, State: envgen.StateActive}},
			NICs: []envgen.NIC{{Name: "nic", Up: true, Carrier: &carrier}}}
	}
	by := func(slots ...string) (e envgen.Entry) {
		for _, s := range slots {
			e.Paths = append(e.Paths, envgen.Path{Slot: s})
		}
		return e
	}
	roster := rendezvous.Roster{
		{Node: rendezvous.Node{ID: "b"}, Ready: true, Inventory: port("rocep1s0f0", false)},
		{Node: rendezvous.Node{ID: "c"}, Ready: true, Inventory: port("rocep1s0f0", true)},
		{Node: rendezvous.Node{ID: "d"}, Inventory: port("rocep1s0f0", false)},
	}
	job := func(e envgen.Entry) rendezvous.JobStatus {
		return rendezvous.JobStatus{Job: rendezvous.Job{Plan: rendezvous.Plan{Nodes: []rendezvous.Place{
			{Node: "b", Host: "B", Entry: e}, {Node: "c", Host: "C", Entry: e}, {Node: "d", Host: "D", Entry: e}}}}}
	}
	all := []rendezvous.JobStatus{job(by("rocep1s0f0")), job(by())}
	markFabricLost(all, roster)
	if got := all[0].FabricLost; !slices.Equal(got, []string{"B"}) || all[1].FabricLost != nil {
		t.Errorf("%v, and of one that does not use it %v", got, all[1].FabricLost)
	}
}
