package logs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// tail is one stream of a rank, in the parts that the shim keeps, and how far it has been
// read.
type tail struct {
	path  string // of its first part
	at    launcher.Cursor
	dirty bool // may have more

	listed []int64 // bases, as the reader has just listed them; nil: find lists them itself
	found  bool    // base is that of the part to read
	base   int64   // the stream's bytes before that part
	newest int64   // the highest base that was seen

	times  bool // report times
	stamps []shim.Stamp
}

// read passes on one chunk, and leaves the stream dirty if there is more.
func (f *tail) read(buf []byte, fn func(launcher.Chunk) error) error {
	if !f.found {
		if dropped := f.find(); dropped > 0 {
			return fn(launcher.Chunk{Rank: f.at.Rank, Stream: f.at.Stream, Offset: f.at.Offset,
				Note: fmt.Sprintf("rank %d: %s of its std%s were not kept (--max-output)", f.at.Rank,
					launcher.Size(dropped), f.at.Stream)})
		}
	}
	n, err := f.readPart(buf)
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.base == 0:
		f.dirty = false // the rank has not started, or never will
		return nil
	case errors.Is(err, fs.ErrNotExist):
		f.found = false // removed by the shim meanwhile
		return nil
	case err != nil && err != io.EOF:
		return fmt.Errorf("read output of rank %d: %w", f.at.Rank, err)
	}
	f.dirty = err == nil
	next := f.at.Offset + int64(n)
	if err == io.EOF && (f.newest > f.base || next > f.base && exists(shim.PartName(f.path, next))) {
		f.found, f.dirty = false, true // this part is complete
	}
	if n == 0 {
		return nil
	}
	c := launcher.Chunk{Rank: f.at.Rank, Stream: f.at.Stream, Offset: f.at.Offset, Data: buf[:n]}
	if f.times {
		// Read after the bytes: a stamp is written before its bytes.
		var span int64
		if c.Time, span = f.stamped(); span < int64(n) {
			c.Data, f.dirty = buf[:span], true
		}
	}
	f.at.Offset += int64(len(c.Data))
	return fn(c)
}

func (f *tail) readPart(buf []byte) (int, error) {
	file, err := os.Open(shim.PartName(f.path, f.base))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return file.ReadAt(buf, f.at.Offset-f.base)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// find decides which part has the next byte. If that part was removed it takes the next one
// there is, and returns how many bytes are skipped.
func (f *tail) find() (dropped int64) {
	f.found = true
	bases := f.bases()
	f.listed = nil // on the next call the list may have changed
	f.newest = bases[len(bases)-1]
	i, exact := slices.BinarySearch(bases, f.at.Offset)
	if !exact {
		i = max(i-1, 0) // read refuses an offset below zero
	}
	f.base = bases[i]
	if i == len(bases)-1 {
		return 0
	}
	fi, err := os.Stat(shim.PartName(f.path, f.base))
	if err == nil && f.at.Offset < f.base+fi.Size() || f.at.Offset < 0 {
		return 0
	}
	f.base = bases[i+1]
	dropped = f.base - f.at.Offset
	f.at.Offset = f.base
	return dropped
}

// bases lists the parts by their first bytes, in order. The first part is assumed to exist.
func (f *tail) bases() []int64 {
	if f.listed != nil {
		return f.listed
	}
	return append([]int64{0}, Parts(filepath.Dir(f.path))[f.path]...)
}

// Parts lists the later parts of each stream in a folder, by the path of the stream's first
// part.
func Parts(dir string) map[string][]int64 {
	found := map[string][]int64{}
	names, _ := os.ReadDir(dir)
	for _, e := range names {
		if path, base, ok := shim.ParsePart(filepath.Join(dir, e.Name())); ok && base > 0 {
			found[path] = append(found[path], base)
		}
	}
	for _, bases := range found {
		slices.Sort(bases)
	}
	return found
}

// stamped gives the time of the byte at the cursor, and how many bytes from there on have
// the same stamp; a zero time if there is none.
func (f *tail) stamped() (at time.Time, span int64) {
	if more, err := shim.ReadStamps(f.path, len(f.stamps)); err == nil {
		f.stamps = append(f.stamps, more...)
	}
	i := sort.Search(len(f.stamps), func(i int) bool { return f.stamps[i].Offset > f.at.Offset })
	span = math.MaxInt64
	if i < len(f.stamps) {
		span = f.stamps[i].Offset - f.at.Offset
	}
	if i == 0 {
		return time.Time{}, span
	}
	return f.stamps[i-1].Time, span
}
