package filesync

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// Source is a file or folder to stage, and its destination.
type Source struct {
	Src string // as typed
	Dst string // relative to the job's folder; "." merges a folder with it
}

// ParseSource reads SRC[:DST]; `\:` is a colon in a name. A relative SRC that leads down
// keeps its path, so that commands find it under the name that was typed; any other gets
// its last name.
func ParseSource(text string) (Source, error) {
	src, dst, given := cut(text)
	switch {
	case src == "" || given && dst == "":
		return Source{}, fmt.Errorf("%w: want SRC or SRC:DST", launcher.ErrInvalid)
	case !given && filepath.IsLocal(src):
		dst = src
	case !given:
		abs, err := filepath.Abs(src)
		if err != nil {
			return Source{}, err
		}
		dst = filepath.Base(abs)
	}
	if !filepath.IsLocal(dst) {
		return Source{}, fmt.Errorf("%w: the destination %s leads out of the job's folder", launcher.ErrInvalid, dst)
	}
	return Source{Src: src, Dst: filepath.ToSlash(filepath.Clean(dst))}, nil
}

// cut splits at the first colon that is not escaped.
func cut(text string) (src, dst string, given bool) {
	name := func(s string) string { return strings.ReplaceAll(s, `\:`, ":") }
	for i := range len(text) {
		if text[i] == ':' && (i == 0 || text[i-1] != '\\') {
			return name(text[:i]), name(text[i+1:]), true
		}
	}
	return name(text), "", false
}

// Files is the result of Scan: the manifest, and where each content can be read.
type Files struct {
	Manifest Manifest
	paths    map[string]string // sum -> a file that has it
}

// Scan reads sources with the rights of this process, and hashes all content.
func Scan(sources []Source) (Files, error) {
	s := scan{entries: map[string]Entry{}, paths: map[string]string{}}
	for _, src := range sources {
		if err := s.add(src); err != nil {
			return Files{}, fmt.Errorf("stage %s: %w", src.Src, err)
		}
	}
	f := Files{paths: s.paths}
	for _, e := range s.entries {
		f.Manifest = append(f.Manifest, e)
	}
	slices.SortStableFunc(f.Manifest, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	if err := f.Manifest.Validate(); err != nil {
		return Files{}, fmt.Errorf("stage: %w", err)
	}
	return f, nil
}

// Open opens the content with that sum. It may have changed since: the receiver compares
// the sum.
func (f Files) Open(sum string) (*os.File, error) { return os.Open(f.paths[sum]) }

// Path is a file that has the content with that sum.
func (f Files) Path(sum string) string { return f.paths[sum] }

type scan struct {
	entries map[string]Entry
	paths   map[string]string
	bytes   int64
}

func (s *scan) add(src Source) error {
	fi, err := os.Stat(src.Src) // SRC itself may be a link
	if err != nil {
		return bare(err)
	}
	if src.Dst == "." && !fi.IsDir() {
		return fmt.Errorf("%w: it is not a folder: give its name in the destination", launcher.ErrInvalid)
	}
	for dir := path.Dir(src.Dst); dir != "."; dir = path.Dir(dir) {
		if e, there := s.entries[dir]; !there {
			s.entries[dir] = Entry{Path: dir, Mode: fs.ModeDir | 0o755}
		} else if !e.Mode.IsDir() {
			return fmt.Errorf("%w: %s has been staged as a file", launcher.ErrInvalid, dir)
		}
	}
	if !fi.IsDir() {
		real, err := filepath.EvalSymlinks(src.Src)
		if err != nil {
			return bare(err)
		}
		root, err := os.OpenRoot(filepath.Dir(real))
		if err != nil {
			return bare(err)
		}
		defer root.Close()
		return s.one(root, filepath.Base(real), src.Dst)
	}
	root, err := os.OpenRoot(src.Src)
	if err != nil {
		return bare(err)
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", name, bare(err))
		}
		if to := path.Join(src.Dst, name); to != "." {
			return s.one(root, name, to)
		}
		return nil
	})
}

// one adds a file, folder or link of root.
func (s *scan) one(root *os.Root, name, to string) error {
	fi, err := root.Lstat(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, bare(err))
	}
	e := Entry{Path: to, Mode: fi.Mode() & (fs.ModeType | fs.ModePerm)}
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		e.Link, err = root.Readlink(name)
	case fi.Mode().IsRegular():
		if s.bytes+fi.Size() <= launcher.MaxStagedBytes { // a larger one is refused without reading it
			e.Size, e.Sum, err = read(root, name)
		} else {
			e.Size, e.Sum = fi.Size(), sumOf(nil)
		}
		s.bytes += e.Size
		s.paths[e.Sum] = filepath.Join(root.Name(), name)
	}
	if err == nil {
		err = e.validate() // before the name changes
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, bare(err))
	}
	if had, there := s.entries[to]; there && (!had.Mode.IsDir() || !e.Mode.IsDir()) {
		return fmt.Errorf("%s: %w: something else is staged as %s too", name, launcher.ErrInvalid, to)
	}
	s.entries[to] = e
	switch {
	case len(s.entries) > MaxEntries:
		return fmt.Errorf("%w: more than %d files and folders: put them in an archive, or on shared storage",
			launcher.ErrInvalid, MaxEntries)
	case s.bytes > launcher.MaxStagedBytes:
		return fmt.Errorf("%s: %w: with it there are more than %d GiB: models and data sets belong on storage that "+
			"all machines share", name, launcher.ErrInvalid, launcher.MaxStagedBytes>>30)
	}
	return nil
}

func read(root *os.Root, name string) (size int64, sum string, err error) {
	f, err := root.Open(name)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return size, hex.EncodeToString(h.Sum(nil)), err
}

// bare is the reason without the path, which the caller names.
func bare(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
