// Package modelcache decides where a model's files lie on a machine: in the layout of huggingface_hub's
// cache, so that every tool that knows that layout finds them, offline too.
//
//	models--ORG--NAME/blobs/ETAG             a file's content, under its sha256, or git's sum
//	models--ORG--NAME/snapshots/COMMIT/PATH  a relative link to its blob
//	models--ORG--NAME/refs/main              the commit
//	models--ORG--NAME/trees/COMMIT.json      releases from 1.22 on: the files that a snapshot has to have
//	models--ORG--NAME/sparkrun/              ours: what a commit has, files under way, marks of wrong contents
//	.locks/models--ORG--NAME/ETAG.lock       who writes a blob
//	.locks/models--ORG--NAME/sparkrun.lease  who uses the repository
//
// It must not fetch anything, nor choose what is fetched. Names and links from elsewhere never lead out of
// the cache: all goes through an os.Root. What other tools have left half-written is told, and left alone.
package modelcache

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Types of repositories (huggingface_hub/constants.py).
const (
	Model   = "model"
	Dataset = "dataset"
	// Image is none of the Hub's: the contents of container images on their way, in a folder of their own.
	Image = "image"
)

// Repo is a repository: its type and its name, ORG/NAME or NAME.
type Repo struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// File is one file of a commit, with one of the two sums.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	GitOID string `json:"git_oid,omitempty"`
}

// ETag is the name of the file's blob.
func (f File) ETag() string { return cmp.Or(f.SHA256, f.GitOID) }

// Manifest is what a commit has of a repository: the files that were chosen, and those left out.
type Manifest struct {
	Repo   Repo   `json:"repo"`
	Commit string `json:"commit"`        // 40 hex digits
	Ref    string `json:"ref,omitempty"` // the branch or tag that stands for it; empty: none
	Files  []File `json:"files"`
	Left   []File `json:"left,omitempty"`
	// Partial: a user has said which files, so that an engine may miss some.
	Partial bool `json:"partial,omitempty"`
	// Added is when it was made from a folder; zero: it is the Hub's, which does not know the others, whatever it has
	// under that name.
	Added time.Time `json:"added,omitzero"`
}

// Bytes is the size of the chosen files, each content once.
func (m Manifest) Bytes() (n int64) {
	seen := map[string]bool{}
	for _, f := range m.Files {
		if !seen[f.ETag()] {
			seen[f.ETag()] = true
			n += f.Size
		}
	}
	return n
}

// What callers tell apart.
var (
	ErrBusy   = errors.New("another program fetches it at this moment")
	ErrInUse  = errors.New("it is in use")
	ErrRoom   = errors.New("not enough room")
	ErrSum    = errors.New("wrong content")
	ErrAbsent = errors.New("not in the cache")
)

// Config says where a cache is, and whose.
type Config struct {
	// Dir is the folder, HF_HUB_CACHE; it is made.
	Dir string
	// Own gives what is made to UID and GID; without it, it is this process's.
	Own      bool
	UID, GID int
	// DirMode and FileMode are those of what is made; 0: 0755 and 0644.
	DirMode, FileMode fs.FileMode
	// Private locks are for this process alone: whoever can open a lock's file can hold up all who wait for it. Without
	// it a group may share the cache, as huggingface_hub has it.
	Private bool
	// Reserve is how much of a disk of so many bytes is kept for the rest of the machine; nil: nothing.
	Reserve func(total int64) int64
	// Keep is how much of a file under way stays in the page cache, for those to whom it is handed on, in
	// bytes; 0: 256 MiB.
	Keep int64
}

// Cache is one cache. It may be used by several goroutines.
type Cache struct {
	cfg   Config
	root  *os.Root
	flock func(fd, how int) error

	rights sync.Mutex // while a repository's readers change
}

