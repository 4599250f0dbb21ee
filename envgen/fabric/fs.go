package fabric

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// dirFS is the tree below a directory. It is used in place of os.DirFS only for speed: a sysfs file is small and
// its stated size is meaningless, so that open, one read and close are enough, half the system calls. A GID table
// has 256 rows for each device and is read every few seconds.
type dirFS string

var _ interface {
	fs.ReadFileFS
	fs.ReadDirFS
	fs.ReadLinkFS
} = dirFS("")

func (d dirFS) path(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return string(d) + "/" + name, nil
}

// Open implements fs.FS.
func (d dirFS) Open(name string) (fs.File, error) {
	full, err := d.path("open", name)
	if err != nil {
		return nil, err
	}
	return os.Open(full)
}

// ReadFile returns the first 4096 bytes: sysfs gives no more than a page.
func (d dirFS) ReadFile(name string) ([]byte, error) {
	full, err := d.path("open", name)
	if err != nil {
		return nil, err
	}
	return readAt(unix.AT_FDCWD, full)
}

// readAt reads a file named relative to an open folder.
func readAt(folder int, name string) ([]byte, error) {
	fd, err := ignoreEINTR(func() (int, error) { return unix.Openat(folder, name, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var page [4096]byte
	n, err := ignoreEINTR(func() (int, error) { return unix.Read(fd, page[:]) })
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return slices.Clone(page[:n]), nil
}

// openFolder gives a reader of the files of one folder, which avoids walking the whole path for each of them: a
// third of the time of a full read. close must be called.
func (d dirFS) openFolder(name string) (read func(file string) ([]byte, error), close func(), err error) {
	full, err := d.path("open", name)
	if err != nil {
		return nil, nil, err
	}
	fd, err := ignoreEINTR(func() (int, error) {
		return unix.Open(full, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, nil, &fs.PathError{Op: "open", Path: full, Err: err}
	}
	return func(file string) ([]byte, error) { return readAt(fd, file) }, func() { unix.Close(fd) }, nil
}

// ReadDir implements fs.ReadDirFS.
func (d dirFS) ReadDir(name string) ([]fs.DirEntry, error) {
	full, err := d.path("open", name)
	if err != nil {
		return nil, err
	}
	return os.ReadDir(full)
}

// ReadLink implements fs.ReadLinkFS.
func (d dirFS) ReadLink(name string) (string, error) {
	full, err := d.path("readlink", name)
	if err != nil {
		return "", err
	}
	return os.Readlink(full)
}

// Lstat implements fs.ReadLinkFS.
func (d dirFS) Lstat(name string) (fs.FileInfo, error) {
	full, err := d.path("lstat", name)
	if err != nil {
		return nil, err
	}
	return os.Lstat(filepath.Clean(full))
}

func ignoreEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
