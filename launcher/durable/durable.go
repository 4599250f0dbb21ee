// Package durable decides how a file is replaced: whole, so that after a crash, on a full
// disk, or for a concurrent reader there is the old content or the new, never half of one.
//
// It must not know what is in a file, make folders, or choose who may write where.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Write replaces a file. When it returns nil the new content survives a power cut.
func Write(path string, content []byte, mode fs.FileMode) error {
	return replace(path, content, mode, true, os.Rename)
}

// Create is Write for a file that must not exist; an existing one is left alone, and the
// error wraps fs.ErrExist.
func Create(path string, content []byte, mode fs.FileMode) error {
	return replace(path, content, mode, true, os.Link)
}

// Swap is Write without waiting for the disk: for files that may be lost in a power cut,
// such as those in /run.
func Swap(path string, content []byte, mode fs.FileMode) error {
	return replace(path, content, mode, false, os.Rename)
}

// replace writes to a temporary file beside path, as several processes may write at once. Its name is hidden, for the
// sake of programs that read a whole folder.
func replace(path string, content []byte, mode fs.FileMode, sync bool, move func(from, to string) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+infix+"*") // 0600 from its first moment
	if err != nil {
		return err
	}
	sweep(dir)
	defer os.Remove(f.Name()) // where it has not become path
	_, err = f.Write(content)
	if err == nil && mode != 0o600 {
		err = f.Chmod(mode)
	}
	if err == nil && sync {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := move(f.Name(), path); err != nil || !sync {
		return err
	}
	return SyncDir(dir)
}

// infix stands between the name of a file that is to be replaced and a number.
const infix = ".new-"

// leftover is the age from which such a file was left by a crash, and is not a write under way elsewhere.
const leftover = 10 * time.Minute

// sweep removes them, whichever file they were to become: that one may never be written again.
func sweep(dir string) {
	names, _ := os.ReadDir(dir)
	for _, e := range names {
		of, number, _ := strings.Cut(e.Name(), infix)
		if _, err := strconv.ParseUint(number, 10, 32); err != nil || !strings.HasPrefix(of, ".") {
			continue
		}
		if st, err := e.Info(); err == nil && time.Since(st.ModTime()) > leftover {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// SyncDir makes new, changed and removed names in a folder survive a power cut.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
