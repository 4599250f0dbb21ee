package readiness

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// scanned is how far one stream has been searched, in all its parts.
type scanned struct {
	stream *logs.Scanner
	line   []byte // the start of an unfinished line
	long   bool   // and it is longer than what is searched
	found  bool
}

// How much is read at once, and of a line: the cost of a pattern grows with it.
const (
	scanMost = 1 << 20
	lineMost = 4 << 10
)

// scan looks for a line in the output of each of a step's ranks here.
func (p *Prober) scan(ctx context.Context, st launcher.Stage, probe launcher.Probe, local int) error {
	want := regexp.MustCompile(probe.Match) // the spec's validation has compiled it
	for i := range st.RanksPerNode {
		rank := p.Assignment.FirstRank + local + i
		found := false
		for _, stream := range []launcher.Stream{launcher.Stdout, launcher.Stderr} {
			path := filepath.Join(p.LogDir, fmt.Sprintf("rank-%d.%s", rank, stream))
			s := p.scans[path+"\x00"+probe.Match]
			if s == nil {
				s = &scanned{stream: logs.NewScanner(path)}
				p.scans[path+"\x00"+probe.Match] = s
			}
			s.look(ctx, want)
			found = found || s.found
		}
		if !found {
			return fmt.Errorf("rank %d has not written a line with %q yet", rank, probe.Match)
		}
	}
	return nil
}

// look continues where the last search stopped, for at most scanMost bytes.
func (s *scanned) look(ctx context.Context, want *regexp.Regexp) {
	if s.found {
		return
	}
	s.stream.More(ctx, scanMost, func(c launcher.Chunk) (enough bool) {
		if c.Note != "" { // a part was removed: what follows is another line
			s.line, s.long = nil, true
		}
		s.take(ctx, c.Data, want)
		return s.found
	})
}

// take searches complete lines, and the start of an unfinished one: a prompt to the user
// has no newline.
func (s *scanned) take(ctx context.Context, b []byte, want *regexp.Regexp) {
	for ctx.Err() == nil {
		part, rest, whole := bytes.Cut(b, []byte("\n"))
		if !s.long {
			part = part[:min(len(part), lineMost-len(s.line))]
			s.line = append(s.line, part...)
			s.found = want.Match(s.line)
		}
		s.long = s.long || len(s.line) == lineMost
		if s.found || !whole {
			return
		}
		s.line, s.long, b = s.line[:0], false, rest
	}
}

// written is how many bytes a step's ranks here have written, and the end of the latest
// output.
func (p *Prober) written() (n int64, last string) {
	newest, at := "", time.Time{}
	for _, path := range p.files() {
		fi, err := os.Lstat(path)
		if err != nil {
			continue
		}
		if n += fi.Size(); fi.Size() > 0 && !fi.ModTime().Before(at) {
			newest, at = path, fi.ModTime()
		}
	}
	lines := logs.LastLines(newest)
	lines = lines[max(0, len(lines)-probeLast):]
	for i, line := range lines {
		lines[i] = plain.Cut(plain.Strip(line), launcher.MaxLineBytes)
	}
	return n, strings.Join(lines, "\n")
}
