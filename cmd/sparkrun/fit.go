package main

import (
	"context"
	"errors"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// fitFirst refuses what has no place before a server is asked how it spreads, which takes a while. What is
// wrong with the launch itself is for the launch to say.
func (a *app) fitFirst(ctx context.Context, o launchOptions) error {
	o.request.Serve.Backend = workloads.BackendNative
	spec, err := a.spec(o)
	if err != nil || spec.Wait {
		return nil //nolint:nilerr // see above
	}
	b, err := a.open(o.standalone)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	defer b.close()
	if b.explain == nil {
		return nil
	}
	spec.Force = true // a question, which takes nothing
	res, err := b.planOf(ctx, wire.LaunchRequest{Spec: spec, Model: modelOf(o)})
	if err != nil {
		return ctx.Err()
	}
	_, err = o.judge(res)
	return o.unlessForced(err)
}

// modelOf is the model that machines are asked for; empty: none.
func modelOf(o launchOptions) string {
	e, _ := engine.Named(o.workload)
	return e.ModelToFind(o.request)
}

// judgement is what a launch that serves comes to on its machines.
type judgement struct {
	has, fetch     []string // which machines have the model, and which fetch it
	memory, doubts []string
}

func (o launchOptions) judge(res wire.ExplainResponse) (j judgement, err error) {
	var rooms []engine.Room
	var copies []engine.NodeModel
	for _, n := range res.Nodes {
		copies = append(copies, engine.NodeModel{Host: n.Host, Copy: n.Model})
		if m := n.Memory; m != nil {
			rooms = append(rooms, engine.Room{Host: n.Host, Total: m.Total, Available: m.Available, GPU: m.GPU})
		}
	}
	var unfetched, unfit error
	e, _ := engine.Named(o.workload)
	j.has, j.fetch, unfetched = e.Weights(o.request, copies)
	j.memory, j.doubts, unfit = e.Fit(o.request, rooms)
	if unfetched != nil && (unfit == nil || !errors.Is(unfetched, engine.ErrNoRoom)) { // what is not there at all comes first
		return j, unfetched
	}
	return j, unfit
}

// unlessForced lets pass what --force starts all the same.
func (o launchOptions) unlessForced(err error) error {
	if o.request.Job.Force && errors.Is(err, engine.ErrNoRoom) {
		return nil
	}
	return err
}

// fit says what a launch that serves takes of its machines: all of it with show, else what is
// missing and what may be short; and why it cannot be.
func (a *app) fit(o launchOptions, res wire.ExplainResponse, show bool) error {
	j, err := o.judge(res)
	passed := o.unlessForced(err)
	if o.json {
		return passed
	}
	if show {
		j.fetch = append(j.has, j.fetch...)
	} else {
		j.memory = nil
	}
	for _, line := range j.fetch {
		a.say(line)
	}
	for _, line := range j.memory {
		a.say("memory of " + line)
	}
	for _, line := range j.doubts {
		a.say("warning: memory of " + line)
	}
	if err != nil && passed == nil {
		a.say("warning: " + err.Error() + "; --force starts it all the same")
	}
	return passed
}
