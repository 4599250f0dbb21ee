package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// outputMode is the flag that says how output is shown.
type outputMode struct {
	kind string // "prefix", which is the default, "raw", "json" or "files"
	dir  string // of files
}

func (m *outputMode) Type() string { return "prefix|raw|json|files=DIR" }

func (m *outputMode) String() string {
	if m == nil || m.dir == "" {
		return ""
	}
	return m.kind + "=" + m.dir
}

func (m *outputMode) Set(text string) error {
	kind, dir, _ := strings.Cut(text, "=")
	switch {
	case kind == "files" && dir != "":
	case text == "prefix" || text == "raw" || text == "json":
	default:
		return errors.New("want prefix, raw, json or files=DIR")
	}
	m.kind, m.dir = kind, dir
	return nil
}

// settle brings --json and --output together.
func (m *outputMode) settle(json *bool) error {
	if *json && m.kind != "" && m.kind != "json" {
		return usagef("--json and --output %s: give one of them", m.kind)
	}
	*json = *json || m.kind == "json"
	return nil
}

// printer makes what shows output. files refuse a folder in which there is
// output already.
func (a *app) printer(m outputMode, json bool) (*printer, error) {
	p := newPrinter(a.out, a.err)
	p.json, p.raw = json, m.kind == "raw"
	p.outColour, p.errColour = a.colour(a.outTTY), a.colour(a.errTTY)
	if m.kind != "files" {
		return p, nil
	}
	var err error
	p.files, err = openOutputFiles(m.dir)
	return p, err
}

// outputFiles are a folder's files rank-N.out and rank-N.err, made when there is
// something to write.
type outputFiles struct {
	dir  string
	open map[tailKey]*os.File
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
			return nil, fmt.Errorf("--output files: %s: %w, and is not written over: name another folder", filepath.Join(dir, e.Name()), fs.ErrExist)
		}
	}
	return &outputFiles{dir: dir, open: map[tailKey]*os.File{}}, nil
}

// of gives the file of one stream.
func (o *outputFiles) of(k tailKey) (*os.File, error) {
	if f := o.open[k]; f != nil {
		return f, nil
	}
	name := filepath.Join(o.dir, fmt.Sprintf("rank-%d.%s", k.rank, k.stream))
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
