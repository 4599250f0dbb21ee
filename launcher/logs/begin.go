package logs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// lineReach is how far back the start of a line is searched: a longer line is shown from
// the middle.
const lineReach = 1 << 20

// begin decides where each stream without a cursor is read from, and reports it: a caller
// that asks again continues from there, and the end is not searched again.
func (l *reader) begin(r Request) error {
	if r.From == (launcher.From{}) {
		return nil
	}
	told := map[launcher.Cursor]bool{}
	for _, c := range r.Cursors {
		told[launcher.Cursor{Rank: c.Rank, Stream: c.Stream}] = true
	}
	for i := 0; i < len(l.files); i += 2 {
		rank := l.files[i : i+2] // its stdout and its stderr
		shares := make([]int, 2)
		if n := r.From.Lines; n != nil {
			out := share(rank[0], rank[1], *n)
			shares = []int{out, *n - out}
		}
		for j, f := range rank {
			if told[launcher.Cursor{Rank: f.at.Rank, Stream: f.at.Stream}] {
				continue
			}
			offset, err := f.from(r.From, shares[j])
			if err != nil {
				return fmt.Errorf("read output of rank %d: %w", f.at.Rank, err)
			}
			f.at.Offset = offset
			if err := l.fn(launcher.Chunk{Rank: f.at.Rank, Stream: f.at.Stream, Offset: offset}); err != nil {
				return err
			}
		}
	}
	return nil
}

// from is the later of the two places that a From may give; lines is this stream's share of
// the rank's lines.
func (f *tail) from(from launcher.From, lines int) (offset int64, err error) {
	if !from.Since.IsZero() {
		if offset, err = f.since(from.Since); err != nil {
			return 0, err
		}
	}
	if from.Lines != nil {
		at, _ := f.lastLines(lines)
		offset = max(offset, at)
	}
	return offset, nil
}

// share says how many of a rank's last n lines are of its stdout, by the stamps of both
// streams. If they do not tell, stderr's are taken as later: who asks for one line wants
// the error.
func share(out, err *tail, n int) int {
	switch {
	case n <= 0 || out.end() == 0:
		return 0
	case err.end() == 0:
		return n
	}
	outStamps, _ := shim.ReadStamps(out.path, 0) // without stamps no line is the later one
	errStamps, _ := shim.ReadStamps(err.path, 0)
	// The more lines are of stdout, the older is the first of them, and the newer the first
	// that stderr has to leave out for it.
	return sort.Search(n, func(k int) bool {
		ours, there := out.lastLines(k + 1)
		theirs, also := err.lastLines(n - k)
		return !there || also && !stampOf(outStamps, ours).After(stampOf(errStamps, theirs))
	})
}

// stampOf is when a byte was written; zero if not known.
func stampOf(stamps []shim.Stamp, offset int64) time.Time {
	i := sort.Search(len(stamps), func(i int) bool { return stamps[i].Offset > offset })
	if i == 0 {
		return time.Time{}
	}
	return stamps[i-1].Time
}

// since is the start of the line with the first byte that may have been written at t or
// later. A stream without stamps is read from its start.
func (f *tail) since(t time.Time) (int64, error) {
	stamps, err := shim.ReadStamps(f.path, 0)
	if err != nil || len(stamps) == 0 {
		return 0, err
	}
	i := sort.Search(len(stamps), func(i int) bool { return stamps[i].Time.After(t) }) - 1
	if i < 0 {
		return 0, nil
	}
	// The bytes of a stamp were written before the next one could have been made.
	if t.After(stamps[i].Time.Add(shim.StampEvery(stamps[0].Time, stamps[i].Time))) {
		i++
	}
	if i == len(stamps) {
		return f.end(), nil
	}
	at := stamps[i].Offset
	if begin, ok := f.behindNewline(1, at, max(0, at-lineReach)); ok {
		return begin, nil
	}
	return at, nil
}

// lastLines is where the last n lines begin, and whether there are as many. An unfinished
// line counts.
func (f *tail) lastLines(n int) (at int64, all bool) {
	end := f.end()
	if n <= 0 {
		return end, true
	}
	if at, ok := f.behindNewline(1, end, max(0, end-1)); ok && at == end {
		n++ // the newline of the last line
	}
	at, all = f.behindNewline(n, end, 0)
	if !all && end > 0 { // no newline precedes the first line
		if all = n == 1; !all {
			_, all = f.behindNewline(n-1, end, 0)
		}
	}
	return at, all
}

// end is the length of the stream in bytes.
func (f *tail) end() int64 {
	bases := f.bases()
	last := bases[len(bases)-1]
	fi, err := os.Stat(shim.PartName(f.path, last))
	if err != nil {
		return last
	}
	return last + fi.Size()
}

// behindNewline goes back from end to just behind the n-th newline. If there are fewer it
// returns false and how far it came: low, or where the kept output begins.
func (f *tail) behindNewline(n int, end, low int64) (int64, bool) {
	bases := f.bases()
	buf := make([]byte, min(64<<10, max(0, end-low)))
	for end > low {
		i, _ := slices.BinarySearch(bases, end)
		base := bases[i-1] // of the part with the byte before end
		start := max(end-int64(len(buf)), base, low)
		b := buf[:end-start]
		if !readAt(shim.PartName(f.path, base), b, start-base) {
			return end, false // removed
		}
		for at := len(b); ; n-- {
			if at = bytes.LastIndexByte(b[:at], '\n'); at < 0 {
				break
			}
			if n == 1 {
				return start + int64(at) + 1, true
			}
		}
		end = start
	}
	return end, false
}

func readAt(path string, b []byte, offset int64) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	n, _ := file.ReadAt(b, offset)
	return n == len(b)
}

// ranksIn lists the ranks that have output in a folder.
func ranksIn(dir string) []int {
	var ranks []int
	paths, _ := filepath.Glob(filepath.Join(dir, "rank-*.out"))
	for _, p := range paths {
		var rank int
		if _, err := fmt.Sscanf(filepath.Base(p), "rank-%d.out", &rank); err == nil {
			ranks = append(ranks, rank)
		}
	}
	slices.Sort(ranks)
	return ranks
}
