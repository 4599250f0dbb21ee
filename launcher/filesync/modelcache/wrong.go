package modelcache

import (
	"errors"
	"io/fs"
	"path"
)

// A content that Verify has found wrong has a mark beside it. It stays where it is for whoever reads it, and counts as
// missing until another takes its place.
func wrongMark(r Repo, etag string) string { return path.Join(r.dir(), ours, etag+".wrong") }

func (c *Cache) isWrong(r Repo, etag string) bool {
	_, err := c.root.Lstat(wrongMark(r, etag))
	return err == nil
}

// mark keeps the judgement of a content that is there.
func (c *Cache) mark(r Repo, f File, why string) error {
	n, is := c.blob(r, f.ETag())
	switch {
	case why == "":
		return c.unmark(r, f.ETag())
	case !is || n != f.Size: // missing in any case
		return nil
	}
	if err := c.mkdirs(path.Join(r.dir(), ours)); err != nil {
		return err
	}
	return c.write(wrongMark(r, f.ETag()), nil, true)
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