// Open makes the folder.
func Open(cfg Config) (*Cache, error) {
	cfg.DirMode = cmp.Or(cfg.DirMode, 0o755)
	cfg.FileMode = cmp.Or(cfg.FileMode, 0o644)
	cfg.Keep = cmp.Or(cfg.Keep, 256<<20)
	_, err := os.Lstat(cfg.Dir)
	if err := os.MkdirAll(cfg.Dir, cfg.DirMode); err != nil {
		return nil, fmt.Errorf("open model cache: %w", err)
	}
	root, oerr := os.OpenRoot(cfg.Dir)
	if oerr != nil {
		return nil, fmt.Errorf("open model cache: %w", oerr)
	}
	c := &Cache{cfg: cfg, root: root, flock: unix.Flock}
	if errors.Is(err, fs.ErrNotExist) {
		if err := c.ownDir("."); err != nil {
			root.Close()
			return nil, fmt.Errorf("open model cache: %w", err)
		}
	}
	return c, nil
}

// Close closes the folder.
func (c *Cache) Close() error { return c.root.Close() }

var (
	hex40    = plain.Pattern(`^[0-9a-f]{40}$`)
	hex64    = plain.Pattern(`^[0-9a-f]{64}$`)
	nameForm = plain.Pattern(`^\w[\w.-]*$`)
	refForm  = plain.Pattern(`^[\w][\w./+-]*$`)
)

// dir is a repository's folder (huggingface_hub/file_download.py, repo_folder_name).
func (r Repo) dir() string { return r.Type + "s--" + strings.ReplaceAll(r.Name, "/", "--") }

func (r Repo) String() string { return r.Type + " " + r.Name }

// Check refuses names that no repository has.
func (r Repo) Check() error {
	parts := strings.Split(r.Name, "/")
	ok := (r.Type == Model || r.Type == Dataset || r.Type == Image) && len(parts) <= 2 && len(r.Name) <= 96 &&
		!strings.Contains(r.Name, "--") && !strings.Contains(r.Name, "..")
	for _, p := range parts {
		ok = ok && nameForm().MatchString(p)
	}
	if !ok {
		return fmt.Errorf("use %s %q: want a model or dataset ORG/NAME", r.Type, r.Name)
	}
	return nil
}

// repoOf reads a folder's name; false: it is no repository of ours to handle.
func repoOf(dir string) (Repo, bool) {
	kind, name, ok := strings.Cut(dir, "s--")
	r := Repo{Type: kind, Name: strings.ReplaceAll(name, "--", "/")}
	return r, ok && r.Check() == nil && r.dir() == dir
}

func (f File) check() error {
	sum := f.SHA256 != "" && f.GitOID == "" && hex64().MatchString(f.SHA256) ||
		f.SHA256 == "" && hex40().MatchString(f.GitOID)
	odd := strings.ContainsFunc(f.Path, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' })
	if !fs.ValidPath(f.Path) || f.Path == "." || odd || !sum || f.Size < 0 {
		return fmt.Errorf("use file %q: want a path inside the repository, a size and one sum", f.Path)
	}
	return nil
}

// Check refuses what would lead out of the cache.
func (m Manifest) Check() error {
	if err := m.Repo.Check(); err != nil {
		return err
	}
	if !hex40().MatchString(m.Commit) {
		return fmt.Errorf("use commit %q of %s: want 40 hex digits", m.Commit, m.Repo)
	}
	if m.Ref != "" && (!refForm().MatchString(m.Ref) || !fs.ValidPath(m.Ref)) {
		return fmt.Errorf("use revision %q of %s: want a branch or a tag", m.Ref, m.Repo)
	}
	seen, total := map[string]bool{}, int64(0)
	for _, f := range slices.Concat(m.Files, m.Left) {
		if total += min(f.Size, maxBytes); total > maxBytes {
			return fmt.Errorf("use %s: its files are over %d bytes together", m.Repo, int64(maxBytes))
		}
		if err := f.check(); err != nil {
			return err
		}
		if seen[f.Path] {
			return fmt.Errorf("use file %q: it is there twice", f.Path)
		}
		seen[f.Path] = true
	}
	for f := range seen {
		for up := path.Dir(f); up != "."; up = path.Dir(up) {
			if seen[up] {
				return fmt.Errorf("use file %q: a folder has its name", up)
			}
		}
	}
	return nil
}

// maxBytes bounds a commit: 1 PiB. Sums of sizes are then numbers.
const maxBytes = 1 << 50

// Dir is the folder of a commit, which engines are given.
func (c *Cache) Dir(r Repo, commit string) string { return SnapshotDir(c.cfg.Dir, r, commit) }

// SnapshotDir is the folder of a commit in the cache of a folder.
func SnapshotDir(cache string, r Repo, commit string) string {
	return path.Join(cache, r.dir(), "snapshots", commit)
}

// Room refuses so many bytes if they would use space that is kept for the rest of the machine.
func (c *Cache) Room(bytes int64) error {
	d, err := c.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &st); err != nil {
		return nil //nolint:nilerr // a disk that does not tell is no reason to refuse
	}
	keep, free := int64(0), int64(st.Bavail)*st.Bsize
	if c.cfg.Reserve != nil {
		keep = c.cfg.Reserve(int64(st.Blocks) * st.Bsize)
	}
	if free-bytes < keep {
		mb := func(n int64) float64 { return float64(n) / 1e6 }
		return fmt.Errorf("%w: %s has %.1f MB free, want %.1f besides %.1f that are kept for the rest of the machine",
			ErrRoom, c.cfg.Dir, mb(free), mb(bytes), mb(keep))
	}
	return nil
}

