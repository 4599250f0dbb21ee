package checkup

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

	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric"
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

// Report passes on the evidence of every node as it arrives. A node that is away, or that
// sends more than it may, is named; the others' evidence still goes on.
func (u *Checkup) Report(ctx context.Context, c wire.Caller, _ wire.Empty, send func(wire.Evidence) error) error {
	st, err := u.cfg.Status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	files := make(chan wire.Evidence)
	pulls, pctx := errgroup.WithContext(ctx)
	for _, m := range st.Nodes {
		pulls.Go(func() error { return u.pullEvidence(pctx, m, files) })
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
func (u *Checkup) pullEvidence(ctx context.Context, m wire.NodeStatus, out chan<- wire.Evidence) error {
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
	if m.ID == u.cfg.Self {
		err = u.NodeReport(pull, wire.Caller{Node: u.cfg.Self}, wire.Empty{}, take)
	} else {
		err = wire.NodeReport.Call(pull, u.cfg.Dial.Client(m.ID), wire.Empty{}, take)
	}
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return deliver(wire.Evidence{Missing: err.Error()})
}

// NodeReport gives this node's part: the reader's files, what is derived from them, and
// the end of the agent's log.
func (u *Checkup) NodeReport(ctx context.Context, _ wire.Caller, _ wire.Empty, send func(wire.Evidence) error) error {
	files, err := u.cfg.Survey.Capture(ctx)
	if err != nil {
		return err
	}
	about := running{Node: u.cfg.Self, Host: u.cfg.Host, Boot: u.cfg.Boot, Began: u.cfg.Began, Sparkrun: u.cfg.Version}
	if files["versions.json"], err = about.text(); err != nil {
		return err
	}
	files["agent.log"] = u.cfg.Recent.tail()
	return sendFiles(files, wire.Evidence{Node: u.cfg.Self, Host: u.cfg.Host}, send)
}

func sendFiles(files map[string][]byte, of wire.Evidence, send func(wire.Evidence) error) error {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		of.Path, of.Data = path, files[path]
		if err := send(of); err != nil {
			return err
		}
	}
	return nil
}

// Evidence gives this machine's part of a report without an agent: there is no log, and
// nothing is known of the cables.
func Evidence(ctx context.Context, sysfs string, send func(wire.Evidence) error) error {
	r, err := fabric.New(fabric.Config{Sysfs: sysfs})
	if err != nil {
		return err
	}
	var host string
	files, err := survey.Captured(ctx, r, func(inv *envgen.Inventory) { host = inv.Host })
	if err != nil {
		return err
	}
	if files["versions.json"], err = (running{Host: host}).text(); err != nil {
		return err
	}
	return sendFiles(files, wire.Evidence{Host: host}, send)
}

// running describes the software that runs on a node.
type running struct {
	Node     launcher.NodeID `json:"node,omitempty"`
	Host     string          `json:"host"`
	Boot     string          `json:"boot,omitempty"`
	Began    time.Time       `json:"agent_began,omitzero"`
	Sparkrun string          `json:"sparkrun,omitempty"`
	Go       string          `json:"go"`
	Arch     string          `json:"arch"`
	Kernel   string          `json:"kernel"`
	System   string          `json:"os_release"`
}

// text adds what is the same for every process of the machine.
func (r running) text() ([]byte, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the kernel's version: %w", err)
	}
	system, _ := os.ReadFile("/etc/os-release") // a container may have none
	r.Go, r.Arch, r.Kernel = runtime.Version(), runtime.GOARCH, unix.ByteSliceToString(u.Release[:])
	r.System = string(bytes.TrimSpace(system))
	return json.MarshalIndent(r, "", " ")
}
