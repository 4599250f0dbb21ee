package main

import (
	"context"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

// fitBefore asks the machines that a job would get for their memory, and refuses one that has no
// room there. One that stands in line may find other machines, and other memory.
func (a *app) fitBefore(ctx context.Context, b *backend, spec launcher.Spec, o launchOptions) error {
	if !workloads.Serves(o.workload) || spec.Wait {
		return nil
	}
	res, err := b.planOf(ctx, wire.LaunchRequest{Spec: spec, Model: modelOf(o)})
	if err != nil {
		return err
	}
	return a.fit(o, res, false)
}

// modelOf is the model that machines are asked for; empty: none.
func modelOf(o launchOptions) string {
	if !workloads.Serves(o.workload) || o.workload == workloads.EXO { // see settleModel
		return ""
	}
	return workloads.ModelToFind(o.request)
}

// fit says which machines fetch the model, and where that was asked for what it takes of each; and
// why it cannot be.
func (a *app) fit(o launchOptions, res wire.ExplainResponse, show bool) error {
	if !workloads.Serves(o.workload) {
		return nil
	}
	var rooms []workloads.Room
	var copies []workloads.NodeModel
	for _, n := range res.Nodes {
		copies = append(copies, workloads.NodeModel{Host: n.Host, Copy: n.Model})
		if m := n.Memory; m != nil {
			rooms = append(rooms, workloads.Room{Host: n.Host, Total: m.Total, Available: m.Available, GPU: m.GPU})
		}
	}
	has, fetch, unfetched := workloads.Weights(o.request, copies)
	if show {
		fetch = append(has, fetch...)
	}
	if !o.json {
		for _, line := range fetch {
			a.say(line)
		}
	}
	lines, err := workloads.Fit(o.workload, o.request, rooms)
	if show && !o.json {
		for _, line := range lines {
			a.say("memory of " + line)
		}
	}
	if unfetched != nil {
		return unfetched
	}
	return err
}
