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

// scanned is how far one stream has been looked through, in all its parts.
type scanned struct {
	stream *logs.Scanner
	line   []byte // the begin of one that goes on
	long   bool   // and that has had more bytes than are looked at
	found  bool
}

// What is read at one look, and looked at of a line: what a pattern costs grows with it.
const (
	scanMost = 1 << 20
	lineMost = 4 << 10
)

// scan looks for a line in the output of each of a step's ranks here.
func (p *Prober) scan(ctx context.Context, st launcher.Stage, probe launcher.Probe, local int) error {
	want := regexp.MustCompile(probe.Match) // the spec's check has compiled it
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
			return fmt.Errorf("rank %d has written no line with %q yet", rank, probe.Match)
		}
	}
	return nil
}

// look goes on where the last one left off, for at most scanMost bytes.
func (s *scanned) look(ctx context.Context, want *regexp.Regexp) {
	if s.found {
		return
	}
	s.stream.More(ctx, scanMost, func(c launcher.Chunk) (enough bool) {
		if c.Note != "" { // a part was removed: what comes is another line's
			s.line, s.long = nil, true
		}
		s.take(ctx, c.Data, want)
		return s.found
	})
}

// take looks at whole lines, and at the begin of the one that goes on: what is asked of
// a user on a prompt has no end.
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

// written is how much a step's ranks here have written, in bytes, and the end of what came last.
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
