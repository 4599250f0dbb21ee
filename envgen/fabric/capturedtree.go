package fabric

import (
	"io/fs"
	"path"
	"slices"
	"syscall"
	"time"
)

// Tree is a captured part of sysfs. It has only the paths that were read.
type Tree struct {
	files    map[string][]byte
	symlinks map[string]string   // path -> target
	folders  map[string][]string // path -> names
}

func newTree() *Tree {
	return &Tree{files: map[string][]byte{}, symlinks: map[string]string{}, folders: map[string][]string{}}
}

var _ interface {
	fs.ReadFileFS
	fs.ReadDirFS
	fs.ReadLinkFS
} = (*Tree)(nil)

// Open implements fs.FS. A tree's files have no more than their content: read them with
// ReadFile.
func (t *Tree) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTSUP}
}

// ReadFile implements fs.ReadFileFS.
func (t *Tree) ReadFile(name string) ([]byte, error) {
	if content, ok := t.files[name]; ok {
		return slices.Clone(content), nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// ReadDir implements fs.ReadDirFS.
func (t *Tree) ReadDir(name string) ([]fs.DirEntry, error) {
	names, ok := t.folders[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	entries := make([]fs.DirEntry, 0, len(names))
	for _, child := range names {
		entries = append(entries, fs.FileInfoToDirEntry(t.info(path.Join(name, child))))
	}
	return entries, nil
}

// ReadLink implements fs.ReadLinkFS.
func (t *Tree) ReadLink(name string) (string, error) {
	if target, ok := t.symlinks[name]; ok {
		return target, nil
	}
	return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrNotExist}
}

// Lstat implements fs.ReadLinkFS.
func (t *Tree) Lstat(name string) (fs.FileInfo, error) {
	_, file := t.files[name]
	_, link := t.symlinks[name]
	_, folder := t.folders[name]
	if !file && !link && !folder {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: fs.ErrNotExist}
	}
	return t.info(name), nil
}

func (t *Tree) info(name string) treeInfo {
	i := treeInfo{name: path.Base(name), size: int64(len(t.files[name]))}
	_, link := t.symlinks[name]
	_, folder := t.folders[name]
	switch {
	case link:
		i.mode = fs.ModeSymlink | 0o777
	case folder:
		i.mode = fs.ModeDir | 0o755
	default:
		i.mode = 0o444
	}
	return i
}

// treeInfo is what a captured tree knows about a name.
type treeInfo struct {
	name string
	size int64
	mode fs.FileMode
}

func (i treeInfo) Name() string       { return i.name }
func (i treeInfo) Size() int64        { return i.size }
func (i treeInfo) Mode() fs.FileMode  { return i.mode }
func (i treeInfo) ModTime() time.Time { return time.Time{} }
func (i treeInfo) IsDir() bool        { return i.mode.IsDir() }
func (i treeInfo) Sys() any           { return nil }
