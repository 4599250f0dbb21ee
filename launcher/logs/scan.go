package logs

import (
	"context"
	"path/filepath"

	"github.com/sparkrun/sparkrun/launcher"
)

// Scanner reads one stream of a rank, in all its parts, and continues where it stopped.
type Scanner struct {
	stream tail
	buf    []byte
}

// NewScanner begins at the first byte of a stream, which is named by the path of its first
// part.
func NewScanner(path string) *Scanner {
	return &Scanner{stream: tail{path: path}, buf: make([]byte, 64<<10)}
}

// More passes on what is there, at most so many bytes or a chunk more, until fn has enough.
// After an error the next More tries again.
func (s *Scanner) More(ctx context.Context, most int, fn func(launcher.Chunk) (enough bool)) {
	s.stream.dirty = true
	if later := Parts(filepath.Dir(s.stream.path))[s.stream.path]; len(later) > 0 { // its first part may be gone
		s.stream.newest = later[len(later)-1]
	}
	enough := false
	for read := 0; read < most && s.stream.dirty && !enough && ctx.Err() == nil; {
		if err := s.stream.read(s.buf, func(c launcher.Chunk) error {
			read += len(c.Data)
			enough = fn(c)
			return nil
		}); err != nil {
			return
		}
	}
}
