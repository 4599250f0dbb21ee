package modelcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// Blob is a whole file's content, to be handed on. Until it is closed its repository is not removed.
type Blob struct {
	file  File
	f     *os.File
	lease *Lease
	sums  []byte
}

// OpenBlob opens what Missing does not list.
func (c *Cache) OpenBlob(r Repo, f File) (*Blob, error) {
	if err := errors.Join(r.Check(), f.check()); err != nil {
		return nil, err
	}
	wrap := func(err error) error { return fmt.Errorf("open %s of %s: %w", f.Path, r, err) }
	if n, ok := c.blob(r, f.ETag()); !ok || n != f.Size { // before a lease makes folders
		return nil, wrap(ErrAbsent)
	}
	l, err := c.Hold(r)
	if err != nil {
		return nil, err
	}
	in, err := c.root.OpenFile(path.Join(r.dir(), "blobs", f.ETag()), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrAbsent
	}
	if err == nil {
		st, serr := in.Stat()
		if err = serr; err == nil && (!st.Mode().IsRegular() || st.Size() != f.Size) {
			err = ErrAbsent
		}
	}
	if err != nil {
		in.Close() // nil does not mind
		l.Drop()
		return nil, wrap(err)
	}
	b := &Blob{file: f, f: in, lease: l}
	sums, err := c.read(path.Join(r.dir(), ours, f.ETag()+".sums"), 64<<20)
	if err == nil && int64(len(sums)) == 32*chunksOf(f.Size) {
		b.sums = sums
	}
	return b, nil
}

// ReadAt reads.
func (b *Blob) ReadAt(p []byte, off int64) (int, error) { return b.f.ReadAt(p, off) }

// Drop gives back the memory of what has been read.
func (b *Blob) Drop(off, n int64) { dropCache(b.f, off, n) }

// Sum is a chunk's, as it was when the file was fetched; false: another tool has fetched it, so whoever reads the
// chunk has to make its sum.
func (b *Blob) Sum(i int) (Sum, bool) {
	if i < 0 || len(b.sums) < 32*(i+1) {
		return Sum{}, false
	}
	return Sum(b.sums[32*i:]), true
}

// Close lets it go.
func (b *Blob) Close() error {
	b.lease.Drop()
	return b.f.Close()
}

// blob is the size of a whole blob; false: there is none, or it was found to be wrong.
func (c *Cache) blob(r Repo, etag string) (int64, bool) {
	if c.isWrong(r, etag) {
		return 0, false
	}
	st, err := c.root.Stat(path.Join(r.dir(), "blobs", etag))
	if err != nil || !st.Mode().IsRegular() {
		return 0, false
	}
	return st.Size(), true
}

// Missing lists the files whose content is not there, each content once.
func (c *Cache) Missing(m Manifest) ([]File, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	var missing []File
	seen := map[string]bool{}
	for _, f := range m.Files {
		if n, ok := c.blob(m.Repo, f.ETag()); (!ok || n != f.Size) && !seen[f.ETag()] {
			seen[f.ETag()] = true
			missing = append(missing, f)
		}
	}
	return missing, nil
}

// A content that Verify has found wrong has a mark beside it. It stays where it is for whoever reads it, and counts as
// missing until another takes its place.
func wrongMark(r Repo, etag string) string { return path.Join(r.dir(), ours, etag+".wrong") }

func (c *Cache) isWrong(r Repo, etag string) bool {
	_, err := c.root.Lstat(wrongMark(r, etag))
	return err == nil
}

func (c *Cache) mark(r Repo, etag string) error {
	if err := c.mkdirs(path.Join(r.dir(), ours)); err != nil {
		return err
	}
	return c.write(wrongMark(r, etag), nil, true)
}

func (c *Cache) unmark(r Repo, etag string) error {
	if err := c.root.Remove(wrongMark(r, etag)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// place makes a file that has been judged the blob of a content.
func (c *Cache) place(from string, r Repo, etag string) error {
	blobs := path.Join(r.dir(), "blobs")
	if err := c.root.Rename(from, path.Join(blobs, etag)); err != nil {
		return err
	}
	if err := c.syncDir(blobs); err != nil {
		return err
	}
	return c.unmark(r, etag)
}
