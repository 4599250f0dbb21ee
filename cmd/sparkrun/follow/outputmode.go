package follow

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

// OutputMode is the flag that says how output is shown.
type OutputMode struct {
	Kind string // "prefix", which is the default, "raw", "json" or "files"
	dir  string // of files
}

func (m *OutputMode) Type() string { return "prefix|raw|json|files=DIR" }

func (m *OutputMode) String() string {
	if m == nil || m.dir == "" {
		return ""
	}
	return m.Kind + "=" + m.dir
}

func (m *OutputMode) Set(text string) error {
	kind, dir, _ := strings.Cut(text, "=")
	switch {
	case kind == "files" && dir != "":
	case text == "prefix" || text == "raw" || text == "json":
	default:
		return errors.New("want prefix, raw, json or files=DIR")
	}
	m.Kind, m.dir = kind, dir
	return nil
}

// Settle combines --json and --output.
func (m *OutputMode) Settle(json *bool) error {
	if *json && m.Kind != "" && m.Kind != "json" {
		return app.Usagef("--json and --output %s: give one of them", m.Kind)
	}
	*json = *json || m.Kind == "json"
	return nil
}

// OpenPrinter makes the printer. With files it refuses a folder that has output already.
func OpenPrinter(a *app.App, m OutputMode, json bool) (*Printer, error) {
	p := NewPrinter(a.Out, a.Err)
	p.json, p.raw = json, m.Kind == "raw"
	p.outColour, p.errColour = a.Colour(a.OutTTY), a.Colour(a.ErrTTY)
	if m.Kind != "files" {
		return p, nil
	}
	var err error
	p.files, err = openOutputFiles(m.dir)
	return p, err
}

// outputFiles are a folder's files rank-N.out and rank-N.err, each made when there is
// something to write.
type outputFiles struct {
	dir  string
	open map[TailKey]*os.File
}

func openOutputFiles(dir string) (*outputFiles, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("--output files: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("--output files: %w", err)
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); strings.HasPrefix(e.Name(), "rank-") && (ext == ".out" || ext == ".err") {
			return nil, fmt.Errorf("--output files: %s: %w, and is not written over: name another folder",
				filepath.Join(dir, e.Name()), fs.ErrExist)
		}
	}
	return &outputFiles{dir: dir, open: map[TailKey]*os.File{}}, nil
}

// of gives a stream's file.
func (o *outputFiles) of(k TailKey) (*os.File, error) {
	if f := o.open[k]; f != nil {
		return f, nil
	}
	name := filepath.Join(o.dir, fmt.Sprintf("rank-%d.%s", k.Rank, k.Stream))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		o.open[k] = f
	}
	return f, err
}

func (o *outputFiles) close() (err error) {
	for k, f := range o.open {
		err = errors.Join(err, f.Close())
		delete(o.open, k)
	}
	return err
}
