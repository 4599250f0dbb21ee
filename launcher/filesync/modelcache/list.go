package modelcache

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Held is what the cache has of a repository.
type Held struct {
	Repo    Repo      `json:"repo"`
	Commits []Commit  `json:"commits,omitempty"`
	Bytes   int64     `json:"bytes"` // on the disk, parts included
	Used    time.Time `json:"used"`  // when a job, a pull or a verification last took it; zero: not known
	InUse   bool      `json:"in_use,omitempty"`
	// Restricted: not everybody may read it, whoever may read the cache.
	Restricted bool `json:"restricted,omitempty"`
	// Foreign are files that other tools have left half-written; they are left alone.
	Foreign []string `json:"foreign,omitempty"`
}

// Commit is what there is of a commit.
type Commit struct {
	Commit  string   `json:"commit"`
	Refs    []string `json:"refs,omitempty"`
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`             // of the files that it has to have
	Have    int64    `json:"have"`              // of those, what is there
	Missing []string `json:"missing,omitempty"` // files that are not there whole
	Left    int      `json:"left,omitempty"`    // files that were left out when it was fetched
	Partial bool     `json:"partial,omitempty"` // some of them by --include or --exclude
	// Added is when it was made from a folder; zero: it is the Hub's.
	Added time.Time `json:"added,omitzero"`
	// Unsized: another tool has left files without saying how long they are to be. Bytes is without them.
	Unsized bool `json:"unsized,omitempty"`
}

// Whole says that nothing is missing.
func (c Commit) Whole() bool { return len(c.Missing) == 0 }

// Named tells whether a revision stands for it.
func (c Commit) Named(revision string) bool {
	return c.Commit == revision || slices.Contains(c.Refs, revision)
}

// List tells what there is. What cannot be read is told by the error, beside what can.
func (c *Cache) List() ([]Held, error) {
	entries, err := fs.ReadDir(c.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list models: %w", err)
	}
	var all []Held
	var errs []error
	for _, e := range entries {
		if r, ok := repoOf(e.Name()); ok {
			h, err := c.Look(r)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			all = append(all, h)
		}
	}
	return all, errors.Join(errs...)
}

// Look tells what there is of one repository.
func (c *Cache) Look(r Repo) (Held, error) {
	h := Held{Repo: r}
	if err := r.Check(); err != nil {
		return h, err
	}
	st, err := c.root.Stat(r.dir())
	if err != nil || !st.IsDir() {
		return h, fmt.Errorf("look at %s: %w", r, errors.Join(ErrAbsent, err))
	}
	h.Restricted = st.Mode().Perm()&aclRead != aclRead
	h.InUse = c.inUse(r)
	if st, err := c.root.Stat(leaseOf(r)); err == nil {
		h.Used = st.ModTime()
	}
	for _, dir := range []string{"blobs", ours} {
		entries, _ := fs.ReadDir(c.root.FS(), path.Join(r.dir(), dir))
		for _, e := range entries {
			st, err := c.root.Stat(path.Join(r.dir(), dir, e.Name()))
			if err != nil || !st.Mode().IsRegular() {
				continue
			}
			if strings.HasSuffix(e.Name(), ".incomplete") {
				h.Foreign = append(h.Foreign, path.Join(r.dir(), dir, e.Name()))
			}
			if sys, ok := st.Sys().(*syscall.Stat_t); ok {
				h.Bytes += sys.Blocks * 512
			}
		}
	}
	refs := c.refs(r)
	for _, commit := range c.commits(r) {
		k := Commit{Commit: commit, Refs: refs[commit]}
		want, m := c.wanted(r, commit)
		for _, f := range want {
			k.Files++
			if f.Size < 0 {
				k.Unsized, k.Missing = true, append(k.Missing, f.Path)
				continue
			}
			k.Bytes += f.Size
			have, whole := c.have(r, commit, f)
			if k.Have += have; !whole {
				k.Missing = append(k.Missing, f.Path)
			}
		}
		k.Left, k.Partial, k.Added = len(m.Left), m.Partial, m.Added
		h.Commits = append(h.Commits, k)
	}
	return h, nil
}

// have is how much there is of a file, and whether its snapshot has it whole.
func (c *Cache) have(r Repo, commit string, f File) (int64, bool) {
	st, err := c.root.Stat(path.Join(r.dir(), "snapshots", commit, f.Path))
	if err == nil && st.Mode().IsRegular() && !c.isWrong(r, f.ETag()) {
		return min(st.Size(), f.Size), st.Size() == f.Size
	}
	if n, ok := c.blob(r, f.ETag()); ok && f.ETag() != "" { // fetched, and not yet linked
		return min(n, f.Size), false
	}
	prefix := int64(0)
	for _, ext := range []string{".json", ".next"} {
		var s sidecar
		if text, err := c.read(path.Join(r.dir(), ours, f.ETag()+ext), 64<<20); err == nil {
			_ = json.Unmarshal(text, &s) // half of one says nothing
		}
		prefix = max(prefix, min(s.Prefix, f.Size))
	}
	return prefix, false
}

// commits are those that have a snapshot, or a manifest.
func (c *Cache) commits(r Repo) []string {
	var all []string
	for _, dir := range []string{"snapshots", ours} {
		entries, _ := fs.ReadDir(c.root.FS(), path.Join(r.dir(), dir))
		for _, e := range entries {
			name, manifest := strings.CutSuffix(e.Name(), ".manifest")
			if manifest == (dir == ours) && hex40().MatchString(name) && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return all
}

// refs are the names of commits.
func (c *Cache) refs(r Repo) map[string][]string {
	refs, dir := map[string][]string{}, path.Join(r.dir(), "refs")
	_ = fs.WalkDir(c.root.FS(), dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if text, err := c.read(p, 256); err == nil {
				commit := strings.TrimSpace(string(text))
				refs[commit] = append(refs[commit], strings.TrimPrefix(p, dir+"/"))
			}
		}
		return nil //nolint:nilerr // what cannot be read names nothing
	})
	return refs
}

// wanted are the files that a commit has to have: by our manifest, by another tool's listing, else what its
// snapshot links to.
func (c *Cache) wanted(r Repo, commit string) ([]File, Manifest) {
	if m, err := c.Manifest(r, commit); err == nil {
		return m.Files, m
	}
	var files []File
	var listing struct {
		Files map[string]struct {
			Size   int64  `json:"size"`
			BlobID string `json:"blob_id"`
			SHA256 string `json:"lfs_sha256"`
		} `json:"files"`
	}
	text, err := c.read(path.Join(r.dir(), "trees", commit+".json"), 256<<20)
	if err == nil && json.Unmarshal(text, &listing) == nil && len(listing.Files) > 0 {
		for p, l := range listing.Files {
			f := File{Path: p, Size: l.Size, SHA256: l.SHA256}
			if f.SHA256 == "" {
				f.GitOID = l.BlobID
			}
			if f.check() == nil {
				files = append(files, f)
			}
		}
	} else {
		files = c.links(r, commit)
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, Manifest{}
}

// links are the files of a snapshot, with the sums by which their blobs are named. A link without a blob has
// the size -1: nobody knows it.
func (c *Cache) links(r Repo, commit string) []File {
	var files []File
	dir := path.Join(r.dir(), "snapshots", commit)
	_ = fs.WalkDir(c.root.FS(), dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // what cannot be read is not there
		}
		f := File{Path: strings.TrimPrefix(p, dir+"/"), Size: -1}
		if to, err := c.root.Readlink(p); err == nil {
			switch etag := path.Base(to); {
			case hex64().MatchString(etag):
				f.SHA256 = etag
			case hex40().MatchString(etag):
				f.GitOID = etag
			}
		}
		if st, err := c.root.Stat(p); err == nil {
			f.Size = st.Size()
		}
		files = append(files, f)
		return nil
	})
	return files
}

// Bad is a file that is not what it should be.
type Bad struct {
	Commit string `json:"commit"`
	Path   string `json:"path"`
	Why    string `json:"why"`
}

// Verify reads every file of a commit (empty: of all), each content once, and judges it by its sum. It removes
// nothing: what is wrong counts as missing from then on. progress, if not nil, gets the bytes read.
func (c *Cache) Verify(ctx context.Context, r Repo, commit string, progress func(int64)) ([]Bad, error) {
	l, err := c.Hold(r)
	if err != nil {
		return nil, err
	}
	defer l.Drop()
	commits := []string{commit}
	if commit == "" {
		commits = c.commits(r)
	}
	if len(commits) == 0 || commit != "" && !slices.Contains(c.commits(r), commit) {
		return nil, fmt.Errorf("verify %s@%s: %w", r, commit, ErrAbsent)
	}
	var bad []Bad
	judged := map[string]string{}
	for _, commit := range commits {
		files, _ := c.wanted(r, commit)
		for _, f := range files {
			at := path.Join(r.dir(), "snapshots", commit, f.Path)
			key := fmt.Sprint(f.ETag(), f.Size)
			to, _ := c.root.Readlink(at)
			if path.Base(to) != f.ETag() || f.ETag() == "" {
				key = at // no link to its blob: judged by itself
			}
			why, ok := judged[key]
			if !ok {
				var wrong bool
				why, wrong, err = c.judge(ctx, at, f, progress)
				switch {
				case err != nil || key == at:
				case wrong:
					if merr := c.mark(r, f.ETag()); merr != nil { // a full disk; what was found is told all the same
						why += fmt.Sprintf("; the next pull will not know that: %v", merr)
					}
				case why == "":
					err = c.unmark(r, f.ETag())
				}
				if err != nil {
					return bad, fmt.Errorf("verify %s: %w", r, err)
				}
				judged[key] = why
			}
			if why != "" {
				bad = append(bad, Bad{Commit: commit, Path: f.Path, Why: why})
			}
		}
	}
	return bad, nil
}

// judge says what is wrong with a file: the content, or that it cannot be had. An error is only the caller's giving up.
func (c *Cache) judge(ctx context.Context, at string, f File, progress func(int64)) (
	why string, content bool, err error) {
	in, err := c.root.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "it is not there", false, nil
	}
	if err != nil {
		return err.Error(), false, nil // a link that leads out of the cache, too
	}
	defer in.Close()
	st, err := in.Stat()
	switch {
	case err != nil || !st.Mode().IsRegular():
		return "it is no file", false, nil
	case f.ETag() == "":
		return "", false, nil // another tool's, without a link: nothing says what it should be
	case st.Size() != f.Size:
		return fmt.Sprintf("it has %d bytes, want %d", st.Size(), f.Size), false, nil // which makes it missing
	}
	h, buf, off := newHash(f), make([]byte, 4<<20), int64(0)
	for {
		if ctx.Err() != nil {
			return "", false, context.Cause(ctx)
		}
		n, err := in.Read(buf)
		h.Write(buf[:n])
		dropCache(in, off, int64(n))
		if off += int64(n); progress != nil && n > 0 {
			progress(int64(n))
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err.Error(), true, nil // of its disk
		}
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != f.ETag() {
		return fmt.Sprintf("its sum is %s, want %s", sum, f.ETag()), true, nil
	}
	return "", false, nil
}

// Remove takes a commit out (empty: the repository), with the contents that no other commit has. What is in use,
// or being fetched, is not removed: ErrInUse. Refs go first, contents last.
func (c *Cache) Remove(r Repo, commit string) error {
	if err := r.Check(); err != nil {
		return err
	}
	wrap := func(err error) error { return fmt.Errorf("remove %s: %w", r, err) }
	if _, err := c.root.Lstat(r.dir()); err != nil {
		return wrap(errors.Join(ErrAbsent, err))
	}
	l, err := c.unused(r)
	if err != nil {
		return wrap(err)
	}
	defer l.drop()
	commits := c.commits(r)
	if commit != "" && !slices.Contains(commits, commit) {
		return wrap(fmt.Errorf("commit %q: %w", commit, ErrAbsent))
	}
	if commit == "" || len(commits) == 1 {
		for _, d := range []string{"refs", "snapshots", ""} {
			if err := c.root.RemoveAll(path.Join(r.dir(), d)); err != nil {
				return wrap(err)
			}
		}
		return c.syncDir(".")
	}
	kept := map[string]bool{}
	for _, other := range commits {
		if other != commit {
			want, _ := c.wanted(r, other)
			for _, f := range slices.Concat(c.links(r, other), want) {
				kept[f.ETag()] = true
			}
		}
	}
	want, _ := c.wanted(r, commit)
	gone := slices.Concat(c.links(r, commit), want)
	for _, ref := range c.refs(r)[commit] {
		if err := c.root.Remove(path.Join(r.dir(), "refs", ref)); err != nil {
			return wrap(err)
		}
	}
	for _, p := range []string{"snapshots/" + commit, "trees/" + commit + ".json", ours + "/" + commit + ".manifest"} {
		if err := c.root.RemoveAll(path.Join(r.dir(), p)); err != nil {
			return wrap(err)
		}
	}
	for _, f := range gone {
		if etag := f.ETag(); etag != "" && !kept[etag] {
			for _, p := range []string{"blobs/" + etag, ours + "/" + etag + ".part", ours + "/" + etag + ".json",
				ours + "/" + etag + ".next", ours + "/" + etag + ".sums", ours + "/" + etag + ".wrong"} {
				if err := c.root.Remove(path.Join(r.dir(), p)); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return wrap(err)
				}
			}
		}
	}
	return nil
}
