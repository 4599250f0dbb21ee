package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/sparkrun/sparkrun/envgen"
)

// Capture is one read of a node with all the files it used, so that the same read can be repeated elsewhere.
type Capture struct {
	// Inventory is the result of that read.
	Inventory envgen.Inventory
	// Links are as the kernel's network stack listed them.
	Links []Link
	// Routes are the routes of all tables, for people: the reader itself uses only the default ones, which are in
	// Links.
	Routes []Route
	// Tree is the part of sysfs that was read.
	Tree *Tree
}

// Capture reads the node and keeps what it read: about 300 small files on a Spark, including the
// counters.
func (r *Reader) Capture(ctx context.Context) (Capture, error) {
	rec := &recorder{from: r.sysfs.fsys, tree: newTree()}
	var links []Link
	cfg := r.cfg
	cfg.FS = rec
	cfg.Links = func(ctx context.Context) (_ []Link, err error) {
		links, err = r.cfg.Links(ctx)
		return links, err
	}
	again := &Reader{cfg: cfg, sysfs: sysfs{rec}}
	inv, err := again.Read(ctx)
	if err != nil {
		return Capture{}, err
	}
	again.sysfs.counters()
	routes, err := r.cfg.Routes(ctx)
	if err != nil {
		return Capture{}, err
	}
	return Capture{Inventory: inv, Links: links, Routes: routes, Tree: rec.tree}, nil
}

// Names of a capture's files. Below treeFolder lies the tree: each file under the path by which it was read, which
// leads through symbolic links, so that one path may be both a link and a folder. The targets of the links and the
// listings of the folders are in files of their own.
const (
	treeFolder    = "sys/"
	symlinksFile  = "sys-symlinks.json"
	foldersFile   = "sys-folders.json"
	linksFile     = "links.json"
	routesFile    = "routes.json"
	inventoryFile = "inventory.json"
)

// Files gives the capture as files by path, for OpenCapture.
func (c Capture) Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, v := range map[string]any{
		symlinksFile: c.Tree.symlinks, foldersFile: c.Tree.folders, linksFile: c.Links, routesFile: c.Routes,
		inventoryFile: c.Inventory,
	} {
		text, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			return nil, fmt.Errorf("write %s of a capture: %w", name, err)
		}
		files[name] = append(text, '\n')
	}
	for name, content := range c.Tree.files {
		files[treeFolder+name] = content
	}
	return files, nil
}

// OpenCapture reads what Files wrote, and ignores other files. The inventory is the one in the capture; Reader
// derives it anew.
func OpenCapture(files map[string][]byte) (Capture, error) {
	c := Capture{Tree: newTree()}
	for name, to := range map[string]any{
		symlinksFile: &c.Tree.symlinks, foldersFile: &c.Tree.folders, linksFile: &c.Links, routesFile: &c.Routes,
		inventoryFile: &c.Inventory,
	} {
		text, ok := files[name]
		if !ok {
			return Capture{}, fmt.Errorf("open capture: %s: %w", name, fs.ErrNotExist)
		}
		if err := json.Unmarshal(text, to); err != nil {
			return Capture{}, fmt.Errorf("open capture: %s: %w", name, err)
		}
	}
	for name, content := range files {
		if below, ok := strings.CutPrefix(name, treeFolder); ok && fs.ValidPath(below) {
			c.Tree.files[below] = content
		}
	}
	return c, nil
}

// Reader reads the capture in place of a machine: by the same rules, with the same
// result.
func (c Capture) Reader() (*Reader, error) {
	return New(Config{
		FS:       c.Tree,
		Hostname: func() (string, error) { return c.Inventory.Host, nil },
		Links:    func(context.Context) ([]Link, error) { return c.Links, nil },
		Events:   func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil },
	})
}

// recorder passes reads on and keeps the results. A read that failed is not kept: it fails in the tree
// too.
type recorder struct {
	from fs.ReadLinkFS
	mu   sync.Mutex
	tree *Tree
}

func (r *recorder) keep(fn func(*Tree)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r.tree)
}

// Open implements fs.FS; the reader uses only the other methods.
func (r *recorder) Open(name string) (fs.File, error) { return r.from.Open(name) }

// ReadFile implements fs.ReadFileFS. The empty rows of a GID table, a thousand on a Spark, are left out: for the
// reader a missing row is an empty one.
func (r *recorder) ReadFile(name string) ([]byte, error) {
	content, err := fs.ReadFile(r.from, name)
	if err != nil {
		return nil, err
	}
	if path.Base(path.Dir(name)) == "gids" {
		if _, filled, err := parseGID(string(content)); err == nil && !filled {
			return content, nil
		}
	}
	r.keep(func(t *Tree) { t.files[name] = slices.Clone(content) })
	return content, nil
}

// ReadDir implements fs.ReadDirFS.
func (r *recorder) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(r.from, name)
	if err == nil {
		r.keep(func(t *Tree) {
			t.folders[name] = []string{}
			for _, e := range entries {
				t.folders[name] = append(t.folders[name], e.Name())
			}
		})
	}
	return entries, err
}

// ReadLink implements fs.ReadLinkFS.
func (r *recorder) ReadLink(name string) (string, error) {
	target, err := r.from.ReadLink(name)
	if err == nil {
		r.keep(func(t *Tree) { t.symlinks[name] = target })
	}
	return target, err
}

// Lstat implements fs.ReadLinkFS.
func (r *recorder) Lstat(name string) (fs.FileInfo, error) {
	info, err := r.from.Lstat(name)
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		_, _ = r.ReadLink(name) // a link that cannot be read is kept as missing
	case info.IsDir():
		r.keep(func(t *Tree) {
			if _, listed := t.folders[name]; !listed {
				t.folders[name] = []string{}
			}
		})
	default:
		r.keep(func(t *Tree) {
			if _, read := t.files[name]; !read {
				t.files[name] = []byte{}
			}
		})
	}
	return info, err
}
