package modelcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Place makes the folder of a cache that a whole machine is to trust, and refuses one that others than this process's
// user could change or replace, or whose file system lacks what a cache needs: flock, links and renames.
func Place(dir string) error {
	wrap := func(err error) error { return fmt.Errorf("keep models in %s: %w", dir, err) }
	if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
		return wrap(errors.New("want the full path of a folder of its own"))
	}
	if err := trusted(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wrap(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return wrap(err)
	}
	if err := trusted(dir); err != nil {
		return wrap(err)
	}
	if err := able(dir, unix.Flock); err != nil {
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("%w: on NFS, root may write if it is exported with no_root_squash", err)
		}
		return wrap(err)
	}
	return nil
}

// trusted looks at a folder and at all above it: whoever may rename one of them decides what is in the last.
func trusted(dir string) error {
	for at := "/"; ; {
		st, err := os.Lstat(at)
		if err != nil {
			return err
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		sticky := at != dir && st.Mode()&fs.ModeSticky != 0 // in it, only owners rename
		switch {
		case st.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(at)
			return fmt.Errorf("%s is a link to %s: name the folder itself", at, to)
		case !st.IsDir():
			return fmt.Errorf("%s is no folder", at)
		case ok && sys.Uid != 0 && int(sys.Uid) != os.Geteuid():
			return fmt.Errorf("%s belongs to uid %d, who could put another in its place: sudo chown root %[1]s", at, sys.Uid)
		case st.Mode().Perm()&0o022 != 0 && !sticky:
			return fmt.Errorf("users other than root may write in %s: sudo chmod go-w %[1]s", at)
		}
		if at == dir {
			return nil
		}
		next, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(dir, at), "/"), "/")
		at = path.Join(at, next)
	}
}

// able tries what a cache does.
func able(dir string, flock func(fd, how int) error) error {
	d, err := os.MkdirTemp(dir, ".sparkrun-probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(d)
	at := path.Join(d, "a")
	f, err := os.Create(at)
	if err != nil {
		return err
	}
	defer f.Close()
	again, err := os.Open(at)
	if err != nil {
		return err
	}
	defer again.Close()
	if err := flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("its file system has no flock, by which programs see each other's downloads: %w", err)
	}
	if err := flock(int(again.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return errors.New("its file system gives one lock twice: programs would not see each other's downloads")
	}
	if err := os.Symlink("a", at+".link"); err != nil {
		return fmt.Errorf("its file system has no links, of which a snapshot is made: %w", err)
	}
	if err := os.Rename(at, at+".link"); err != nil {
		return fmt.Errorf("its file system replaces no file by another: %w", err)
	}
	return nil
}