// Expect writes down what a commit will have, before it is fetched: then List knows what it lacks.
func (c *Cache) Expect(m Manifest) error {
	if err := m.Check(); err != nil {
		return err
	}
	if err := c.mkdirs(path.Join(m.Repo.dir(), ours)); err != nil {
		return fmt.Errorf("keep the manifest of %s: %w", m.Repo, err)
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	at := path.Join(m.Repo.dir(), ours, m.Commit+".manifest")
	if now, err := c.read(at, int64(len(text))+1); err == nil && bytes.Equal(now, text) {
		return nil // a pull that goes on takes no room
	}
	return c.write(at, text, true)
}

// Manifest is what Expect has written down; an error wraps fs.ErrNotExist if that is nothing.
func (c *Cache) Manifest(r Repo, commit string) (Manifest, error) {
	var m Manifest
	if err := r.Check(); err != nil {
		return m, err
	}
	if !hex40().MatchString(commit) {
		return m, fmt.Errorf("use commit %q of %s: want 40 hex digits", commit, r)
	}
	text, err := c.read(path.Join(r.dir(), ours, commit+".manifest"), 256<<20)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("read manifest of %s: %w", r, err)
	}
	if m.Repo != r || m.Commit != commit {
		return m, fmt.Errorf("read manifest of %s: it is that of %s", r, m.Repo)
	}
	return m, m.Check()
}

// Commit makes the snapshot of a commit whose contents are all there, and returns its folder. The ref comes
// last: whoever finds it finds the files.
func (c *Cache) Commit(m Manifest) (string, error) {
	missing, err := c.Missing(m)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("link %s of %s: %w", missing[0].Path, m.Repo, ErrAbsent)
	}
	if err == nil {
		err = c.Expect(m)
	}
	if err != nil {
		return "", err
	}
	dir, wrap := m.Repo.dir(), func(err error) error { return fmt.Errorf("link %s@%s: %w", m.Repo, m.Commit, err) }
	snapshot := path.Join(dir, "snapshots", m.Commit)
	if err := c.mkdirs(snapshot); err != nil {
		return "", wrap(err)
	}
	folders := map[string]bool{snapshot: true, path.Dir(snapshot): true, path.Join(dir, "blobs"): true}
	for _, f := range m.Files {
		at := path.Join(snapshot, f.Path)
		if err := c.mkdirs(path.Dir(at)); err != nil {
			return "", wrap(err)
		}
		for up := path.Dir(at); up != snapshot; up = path.Dir(up) {
			folders[up] = true
		}
		if err := c.link(at, strings.Repeat("../", strings.Count(f.Path, "/")+2)+"blobs/"+f.ETag()); err != nil {
			return "", wrap(err)
		}
		folders[path.Dir(at)] = true
	}
	for f := range folders {
		if err := c.syncDir(f); err != nil {
			return "", wrap(err)
		}
	}
	if err := c.tree(m); err != nil {
		return "", wrap(err)
	}
	if m.Ref != "" && m.Ref != m.Commit {
		at := path.Join(dir, "refs", m.Ref)
		if err := c.mkdirs(path.Dir(at)); err != nil {
			return "", wrap(err)
		}
		if err := c.write(at, []byte(m.Commit), true); err != nil {
			return "", wrap(err)
		}
	}
	return c.Dir(m.Repo, m.Commit), nil
}

