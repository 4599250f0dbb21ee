package agent

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// scanned is how far one output file has been looked through.
type scanned struct {
	offset int64
	line   []byte // the begin of one that goes on
	found  bool
}

// What is read at one look, and kept of a line without an end.
const (
	scanMost = 4 << 20
	lineMost = 64 << 10
)

// scan looks for a line in the output of each of a step's ranks here.
func (p *prober) scan(st launcher.Stage, probe launcher.Probe, local int) error {
	want := regexp.MustCompile(probe.Match) // the spec's check has compiled it
	for i := range st.RanksPerNode {
		rank := p.as.FirstRank + local + i
		found := false
		for _, stream := range []launcher.Stream{launcher.Stdout, launcher.Stderr} {
			path := filepath.Join(p.t.a.logDir(p.as.Key), fmt.Sprintf("rank-%d.%s", rank, stream))
			s := p.logs[path+"\x00"+probe.Match]
			if s == nil {
				s = &scanned{}
				p.logs[path+"\x00"+probe.Match] = s
			}
			s.look(path, want)
			found = found || s.found
		}
		if !found {
			return fmt.Errorf("rank %d has not said so yet", rank)
		}
	}
	return nil
}

func (s *scanned) look(path string, want *regexp.Regexp) {
	if s.found {
		return
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	b, _ := io.ReadAll(io.NewSectionReader(f, s.offset, scanMost))
	s.offset += int64(len(b))
	b = append(s.line, b...)
	for {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		if s.found = want.Match(line); s.found || !whole {
			s.line = bytes.Clone(line[:min(len(line), lineMost)])
			return
		}
		b = rest
	}
}

// written is how much a step's ranks here have written, in bytes.
func (p *prober) written() (n int64) {
	for _, path := range p.files() {
		if fi, err := os.Lstat(path); err == nil {
			n += fi.Size()
		}
	}
	return n
}

// lastOf is the end of what the step's ranks here have written.
func (p *prober) lastOf() string {
	for _, path := range p.files() {
		if lines := lastLines(path); len(lines) > 0 {
			lines = lines[max(0, len(lines)-probeLast):]
			for i, line := range lines {
				lines[i] = line[:min(len(line), launcher.MaxLineBytes)]
			}
			return strings.Join(lines, "\n")
		}
	}
	return ""
}
