package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// reportBytes and reportFiles bound what is taken from one node: a Spark has
	// about 400 files of 0.5 MB together.
	reportBytes = 8 << 20
	reportFiles = 10_000
	// reportTimeout bounds one node's part.
	reportTimeout = 20 * time.Second
)

// report passes on the evidence of every node, each as it comes. A node that is
// away, or that gives more than it may, is named and the others are heard.
func (n *node) report(ctx context.Context, c wire.Caller, _ wire.Empty, send func(wire.Evidence) error) error {
	st, err := n.status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	files := make(chan wire.Evidence)
	pulls, pctx := errgroup.WithContext(ctx)
	for _, m := range st.Nodes {
		pulls.Go(func() error { return n.pullEvidence(pctx, m, files) })
	}
	g.Go(func() error {
		defer close(files)
		return pulls.Wait()
	})
	g.Go(func() error {
		for e := range files {
			if err := send(e); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// pullEvidence fails only with ctx.
func (n *node) pullEvidence(ctx context.Context, m wire.NodeStatus, out chan<- wire.Evidence) error {
	deliver := func(e wire.Evidence) error {
		e.Node, e.Host = m.ID, m.Host
		select {
		case out <- e:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	size, count := 0, 0
	take := func(e wire.Evidence) error {
		if size, count = size+len(e.Data), count+1; size > reportBytes || count > reportFiles {
			return fmt.Errorf("%s has more to report than %d MiB in %d files", m.Host, reportBytes>>20, reportFiles)
		}
		return deliver(e)
	}
	pull, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var err error
	if m.ID == n.m.Node {
		err = n.nodeReport(pull, wire.Caller{Node: n.m.Node}, wire.Empty{}, take)
	} else {
		err = n.peers.client(m.ID).NodeReport(pull, take)
	}
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return deliver(wire.Evidence{Missing: err.Error()})
}

// nodeReport gives this node's part: what the reader reads, what it makes of it,
// and the end of the agent's log.
func (n *node) nodeReport(ctx context.Context, _ wire.Caller, _ wire.Empty, send func(wire.Evidence) error) error {
	taken, err := n.reader.Capture(ctx)
	if err != nil {
		return err
	}
	// What the probe heard and the user declared is in no file.
	inv, _ := n.view()
	inv.NICs, inv.Devices = taken.Inventory.NICs, taken.Inventory.Devices
	taken.Inventory = inv
	files, err := taken.Files()
	if err != nil {
		return err
	}
	if files["versions.json"], err = n.versions(); err != nil {
		return err
	}
	files["agent.log"] = n.recent.tail()
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := send(wire.Evidence{Node: n.m.Node, Host: n.m.Host, Path: path, Data: files[path]}); err != nil {
			return err
		}
	}
	return nil
}

// versions tells what runs here.
func (n *node) versions() ([]byte, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the kernel's version: %w", err)
	}
	system, _ := os.ReadFile("/etc/os-release") // a container may have none
	return json.MarshalIndent(struct {
		Node     launcher.NodeID `json:"node"`
		Host     string          `json:"host"`
		Boot     string          `json:"boot"`
		Began    time.Time       `json:"agent_began"`
		Sparkrun string          `json:"sparkrun"`
		Go       string          `json:"go"`
		Arch     string          `json:"arch"`
		Kernel   string          `json:"kernel"`
		System   string          `json:"os_release"`
	}{n.m.Node, n.m.Host, n.boot, n.began, n.cfg.Version, runtime.Version(), runtime.GOARCH,
		unix.ByteSliceToString(u.Release[:]), string(bytes.TrimSpace(system))}, "", " ")
}
