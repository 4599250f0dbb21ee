package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/bundle"
	"github.com/sparkrun/sparkrun/envgen/fabric"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Files of a report beside those of fabric.Capture.
const (
	statusFile   = "status.json"
	jobsFile     = "jobs.json"
	topologyFile = "topology.json"
	countersFile = "counters.json"
	doctorFile   = "doctor.json"
)

// replay makes the view of a report: what was captured on each machine is read by the
// same reader and the same rules as on the machine itself.
func replay(ctx context.Context, a *app.App, name string) (*fabricView, error) {
	from := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open report: %w", err)
		}
		defer f.Close()
		from = f
	}
	b, err := bundle.Read(from)
	if err != nil {
		return nil, fmt.Errorf("--from %s: %w", name, err)
	}
	return replayed(ctx, b)
}

func replayed(ctx context.Context, b bundle.Bundle) (*fabricView, error) {
	var st wire.Status
	if err := json.Unmarshal(b.Cluster[statusFile], &st); err != nil {
		return nil, fmt.Errorf("read report: %s: %w", statusFile, err)
	}
	st.Self = b.Host
	var counters []wire.NodeCounters
	if text, ok := b.Cluster[countersFile]; ok {
		if err := json.Unmarshal(text, &counters); err != nil {
			return nil, fmt.Errorf("read report: %s: %w", countersFile, err)
		}
	}
	var notes []string
	for i := range st.Nodes {
		n := &st.Nodes[i]
		inv, err := reread(ctx, b.Files[n.Host])
		if err == nil {
			n.Inventory = inv
		} else if !errors.Is(err, errNotCaptured) {
			notes = append(notes, fmt.Sprintf("%s: what was captured cannot be read again (%v): its inventory of "+
				"then is shown", n.Host, err))
		}
	}
	for _, n := range b.Nodes {
		if n.Missing != "" {
			notes = append(notes, fmt.Sprintf("%s is not whole in the report: %s", n.Host, n.Missing))
		}
	}
	v, err := newFabricView(st, counters)
	if err != nil {
		return nil, err
	}
	v.notes = append(v.notes, notes...)
	for i := range v.notes {
		v.notes[i] = plain.Text(v.notes[i])
	}
	return v, nil
}

var errNotCaptured = errors.New("nothing was captured")

// reread reads one machine's captured tree. What its probe heard and its user declared is
// in no tree, and is kept as it is.
func reread(ctx context.Context, files map[string][]byte) (envgen.Inventory, error) {
	c, err := fabric.OpenCapture(files)
	if errors.Is(err, fs.ErrNotExist) && len(files) == 0 {
		return envgen.Inventory{}, errNotCaptured
	}
	if err != nil {
		return envgen.Inventory{}, err
	}
	r, err := c.Reader()
	if err != nil {
		return envgen.Inventory{}, err
	}
	inv, err := r.Read(ctx)
	if err != nil {
		return envgen.Inventory{}, err
	}
	whole := c.Inventory
	whole.NICs, whole.Devices = inv.NICs, inv.Devices
	return whole, nil
}

// create opens a file for writing, or standard output where the name is "-".
func create(a *app.App, name string) (io.Writer, func() error, error) {
	if name == "-" {
		return a.Out, func() error { return nil }, nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}
