package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher/modeldir"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// settleModel finds out what a launch must know of its model: from this machine's copy,
// or else from the machines that would serve it. A path is made absolute: it is the same
// on every machine.
func (o *serveOptions) settleModel(ctx context.Context, a *app.App) error {
	e, _ := engine.Named(o.Workload)
	if e.Model == engine.OwnStore { // the engine checks it itself
		return nil
	}
	s := &o.Request.Serve
	away, err := a.Away()
	if err != nil && !o.Standalone {
		return err
	}
	if strings.HasPrefix(s.Model, ".") && away == nil {
		cwd, err := a.Getwd()
		if err != nil {
			return fmt.Errorf("find the working directory: %w; name the model by its full path", err)
		}
		s.Model = filepath.Join(cwd, s.Model)
	}
	if s.Model == "" || s.Config != nil || e.Model == engine.File { // such a file has no config.json
		return nil
	}
	dir := cmp.Or(s.Snapshot, e.ModelToFind(o.Request), s.Model)
	if !filepath.IsAbs(dir) {
		dir = snapshot(a, dir)
	}
	if dir != "" && away == nil {
		m, err := readModel(dir)
		if err == nil {
			s.Config = &m
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look at model %s: %w", s.Model, err)
		}
	}
	if model := e.ModelToFind(o.Request); model != "" {
		o.Told, err = askMachines(ctx, a, o.Options, model)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // errors of the launch itself are left to the launch
		default:
			if s.Config, err = modelThere(o.Told.ExplainResponse); err != nil {
				return fmt.Errorf("look at model %s: %w", s.Model, err)
			}
		}
	}
	const unchecked = "heads, size and memory are unchecked"
	switch {
	case s.Config != nil:
	case o.unfetched != "": // one line for both
		o.unfetched += "; " + unchecked
	default:
		a.Say("no config.json of " + s.Model + " was found: " + unchecked)
	}
	return nil
}

// settleMemory finds out how much memory the machines have, of which --memory gives the server a part.
func (o *serveOptions) settleMemory(ctx context.Context, a *app.App) error {
	if o.Request.Job.Memory == nil {
		return nil
	}
	told := o.Told
	if told == nil {
		var err error
		if told, err = askMachines(ctx, a, o.Options, modelOf(o.Options)); err != nil {
			return ctx.Err() // errors of the launch itself are left to the launch
		}
		o.Told = told
	}
	for _, n := range told.Nodes {
		if n.Memory != nil {
			o.Request.Serve.Total = max(o.Request.Serve.Total, n.Memory.Total)
		}
	}
	return nil
}

// askMachines asks the machines that a launch would get about its model.
func askMachines(ctx context.Context, a *app.App, o launch.Options, model string) (*launch.Answer, error) {
	o.Model = model
	if o.Request.Serve.Backend == "auto" {
		o.Request.Serve.Backend = ""
	}
	if o.Request.Job.Wait { // a queued job may get machines that are taken now
		o.Request.Job.Wait, o.Request.Job.Share = false, o.Request.Job.Memory == nil
	}
	return launch.Ask(ctx, a, o)
}

// modelThere is the model as the machine with the most of it has it; nil: no machine has
// it.
func modelThere(res wire.ExplainResponse) (*workloads.Model, error) {
	var best *workloads.Model // a machine with only the beginning does not know the size
	for _, n := range res.Nodes {
		if n.Model == nil || len(n.Model.Config) == 0 {
			continue
		}
		m, err := workloads.ParseModel(n.Model.Config)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", n.Host, n.Model.Dir, err)
		}
		if m.Bytes = max(n.Model.Whole, n.Model.Bytes); best == nil || m.Bytes > best.Bytes {
			best = &m
		}
	}
	return best, nil
}

// readModel reads a folder with a model.
func readModel(dir string) (workloads.Model, error) {
	c, err := modeldir.Look(dir)
	if err != nil {
		return workloads.Model{}, err
	}
	m, err := workloads.ParseModel(c.Config)
	m.Bytes = max(c.Whole, c.Bytes)
	return m, err
}

// snapshot is a model's folder in the caller's Hugging Face cache; empty: it is not
// there.
func snapshot(a *app.App, model string) string {
	cache := modeldir.Cache(func(name string) string { v, _ := a.Getenv(name); return v })
	if !filepath.IsAbs(cache) {
		return ""
	}
	return modeldir.Snapshot(cache, model)
}
