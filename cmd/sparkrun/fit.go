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
	res, err := b.plan(ctx, spec)
	if err != nil {
		return err
	}
	return a.fit(o, res, false)
}

// fit says what a model takes of each machine, where that was asked for, and why it cannot be.
func (a *app) fit(o launchOptions, res wire.ExplainResponse, show bool) error {
	if !workloads.Serves(o.workload) {
		return nil
	}
	var rooms []workloads.Room
	for _, n := range res.Nodes {
		if m := n.Memory; m != nil {
			rooms = append(rooms, workloads.Room{Host: n.Host, Total: m.Total, Available: m.Available, GPU: m.GPU})
		}
	}
	lines, err := workloads.Fit(o.workload, o.request, rooms)
	if show && !o.json {
		for _, line := range lines {
			a.remark("memory of " + line)
		}
	}
	return err
}
