package model

import (
	"context"
	"errors"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// fitFirst refuses what does not fit before the server is asked how it spreads over
// machines, which takes a while. Errors of the launch itself are left to the launch.
func fitFirst(ctx context.Context, a *app.App, o launch.Options) error {
	o.Request.Serve.Backend = workloads.BackendNative
	if o.Request.Job.Wait {
		return nil
	}
	o.Model = modelOf(o)
	told, err := launch.Ask(ctx, a, o)
	if err != nil {
		return ctx.Err()
	}
	_, err = evaluate(o, told.ExplainResponse)
	return unlessForced(o, err)
}

// modelOf is the model to ask the machines for; empty: none.
func modelOf(o launch.Options) string {
	e, _ := engine.Named(o.Workload)
	return e.ModelToFind(o.Request)
}

// evaluation is what a serving launch means for its machines.
type evaluation struct {
	has, fetch     []string // machines that have the model, and those that fetch it
	memory, doubts []string
}

func evaluate(o launch.Options, res wire.ExplainResponse) (j evaluation, err error) {
	var rooms []engine.Room
	var copies []engine.NodeModel
	for _, n := range res.Nodes {
		copies = append(copies, engine.NodeModel{Host: n.Host, Copy: n.Model})
		if m := n.Memory; m != nil {
			rooms = append(rooms, engine.Room{Host: n.Host, Total: m.Total, Available: m.Available, GPU: m.GPU})
		}
	}
	var unfetched, unfit error
	if s := o.Request.Job.Service; s != nil && s.OnDemand != nil {
		for i := range rooms {
			rooms[i].Later = true
		}
	}
	e, _ := engine.Named(o.Workload)
	j.has, j.fetch, unfetched = e.Weights(o.Request, copies)
	j.memory, j.doubts, unfit = e.Fit(o.Request, rooms)
	if unfetched != nil && (unfit == nil ||
		!errors.Is(unfetched, engine.ErrNoRoom)) { // an absent model is reported first
		return j, unfetched
	}
	return j, unfit
}

// unlessForced drops an error that --force overrides.
func unlessForced(o launch.Options, err error) error {
	if o.Request.Job.Force && errors.Is(err, engine.ErrNoRoom) {
		return nil
	}
	return err
}

// fit says what a serving launch takes of its machines (everything, with show, otherwise
// what is missing or may be short), and why it cannot run.
func fit(a *app.App, o launch.Options, res wire.ExplainResponse, show bool) error {
	j, err := evaluate(o, res)
	passed := unlessForced(o, err)
	if o.JSON {
		return passed
	}
	if show {
		j.fetch = append(j.has, j.fetch...)
	} else {
		j.memory = nil
	}
	for _, line := range j.fetch {
		a.Say(line)
	}
	for _, line := range j.memory {
		a.Say("memory of " + line)
	}
	for _, line := range j.doubts {
		a.Say("warning: memory of " + line)
	}
	if err != nil && passed == nil {
		a.Say("warning: " + err.Error() + "; --force starts it all the same")
	}
	return passed
}