// tree keeps the listing by which huggingface_hub from 1.22 on judges whether a snapshot is whole
// (_tree_cache.py). It takes a listing for all that the commit has: so there is one exactly where the snapshot has
// every file. Without one a snapshot reads as whole, and a later download online lists and fetches the rest.
func (c *Cache) tree(m Manifest) error {
	at := path.Join(m.Repo.dir(), "trees", m.Commit+".json")
	for _, f := range m.Left {
		if _, whole := c.have(m.Repo, m.Commit, f); !whole {
			if err := c.root.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}
	}
	files := map[string]map[string]any{}
	for _, f := range slices.Concat(m.Files, m.Left) {
		files[f.Path] = map[string]any{"size": f.Size, "blob_id": cmp.Or(f.GitOID, pointerOID(f))}
		if f.SHA256 != "" {
			files[f.Path]["lfs_sha256"], files[f.Path]["lfs_size"] = f.SHA256, f.Size
		}
	}
	if err := c.mkdirs(path.Dir(at)); err != nil {
		return err
	}
	text, err := json.MarshalIndent(map[string]any{"format_version": 1, "files": files}, "", " ")
	if err != nil {
		return err
	}
	return c.write(at, text, true)
}

// ours is the folder of what this package alone knows of.
const ours = "sparkrun"

// link replaces what is at a path by a link, at once.
func (c *Cache) link(at, to string) error {
	if is, err := c.root.Readlink(at); err == nil && is == to {
		return nil
	}
	tmp := path.Join(path.Dir(at), ".sparkrun-"+rand.Text())
	if err := c.root.Symlink(to, tmp); err != nil {
		return roomError(err)
	}
	err := c.root.Rename(tmp, at)
	if err == nil && c.cfg.Own {
		err = c.root.Lchown(at, c.cfg.UID, c.cfg.GID)
	}
	if err != nil {
		c.root.Remove(tmp)
	}
	return err
}

// mkdirs makes folders that are not there, with the cache's owner and mode.
func (c *Cache) mkdirs(dir string) error {
	if st, err := c.root.Stat(dir); err == nil && st.IsDir() {
		return nil
	}
	if up := path.Dir(dir); up != "." {
		if err := c.mkdirs(up); err != nil {
			return err
		}
	}
	err := c.root.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil // made by another at this moment; or no folder, as the next step finds
	}
	if err != nil {
		return err
	}
	if err := c.ownDir(dir); err != nil {
		return err
	}
	return c.syncDir(path.Dir(dir))
}

func (c *Cache) ownDir(dir string) error {
	d, err := c.root.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return c.own(d, c.cfg.DirMode)
}

// own works on an open file: nobody can put another in its place.
func (c *Cache) own(f *os.File, mode fs.FileMode) error {
	if c.cfg.Own {
		if err := f.Chown(c.cfg.UID, c.cfg.GID); err != nil {
			return err
		}
	}
	return f.Chmod(mode)
}

// write replaces a file, whole (as launcher/durable does, but inside the root); synced: it is on the disk then.
func (c *Cache) write(at string, text []byte, synced bool) error {
	tmp := path.Join(path.Dir(at), ".sparkrun-"+rand.Text())
	f, err := c.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, c.own(f, c.cfg.FileMode))
	if synced {
		err = errors.Join(err, f.Sync())
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = c.root.Rename(tmp, at)
	}
	if err != nil {
		c.root.Remove(tmp)
	}
	if err != nil || !synced {
		return roomError(err)
	}
	return c.syncDir(path.Dir(at))
}

func (c *Cache) syncDir(dir string) error {
	d, err := c.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// read reads a regular file of at most so many bytes, and waits for nothing.
func (c *Cache) read(at string, most int64) ([]byte, error) {
	f, err := c.root.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > most {
		return nil, fmt.Errorf("read %s: want a file of at most %d bytes: %w", at, most, errors.Join(err, fs.ErrInvalid))
	}
	return io.ReadAll(io.LimitReader(f, most))
}
