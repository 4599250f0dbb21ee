package modelcache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// CopyTo puts a commit that is whole here into another cache, and gives its folder there. It reads and writes with the
// rights of whoever calls it, in one thread: a user's folder is written to as that user, wherever its links lead. Files
// share their blocks where the file system can; what is copied is judged by its sum.
func (c *Cache) CopyTo(ctx context.Context, to Config, m Manifest) (string, error) {
	wrap := func(err error) (string, error) { return "", fmt.Errorf("copy %s to %s: %w", m.Repo, to.Dir, err) }
	dst, err := Open(to)
	if err != nil {
		return wrap(err)
	}
	defer dst.Close()
	l, err := dst.Hold(m.Repo)
	if err != nil {
		return wrap(err)
	}
	defer l.Drop()
	missing, err := dst.Missing(m)
	if err != nil {
		return wrap(err)
	}
	for _, dir := range []string{ours, "blobs", "snapshots"} {
		if err := dst.mkdirs(path.Join(m.Repo.dir(), dir)); err != nil {
			return wrap(err)
		}
	}
	for _, f := range missing {
		for {
			err := c.copy1(ctx, dst, m.Repo, f)
			if err == nil {
				break
			}
			if !errors.Is(err, ErrBusy) {
				return wrap(fmt.Errorf("file %s: %w", f.Path, err))
			}
			select { // huggingface_hub, or another machine with the same home
			case <-time.After(time.Second):
			case <-ctx.Done():
				return wrap(context.Cause(ctx))
			}
		}
	}
	dir, err := dst.Commit(m)
	if err != nil {
		return wrap(err)
	}
	return dir, nil
}

func (c *Cache) copy1(ctx context.Context, dst *Cache, r Repo, f File) error {
	at := path.Join(r.dir(), "blobs", f.ETag())
	lock, err := dst.takeBlob(r, f.ETag())
	if err != nil {
		return err
	}
	defer lock.drop()
	if n, ok := dst.blob(r, f.ETag()); ok && n == f.Size {
		return nil
	}
	in, err := c.root.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := path.Join(r.dir(), ours, "copy-"+f.ETag()) // the lock's holder alone has it
	if err := dst.root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer dst.root.Remove(tmp)
	out, shared, err := dst.share(in, tmp)
	if err != nil {
		return err
	}
	defer out.Close()
	if !shared {
		if err := dst.Room(f.Size); err != nil {
			return err
		}
		if err := judgedCopy(ctx, out, in, f); err != nil {
			return err
		}
	}
	if err := errors.Join(dst.own(out, dst.cfg.FileMode), out.Sync()); err != nil {
		return err
	}
	dropCache(in, 0, 0)
	dropCache(out, 0, 0)
	return dst.place(tmp, r, f.ETag())
}

func judgedCopy(ctx context.Context, out io.Writer, in *os.File, f File) error {
	h, buf := newHash(f), make([]byte, 4<<20)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := in.Read(buf)
		h.Write(buf[:n])
		if _, werr := out.Write(buf[:n]); werr != nil {
			if full(werr) {
				werr = fmt.Errorf("%w: %w", ErrRoom, werr)
			}
			return werr
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != f.ETag() {
		return fmt.Errorf("%w: its sum is %s, want %s: sparkrun model verify", ErrSum, sum, f.ETag())
	}
	return nil
}
