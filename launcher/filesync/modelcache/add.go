package modelcache

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// AddOptions say how a folder is taken.
type AddOptions struct {
	Ref string // empty: main
	// As calls a func with the rights with which files are found and opened; nil: this process's.
	As func(func() error) error
}

// Add takes a folder's files as a commit of a repository, named by what is in it. They share their blocks where the
// file system can (reflink), else are copied. Links that lead out of the
// folder are refused: src is opened with the rights of whose folder it is, and so is each file, by AddOptions.As.
func (c *Cache) Add(ctx context.Context, src *os.Root, r Repo, o AddOptions) (Manifest, error) {
	m := Manifest{Repo: r, Ref: o.Ref, Added: time.Now().Round(0).UTC()}
	if m.Ref == "" {
		m.Ref = "main"
	}
	if o.As == nil {
		o.As = func(f func() error) error { return f() }
	}
	wrap := func(err error) (Manifest, error) { return m, fmt.Errorf("add %s: %w", r, err) }
	if err := r.Check(); err != nil {
		return m, err
	}
	var files []string
	var total int64
	err := o.As(func() (err error) {
		files, total, err = scan(src)
		return err
	})
	if err == nil && len(files) == 0 {
		err = errors.New("the folder has no files")
	}
	if err == nil {
		err = c.Room(total)
	}
	if err != nil {
		return wrap(err)
	}
	l, err := c.Hold(r)
	if err != nil {
		return wrap(err)
	}
	defer l.Drop()
	for _, dir := range []string{ours, "blobs"} {
		if err := c.mkdirs(path.Join(r.dir(), dir)); err != nil {
			return wrap(err)
		}
	}
	names := sha1.New()
	for _, p := range files {
		f, err := c.take1(ctx, src, p, r, o.As)
		if err != nil {
			return wrap(fmt.Errorf("file %s: %w", p, err))
		}
		fmt.Fprintf(names, "%s\x00%s\x00%d\x00", f.Path, f.SHA256, f.Size)
		m.Files = append(m.Files, f)
	}
	m.Commit = hex.EncodeToString(names.Sum(nil))
	_, err = c.Commit(m)
	return m, err
}

// scan lists a folder's files, without those of git and of huggingface_hub's downloads
// (utils/_paths.py, DEFAULT_IGNORE_PATTERNS).
func scan(src *os.Root) (files []string, total int64, err error) {
	err = fs.WalkDir(src.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || strings.HasSuffix("/"+p, "/.cache/huggingface")):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		st, err := src.Stat(p)
		if err != nil {
			return err
		}
		if !st.Mode().IsRegular() {
			return fmt.Errorf("file %s: want files, and links to files of the folder", p)
		}
		if err := (File{Path: p, SHA256: strings.Repeat("0", 64)}).check(); err != nil {
			return err
		}
		files, total = append(files, p), total+st.Size()
		return nil
	})
	return files, total, err
}

// take1 makes a blob of a file.
func (c *Cache) take1(ctx context.Context, src *os.Root, p string, r Repo, as func(func() error) error) (f File, err error) {
	var in *os.File
	err = as(func() (err error) {
		in, err = src.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return f, err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return f, errors.Join(fs.ErrInvalid, err)
	}
	tmp := path.Join(r.dir(), ours, addPrefix+rand.Text())
	defer c.root.Remove(tmp)
	out, shared, err := c.share(in, tmp)
	if err != nil {
		return f, err
	}
	defer out.Close()
	if !shared {
		if err := c.Room(st.Size()); err != nil {
			return f, err
		}
	}
	h, buf := sha256.New(), make([]byte, 4<<20)
	from := in
	if shared {
		from = out // what is kept is what is judged
	}
	for {
		if ctx.Err() != nil {
			return f, context.Cause(ctx)
		}
		n, err := from.Read(buf)
		h.Write(buf[:n])
		if n > 0 && !shared {
			if _, err := out.Write(buf[:n]); err != nil {
				if full(err) {
					err = fmt.Errorf("%w: %w", ErrRoom, err)
				}
				return f, err
			}
		}
		if f.Size += int64(n); f.Size > st.Size() {
			return f, fmt.Errorf("%w: it grows while it is read: whatever writes it must have ended", fs.ErrInvalid)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return f, err
		}
	}
	f.Path, f.SHA256 = p, hex.EncodeToString(h.Sum(nil))
	if err := errors.Join(c.own(out, c.cfg.FileMode), out.Sync()); err != nil {
		return f, err
	}
	dropCache(in, 0, 0)
	dropCache(out, 0, 0)
	if n, ok := c.blob(r, f.SHA256); ok && n == f.Size {
		return f, nil
	}
	return f, c.place(tmp, r, f.SHA256)
}

// addPrefix is that of files that are being added.
const addPrefix = "add-"

// Sweep removes what an Add has left that was killed. None may be under way.
func (c *Cache) Sweep() error {
	left, err := fs.Glob(c.root.FS(), path.Join("*", ours, addPrefix+"*"))
	for _, at := range left {
		err = errors.Join(err, c.root.Remove(at))
	}
	return err
}

// share makes a file that shares the blocks of another; false: it is empty, and to be copied into.
func (c *Cache) share(in *os.File, at string) (*os.File, bool, error) {
	f, err := c.root.OpenFile(at, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, false, err
	}
	return f, unix.IoctlFileClone(int(f.Fd()), int(in.Fd())) == nil, nil
}
