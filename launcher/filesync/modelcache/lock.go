package modelcache

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lock is a file of .locks that is held.
type lock struct {
	c    *Cache
	f    *os.File
	soft string // the file that is itself the lock
}

// errNoFlock says that the file system has no flock.
var errNoFlock = errors.New("the file system has no flock")

// take locks a file as flock(2) says; ErrBusy: another has it. Whoever waits for a lock whose file is removed
// would hold nothing: so it is looked at again.
func (c *Cache) take(at string, how int) (*lock, error) {
	if err := c.mkdirs(path.Dir(at)); err != nil {
		return nil, err
	}
	for {
		const flags = os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK
		f, err := c.root.OpenFile(at, flags, 0)
		made := errors.Is(err, fs.ErrNotExist)
		if made {
			if f, err = c.root.OpenFile(at, flags|os.O_CREATE|os.O_EXCL, 0o600); errors.Is(err, fs.ErrExist) {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		mine, err := f.Stat()
		switch {
		case err != nil:
		case made && !c.cfg.Private:
			err = c.own(f, 0o664) // as WeakFileLock's: users of one group share a cache
		case c.cfg.Private && mine.Mode().Perm() != 0o600: // made by another tool
			err = c.own(f, 0o600)
		}
		if err == nil {
			err = c.flock(int(f.Fd()), how)
		}
		switch {
		case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EACCES):
			err = ErrBusy
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOLCK):
			if err = errNoFlock; made {
				c.root.Remove(at)
			}
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		if now, err := c.root.Lstat(at); err == nil && os.SameFile(mine, now) {
			return &lock{c: c, f: f}, nil
		}
		f.Close()
	}
}

// takeBlob locks a blob as huggingface_hub does (file_download.py; utils/_fixes.py, WeakFileLock): by flock,
// else by the file's being there (the filelock package's SoftFileLock).
func (c *Cache) takeBlob(r Repo, etag string) (*lock, error) {
	at := path.Join(".locks", r.dir(), etag+".lock")
	l, err := c.take(at, unix.LOCK_EX|unix.LOCK_NB)
	if !errors.Is(err, errNoFlock) {
		return l, err
	}
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL | unix.O_NOFOLLOW
	f, err := c.root.OpenFile(at, flags, 0o644)
	if errors.Is(err, fs.ErrExist) && c.breakStale(at) {
		f, err = c.root.OpenFile(at, flags, 0o644)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil, ErrBusy
	}
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	if _, err := fmt.Fprintf(f, "%d\n%s\n", os.Getpid(), host); err != nil {
		f.Close()
		c.root.Remove(at)
		return nil, err
	}
	return &lock{c: c, f: f, soft: at}, nil
}

// breakStale removes a soft lock whose process, by its own word, was one of this machine and is gone.
func (c *Cache) breakStale(at string) bool {
	stale := func(at string) bool {
		text, err := c.read(at, 4096)
		lines := strings.Split(string(text), "\n")
		if err != nil || len(lines) < 2 {
			return false
		}
		pid, err := strconv.Atoi(lines[0])
		host, _ := os.Hostname()
		return err == nil && pid > 0 && lines[1] == host && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
	}
	if !stale(at) {
		return false
	}
	aside := at + "." + rand.Text() // another may have broken it, and locked, since it was read
	if c.root.Rename(at, aside) != nil {
		return false
	}
	defer c.root.Remove(aside)
	if !stale(aside) {
		_ = c.root.Link(aside, at)
		return false
	}
	return true
}

// drop unlocks. The file of a flock stays, as filelock leaves it.
func (l *lock) drop() {
	if l == nil {
		return
	}
	if l.soft != "" {
		l.c.root.Remove(l.soft)
	}
	l.f.Close()
}

// Lease says that a repository is in use.
type Lease struct{ lock *lock }

// Hold keeps a repository from being removed until the lease is dropped, or until the last process that has
// its file is gone. It waits for a removal under way: so hold first, then look what is there.
func (c *Cache) Hold(r Repo) (*Lease, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	l, err := c.take(leaseOf(r), unix.LOCK_SH|unix.LOCK_NB)
	for end := time.Now().Add(holdWithin); errors.Is(err, ErrBusy) && time.Now().Before(end); {
		time.Sleep(holdAgain)
		l, err = c.take(leaseOf(r), unix.LOCK_SH|unix.LOCK_NB)
	}
	if err != nil && !errors.Is(err, errNoFlock) {
		return nil, fmt.Errorf("hold %s: %w", r, err)
	}
	if l != nil {
		var now unix.Timeval
		_ = unix.Gettimeofday(&now)
		_ = unix.Futimes(int(l.f.Fd()), []unix.Timeval{now, now}) // when it was last used: a nicety
	}
	return &Lease{lock: l}, nil
}

// A removal may take its time; another program that has the lease may never let it go.
const (
	holdWithin = 20 * time.Second
	holdAgain  = 20 * time.Millisecond
)

// inUse looks without making anything.
func (c *Cache) inUse(r Repo) bool {
	f, err := c.root.OpenFile(leaseOf(r), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(c.flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// File is what a job's process inherits, so that it holds the lease itself; nil where the file system has no
// flock.
func (l *Lease) File() *os.File {
	if l.lock == nil {
		return nil
	}
	return l.lock.f
}

// Drop ends it.
func (l *Lease) Drop() { l.lock.drop(); l.lock = nil }

func leaseOf(r Repo) string { return path.Join(".locks", r.dir(), "sparkrun.lease") }

// unused locks a repository against all use; ErrInUse: there is some. Other tools' downloads have locks of
// their own.
func (c *Cache) unused(r Repo) (*lock, error) {
	l, err := c.take(leaseOf(r), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, ErrBusy) {
		return nil, fmt.Errorf("%w by a job or a download of this machine", ErrInUse)
	}
	if errors.Is(err, errNoFlock) {
		return nil, fmt.Errorf("%w, so it cannot be told whether %s is in use: remove its folder by hand", errNoFlock, r)
	}
	if err != nil {
		return nil, err
	}
	locks, _ := fs.ReadDir(c.root.FS(), path.Join(".locks", r.dir()))
	for _, e := range locks {
		if !strings.HasSuffix(e.Name(), ".lock") {
			continue
		}
		other, err := c.take(path.Join(".locks", r.dir(), e.Name()), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			l.drop()
			return nil, fmt.Errorf("%w: a download holds %s", ErrInUse, e.Name())
		}
		other.drop()
	}
	return l, nil
}
