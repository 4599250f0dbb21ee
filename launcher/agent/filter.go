package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

func filterPath(dir string) string { return filepath.Join(dir, "filter.json") }

// shield keeps strangers from the ports of an attempt's ranks, before a rank is
// there. What it could not do is no reason to refuse, and is told.
func (a *Agent) shield(ctx context.Context, as launcher.Assignment, dir string, c *shim.Client,
	at ports) (warnings []string) {
	if a.cfg.Filter == nil {
		return nil
	}
	err := a.filter(ctx, as, dir, c, at)
	if err == nil {
		return nil
	}
	a.cfg.Logger.Warn("set up packet filter", "job", as.Job, "error", err)
	return []string{fmt.Sprintf("other hosts may reach its ranks' ports: %v", err)}
}

func (a *Agent) filter(ctx context.Context, as launcher.Assignment, dir string, c *shim.Client, at ports) error {
	if len(as.Members) == 0 {
		return errors.New("the leader's sparkrun does not tell the members' addresses: upgrade it")
	}
	f := launcher.Filter{Members: as.Members, Nodes: as.Nodes,
		Published: slices.Concat(as.Spec.Publish, servicePublished(as, at)), Ports: at.all()}
	var err error
	if f.Cgroup, err = c.Cgroup(ctx); err != nil {
		return err
	}
	if c, err := container.ReadPrepared(dir); err == nil && c != nil {
		f.Containers = c.Group
	}
	a.filterMu.Lock()
	defer a.filterMu.Unlock()
	f, _ = f.Readdress(a.addrs)                           // since it was planned
	if err := writeJSON(filterPath(dir), f); err != nil { // else the next incarnation would lift it
		return err
	}
	a.filters[as.Key] = f
	if err := a.cfg.Filter(maps.Clone(a.filters)); err != nil {
		return err
	}
	if f.Cgroup == "" {
		return errors.New("this machine has no cgroup v2, so that of all their ports only the rendezvous port is " +
			"guarded")
	}
	return nil
}

// unshield lifts the filter of an attempt of which no process is left.
func (a *Agent) unshield(k launcher.Key) {
	a.filterMu.Lock()
	defer a.filterMu.Unlock()
	if _, had := a.filters[k]; !had {
		return
	}
	delete(a.filters, k)
	a.applyFilters()
}

// refilter takes up what a previous incarnation has set up for an attempt.
func (a *Agent) refilter(k launcher.Key) error {
	var f launcher.Filter
	err := readJSON(filterPath(a.attemptDir(k)), &f)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // an older agent's, or one that was told of none
	}
	if err != nil {
		return err
	}
	a.filterMu.Lock()
	defer a.filterMu.Unlock()
	a.filters[k] = f
	return nil
}

// Readdress tells the addresses that members have now: what a job's node has got since the plan is let in to the job's
// ranks, in this incarnation and the next. Members that addrs lacks are taken to be where they were.
func (a *Agent) Readdress(addrs map[launcher.NodeID][]netip.Addr) {
	a.filterMu.Lock()
	defer a.filterMu.Unlock()
	a.addrs = maps.Clone(addrs)
	moved := false
	for k, f := range a.filters {
		now, changed := f.Readdress(addrs)
		if !changed {
			continue
		}
		moved = true
		a.filters[k] = now
		a.cfg.Logger.Info("a member's addresses changed", "job", k.Job, "admits", now.Admits())
		if err := writeJSON(filterPath(a.attemptDir(k)), now); err != nil {
			a.cfg.Logger.Error("keep packet filter", "job", k.Job, "error", err)
		}
	}
	if moved {
		a.applyFilters()
	}
}

// applyFilters makes the node's packet filter what the attempts want, and nothing
// else: what ended jobs have left goes. filterMu is held.
func (a *Agent) applyFilters() {
	if a.cfg.Filter == nil {
		return
	}
	if err := a.cfg.Filter(maps.Clone(a.filters)); err != nil && len(a.filters) > 0 {
		a.cfg.Logger.Error("set packet filter", "error", err)
	}
}
