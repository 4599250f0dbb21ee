package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/pull"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// tokenName is the secret that is also the Hub's token.
const tokenName = "HF_TOKEN"

// fetchFirst has the machines that a launch would get fetch its model into their own caches,
// once from outside, and has the engine take it from there. Where that cannot be, it says
// why, and leaves the model to the server.
func (o *serveOptions) fetchFirst(ctx context.Context, a *app.App) error {
	e, _ := engine.Named(o.Workload)
	model := e.ModelToFind(o.Request)
	if o.noFetch || o.Standalone || model == "" || path.IsAbs(model) || o.ownCache() {
		return nil
	}
	told, err := askMachines(ctx, a, o.Options, model)
	if err != nil || len(told.Nodes) == 0 { // errors of the launch itself are left to the launch
		return ctx.Err()
	}
	o.Told = told
	if o.refused(told.ExplainResponse) { // as the launch will say: nothing is fetched for it
		return nil
	}
	if !slices.ContainsFunc(told.Nodes, func(n wire.NodePlan) bool { return !hasAll(n.Model) }) {
		return nil // in their user's caches
	}
	b := a.Dial()
	defer b.Close()
	name, revision, _ := strings.Cut(model, "@")
	ask := wire.ModelPullRequest{ModelRepo: wire.ModelRepo{Name: name}, Revision: revision, ID: launcher.NewJobID(),
		User: o.Request.Job.User}
	kept, err := wire.Models.Call(ctx, b, wire.ModelsRequest{ModelRepo: ask.ModelRepo, User: ask.User})
	if err != nil {
		a.Say(fmt.Sprintf("not fetched first: %v; each machine's server looks for it by itself", err))
		return ctx.Err()
	}
	hosts := o.mayGet(told.Nodes, kept.Nodes)
	dir := snapshotOn(kept.Nodes, hosts, cmp.Or(revision, "main"))
	switch {
	case dir != "":
	case o.DryRun:
		a.Say(fmt.Sprintf("a launch fetches what is missing of %s first, to %s (--no-fetch leaves it to the server)", model,
			app.Hosts(hosts)))
		return nil
	default:
		ask.On = hosts
		ask.Brief = slices.ContainsFunc(told.Nodes, func(n wire.NodePlan) bool { return hasAll(n.Model) })
		secret := slices.IndexFunc(o.Secrets, func(s string) bool {
			name, _, _ := strings.Cut(s, "=")
			return name == tokenName
		})
		if secret >= 0 {
			if ask.Token, err = sealToken(ctx, a, b, ask.ID, o.Secrets[secret]); err != nil {
				return err
			}
		}
		v := newView(a, ask.ModelRepo, ask.Revision, pull.Targets(hosts, 0, false), a.ErrTTY && !o.JSON)
		tell := v.Take
		if o.JSON && !o.Detach { // which prints the job's id alone
			tell = v.Lines(a.Out)
		}
		switch err := v.Follow(ctx, callOf(b, ask), tell); {
		case err != nil && v.Plan == nil && ctx.Err() == nil:
			o.unfetched = fmt.Sprintf("not fetched first: %v; each machine's server looks for it by itself", err)
			return nil // settle says it, in one line with what is unchecked
		case err != nil:
			return err
		}
		if err := v.Missing(); err != nil {
			return err
		}
		if dirs := v.Dirs(); len(dirs) == 1 {
			dir = dirs[0]
		} else {
			return fmt.Errorf("fetch %s: %w: the machines keep it in different folders: %s", model, launcher.ErrInvalid,
				strings.Join(dirs, ", "))
		}
	}
	s := &o.Request.Serve
	s.Snapshot, s.Cache = dir, path.Dir(path.Dir(path.Dir(dir))) // CACHE/models--ORG--NAME/snapshots/COMMIT
	s.Online = e.MayFetch(o.Request)
	o.Told = nil // they have it now
	if job := &o.Request.Job; len(job.On) == 0 && !job.Wait && job.Spare == 0 {
		job.On = hosts
	}
	return nil
}

// refused tells whether the machines' answer means that the launch will be refused.
func (o *serveOptions) refused(res wire.ExplainResponse) bool {
	return slices.ContainsFunc(res.Nodes, func(n wire.NodePlan) bool { return n.Error != "" }) ||
		!o.Request.Job.Force && rendezvous.Unfit(res.Findings) != nil
}

// ownCache tells whether the user has chosen where models lie.
func (o *serveOptions) ownCache() bool {
	return o.Container.NamesCache() || slices.ContainsFunc(slices.Concat(o.Request.Env, o.Request.Serve.Env),
		func(text string) bool {
			name, _, _ := strings.Cut(text, "=")
			return name == "HF_HOME" || name == "HF_HUB_CACHE" || name == "HF_HUB_OFFLINE"
		})
}

// hasAll tells whether a machine's user has a model whole.
func hasAll(c *launcher.ModelCopy) bool { return c != nil && c.Found && c.Lacks == 0 && c.Bytes > 0 }

// mayGet are the hosts on which the job may run: those of the plan, all where it is queued or has
// machines in reserve.
func (o *serveOptions) mayGet(plan []wire.NodePlan, all []wire.NodeModels) (hosts []string) {
	job := o.Request.Job
	switch {
	case len(job.On) > 0:
		return slices.Clone(job.On)
	case job.Wait || job.Spare > 0:
		for _, n := range all {
			if n.Error == "" && !slices.Contains(job.Exclude, n.Host) {
				hosts = append(hosts, n.Host)
			}
		}
	default:
		for _, n := range plan {
			hosts = append(hosts, n.Host)
		}
	}
	return hosts
}

// snapshotOn is the folder of the commit that a revision stands for, where all of these hosts have the same one whole,
// and the user may read it; empty: they have not.
func snapshotOn(nodes []wire.NodeModels, hosts []string, revision string) (dir string) {
	for _, host := range hosts {
		i := slices.IndexFunc(nodes, func(n wire.NodeModels) bool { return n.Host == host })
		if i < 0 || len(nodes[i].Held) != 1 || nodes[i].Held[0].Denied {
			return ""
		}
		h := nodes[i].Held[0]
		at := slices.IndexFunc(h.Commits, func(c modelcache.Commit) bool {
			return c.Whole() && !c.Partial && c.Named(revision)
		})
		if at < 0 {
			return ""
		}
		here := modelcache.SnapshotDir(nodes[i].Dir, h.Repo, h.Commits[at].Commit)
		if dir != "" && dir != here {
			return ""
		}
		dir = here
	}
	return dir
}

// sealToken has the agent seal the Hub's token for a pull.
func sealToken(ctx context.Context, a *app.App, b *wire.Client, id launcher.JobID,
	text string) (*launcher.SealedSecret, error) {
	secret, err := launch.ReadSecret(text, a.Getenv)
	if err != nil {
		return nil, err
	}
	secret.Value = []byte(strings.TrimSpace(string(secret.Value))) // a file ends with a newline
	res, err := wire.Seal.Call(ctx, b, wire.SealRequest{Job: id, Secrets: []wire.Plain{secret}})
	if err == nil && len(res.Secrets) != 1 {
		err = errors.New("no answer")
	}
	if err != nil {
		return nil, fmt.Errorf("seal the token: %w", err)
	}
	return &res.Secrets[0], nil
}
