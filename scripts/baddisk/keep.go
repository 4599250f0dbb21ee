package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// keeper has two trees: what processes see, and what a power failure leaves. An
// fsync of a file keeps its content and its name; one of a folder keeps which
// names are in it, files that were never fsynced being empty. That is what ext4,
// xfs and btrfs promise; renames and removals wait for the folder's.
type keeper struct {
	shown, kept string

	mu sync.Mutex
	// at says under which name a file or folder that is shown is kept, by its inode
	// number; dirty, which parts of it have been written since it was fsynced.
	at    map[uint64]string
	dirty map[uint64][]span
}

type span struct{ off, size int64 }

const whole = 1 << 40 // more than there is

// newKeeper shows what is kept.
func newKeeper(shown, kept string) (*keeper, error) {
	k := &keeper{shown: shown, kept: kept, at: map[uint64]string{}, dirty: map[uint64][]span{}}
	if err := os.CopyFS(shown, os.DirFS(kept)); err != nil {
		return nil, fmt.Errorf("copy what is kept: %w", err)
	}
	err := filepath.Walk(shown, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == shown {
			return err
		}
		name, err := filepath.Rel(shown, path)
		if err != nil {
			return err
		}
		k.at[inode(info)] = name
		was, err := os.Stat(filepath.Join(kept, name)) // CopyFS keeps no modes
		if err != nil {
			return err
		}
		return os.Chmod(path, was.Mode())
	})
	return k, err
}

func inode(info os.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }

// wrote notes what of a file is not kept yet; its size never is.
func (k *keeper) wrote(name string, off, size int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if info, err := os.Lstat(filepath.Join(k.shown, name)); err == nil {
		k.dirty[inode(info)] = append(k.dirty[inode(info)], span{off, size})
	}
}

// unlinks forgets who has that name: the number may become another's.
func (k *keeper) unlinks(folder, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if info, err := os.Lstat(filepath.Join(k.shown, folder, name)); err == nil {
		delete(k.at, inode(info))
		delete(k.dirty, inode(info))
	}
}

// sync keeps a file or a folder.
func (k *keeper) sync(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Lstat(filepath.Join(k.shown, name))
	switch {
	case os.IsNotExist(err): // open, and has no name any more
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return k.syncFolder(name)
	}
	return k.syncFile(name, info)
}

func (k *keeper) syncFile(name string, info os.FileInfo) error {
	if err := k.keepName(name, info); err != nil {
		return err
	}
	from, err := os.Open(filepath.Join(k.shown, name))
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(k.kept, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, s := range k.dirty[inode(info)] {
		if _, err := io.Copy(io.NewOffsetWriter(to, s.off), io.NewSectionReader(from, s.off, s.size)); err != nil {
			return err
		}
	}
	delete(k.dirty, inode(info))
	return to.Truncate(info.Size())
}

func (k *keeper) syncFolder(name string) error {
	entries, err := os.ReadDir(filepath.Join(k.shown, name))
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Name()] = true
		info, err := e.Info()
		if err == nil {
			err = k.keepName(filepath.Join(name, e.Name()), info)
		}
		if err != nil && !os.IsNotExist(err) { // it has just gone
			return err
		}
	}
	entries, err = os.ReadDir(filepath.Join(k.kept, name))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !there[e.Name()] {
			if err := k.lose(filepath.Join(name, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepName has a file or folder kept under the name that it has now, and the
// folders above it.
func (k *keeper) keepName(name string, info os.FileInfo) error {
	if name == "" || name == "." {
		return nil
	}
	above := filepath.Dir(name)
	if up, err := os.Lstat(filepath.Join(k.shown, above)); err != nil {
		return err
	} else if err := k.keepName(above, up); err != nil {
		return err
	}
	was, known := k.at[inode(info)]
	if known && was == name {
		return nil
	}
	path := filepath.Join(k.kept, name)
	if err := k.lose(name); err != nil {
		return err
	}
	k.at[inode(info)] = name
	switch {
	case known:
		for ino, at := range k.at {
			if inside, ok := strings.CutPrefix(at, was+"/"); ok {
				k.at[ino] = name + "/" + inside
			}
		}
		return os.Rename(filepath.Join(k.kept, was), path)
	case info.IsDir():
		return os.Mkdir(path, info.Mode().Perm())
	}
	k.dirty[inode(info)] = []span{{0, info.Size()}}
	return os.WriteFile(path, nil, info.Mode().Perm())
}

// lose removes what is kept under a name, and below it.
func (k *keeper) lose(name string) error {
	for ino, at := range k.at {
		if at == name || strings.HasPrefix(at, name+"/") {
			delete(k.at, ino)
		}
	}
	return os.RemoveAll(filepath.Join(k.kept, name))
}
