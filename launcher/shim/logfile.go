package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// logParts is the most files that a stream's output is kept in.
	logParts = 8
	// DefaultMaxOutput bounds what is kept of one stream of one rank, in bytes.
	DefaultMaxOutput = 1 << 30
	// minPart keeps a small bound from making a file of each line.
	minPart = 64 << 10
	// After spaceEvery bytes the file system is asked for its free space.
	spaceEvery = 1 << 20
)

// errReserve: the file system has space left, but it is reserved.
var errReserve = errors.New("the disk is nearly full, and the rest of it is kept for the machine")

// logFile keeps one stream in parts: rank-N.out, then rank-N.out.OFFSET, named by the
// stream's bytes before it. Of more than logParts the first is kept, and the latest: how it
// began, and how it ended. Those between are removed.
type logFile struct {
	path    string
	part    int64 // most bytes of one part
	f       *os.File
	base    int64   // of f's first byte
	size    int64   // of f
	later   []int64 // bases of the parts after the first, oldest first
	unasked int64   // bytes written since the free space was checked
	times   stamper
}

// openOutput opens a rank's file for appending. A link is refused: the folder may have been
// made by another user.
func openOutput(dir string, rank int, stream string, most int64) (*logFile, error) {
	l := &logFile{path: filepath.Join(dir, fmt.Sprintf("rank-%d.%s", rank, stream)), part: max(most/logParts, minPart),
		unasked: spaceEvery}
	if err := l.open(l.path); err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	l.times.path = l.path
	return l, nil
}

// goOn continues the stream where an earlier incarnation of the rank has left it.
func (l *logFile) goOn() error {
	names, err := os.ReadDir(filepath.Dir(l.path))
	if err != nil {
		return err
	}
	for _, e := range names {
		if of, base, ok := ParsePart(filepath.Join(filepath.Dir(l.path), e.Name())); ok && of == l.path && base > 0 {
			l.later = append(l.later, base)
		}
	}
	if len(l.later) > 0 {
		slices.Sort(l.later)
		l.base = l.later[len(l.later)-1]
		if err := l.open(PartName(l.path, l.base)); err != nil {
			return err
		}
	}
	l.times.goOn()
	return nil
}

func (l *logFile) open(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	if l.f != nil {
		l.f.Close()
	}
	l.f, l.size = f, st.Size()
	return nil
}

// end is how many bytes the stream has, those of removed parts included.
func (l *logFile) end() int64 { return l.base + l.size }

// Write appends b, or as much of it as there is space for.
func (l *logFile) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		var w int
		w, err = l.write(b)
		n, b = n+w, b[w:]
	}
	return n, err
}

func (l *logFile) write(b []byte) (int, error) {
	if l.size >= l.part {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	if l.unasked >= spaceEvery {
		if err := l.hasRoom(); err != nil {
			return 0, err
		}
		l.unasked = 0
	}
	l.times.mark(time.Now(), l.end()) // first, so that a reader of the bytes finds their time
	n, err := l.f.Write(b[:min(int64(len(b)), l.part-l.size)])
	l.size += int64(n)
	l.unasked += int64(n)
	return n, err
}

// rotate begins the next part, and removes the second one if there are too many.
func (l *logFile) rotate() error {
	base := l.end()
	if err := l.open(PartName(l.path, base)); err != nil {
		return err
	}
	l.base = base
	l.later = append(l.later, base)
	if len(l.later) < logParts {
		return nil
	}
	old := l.later[0]
	l.later = l.later[1:]
	_ = os.Remove(PartName(l.path, old)) // already removed: no reason to lose more
	return nil
}

func (l *logFile) hasRoom() error {
	var st unix.Statfs_t
	err := unix.Fstatfs(int(l.f.Fd()), &st) // if this fails, a write reports a full disk
	if err == nil && int64(st.Bavail)*st.Bsize < ReservedBytes(int64(st.Blocks)*st.Bsize) {
		return errReserve
	}
	return nil
}

func (l *logFile) Close() error { return l.f.Close() }

// ReservedBytes is what output leaves free of a file system of that size: space for all
// others that keep state there, such as the agent's raft.
func ReservedBytes(total int64) int64 { return min(64<<20, total/20) }

// PartName is the file with a stream from the byte base on.
func PartName(path string, base int64) string {
	if base == 0 {
		return path
	}
	return path + "." + strconv.FormatInt(base, 10)
}

// ParsePart splits such a name; ok is false for any other file.
func ParsePart(name string) (path string, base int64, ok bool) {
	ext := filepath.Ext(name)
	if ext == ".out" || ext == ".err" {
		return name, 0, true
	}
	path = strings.TrimSuffix(name, ext)
	base, err := strconv.ParseInt(strings.TrimPrefix(ext, "."), 10, 64)
	inner := filepath.Ext(path)
	return path, base, err == nil && base > 0 && (inner == ".out" || inner == ".err")
}
