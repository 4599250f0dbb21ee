package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/launcher/policy"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// containers is what the agent needs for ranks in containers; nil where this node has none.
func (n *node) containers() *agent.Containers {
	program, err := os.Executable()
	if err != nil || n.cfg.Paths.Engine == "" {
		return nil
	}
	return &agent.Containers{Socket: n.cfg.Paths.Engine, Cluster: n.m.Cluster, Program: program, Allow: n.allowsBox, Over: n.areOver}
}

// allowsBox asks this node's policy about what a user wants of its engine.
func (n *node) allowsBox(ctx context.Context, w agent.BoxWish) error {
	p, err := policy.Read(n.cfg.Paths.Policy)
	if err != nil {
		return err
	}
	var groups []string
	if p.NeedsGroups() {
		if groups, err = groupsOf(ctx, w.User); err != nil {
			return err
		}
	}
	if err := p.Containers(n.m.Host, w.User, groups); err != nil {
		return err
	}
	if err := p.Image(n.m.Host, w.Image); err != nil {
		return err
	}
	for _, m := range w.Mounts {
		if err := p.Mount(n.m.Host, m); err != nil {
			return err
		}
	}
	if len(w.Elevates) == 0 {
		return nil
	}
	return p.Elevate(n.m.Host, w.User, groups, w.Elevates)
}

// areOver tells of which tries the end is recorded, as a leader knows that has just proven to be
// one. A job that the record does not know may have been lost in a take-over, and run: it is left out.
func (n *node) areOver(ctx context.Context, keys []launcher.Key) (map[launcher.Key]bool, error) {
	res, err := n.jobs(ctx, wire.Caller{User: &wire.User{Name: "root"}}, wire.Empty{})
	if err == nil && res.Problem != "" {
		err = errors.New(res.Problem)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the record whether jobs have ended: %w", err)
	}
	out := map[launcher.Key]bool{}
	for _, j := range res.Jobs {
		for _, k := range keys {
			if j.Spec.ID == k.Job {
				out[k] = over(j.Job, k)
			}
		}
	}
	return out, nil
}

// over tells it of one job: a later generation begins when the one before is proven gone.
func over(j rendezvous.Job, k launcher.Key) bool {
	return j.Plan.Generation > k.Generation || j.Plan.Generation == k.Generation && j.Outcome != nil
}

// standaloneContainers are this user's: whom the engine lets in is root by it anyway.
func standaloneContainers() *agent.Containers {
	program, err := os.Executable()
	if err != nil {
		return nil
	}
	return &agent.Containers{Socket: DefaultPaths().Engine, Cluster: "standalone", Program: program}
}
