package logs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// lostName is a file beside the output that says what is missing in it: the shim's journal,
// which has that first, is removed with the job.
const lostName = "lost.json"

// Lost is a gap in one rank's output.
type Lost struct {
	Rank int       `json:"rank"`
	Lost shim.Lost `json:"lost"`
}

// Note adds a gap to the known ones: of each gap the latest report counts.
func Note(known []Lost, rank int, gap shim.Lost) []Lost {
	i := slices.IndexFunc(known, func(old Lost) bool {
		return old.Rank == rank && old.Lost.Stream == gap.Stream && old.Lost.Offset == gap.Offset
	})
	if i < 0 {
		return append(known, Lost{rank, gap})
	}
	known = slices.Clone(known)
	known[i] = Lost{rank, gap}
	return known
}

// KeepLost writes the gaps to a file beside the output in dir.
func KeepLost(dir string, known []Lost) error {
	b, err := json.Marshal(known)
	if err != nil {
		return err
	}
	return durable.Swap(filepath.Join(dir, lostName), b, 0o600)
}

func readLost(dir string) (known []Lost, err error) {
	b, err := os.ReadFile(filepath.Join(dir, lostName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &known)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, lostName), err)
	}
	return known, nil
}

// tellLost reports gaps, each as it opens and as it ends. The file may be missing while the
// disk is full: an attempt in the ledger has its own list.
func (l *reader) tellLost() error {
	if !l.lostAt {
		return nil
	}
	l.lostAt = false
	var all []Lost
	if l.live.Lost != nil {
		all = l.live.Lost()
	} else {
		var err error
		if all, err = readLost(l.dir); err != nil {
			return err
		}
	}
	for _, g := range all {
		if !l.wanted[g.Rank] || l.losses[g] {
			continue
		}
		l.losses[g] = true
		note := fmt.Sprintf("rank %d: %s of its std%s were lost at byte %d: %s", g.Rank, launcher.Size(g.Lost.Bytes),
			g.Lost.Stream, g.Lost.Offset, g.Lost.Error)
		// Without a stream it moves no cursor.
		if err := l.fn(launcher.Chunk{Rank: g.Rank, Note: note}); err != nil {
			return err
		}
	}
	return nil
}
