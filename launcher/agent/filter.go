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

// installFilter keeps other hosts from the ports of an attempt's ranks, before a rank runs. What
// it could not do is no reason to refuse, and is returned as a warning.
func (a *Agent) installFilter(ctx context.Context, as launcher.Assignment, dir string, c *shim.Client,
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
		return errors.New("the leader's sparkrun does not send the members' addresses: upgrade it")
	}
	f := launcher.Filter{Members: as.Members, Nodes: as.Nodes, Published: as.Spec.Publish, Ports: at.all()}
	if api := servicePublished(as, at); as.Spec.Service != nil && as.Spec.Service.Behind {
		f.Served = api
	} else {
		f.Published = slices.Concat(f.Published, api)
	}
	var err error
	if f.Cgroup, err = c.Cgroup(ctx); err != nil {
		return err
	}
	if c, err := container.ReadPrepared(dir); err == nil && c != nil {
		f.Containers = c.Group
	}
	a.filterMu.Lock()
	defer a.filterMu.Unlock()
	f, _ = f.Readdress(a.addrs)                           // addresses may have changed since it was planned
	if err := writeJSON(filterPath(dir), f); err != nil { // without it the next agent process would lift the filter
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

// removeFilter lifts the filter of an attempt that has no process left.
func (a *Agent) removeFilter(k launcher.Key) {
	a.filterMu.Lock()
	defer a.filterMu.Unlock()
	if _, had := a.filters[k]; !had {
		return
	}
	delete(a.filters, k)
	a.applyFilters()
}

// restoreFilter takes over the filter that a previous agent process has set up for an attempt.
func (a *Agent) restoreFilter(k launcher.Key) error {
	var f launcher.Filter
	err := readJSON(filterPath(a.attemptDir(k)), &f)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // prepared by an older agent, or without the members' addresses
	}
	if err != nil {
		return err
	}
	a.filterMu.Lock()
	defer a.filterMu.Unlock()
	a.filters[k] = f
	return nil
}

// Readdress sets the addresses that members have now. Addresses that a job's node has got
// since the plan are admitted to the job's ranks, also after a restart. A member that addrs
// lacks is taken to be where it was.
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

// applyFilters sets the node's packet filter to exactly what the attempts want: the rules
// of ended jobs go. filterMu is held.
func (a *Agent) applyFilters() {
	if a.cfg.Filter == nil {
		return
	}
	if err := a.cfg.Filter(maps.Clone(a.filters)); err != nil && len(a.filters) > 0 {
		a.cfg.Logger.Error("set packet filter", "error", err)
	}
}
