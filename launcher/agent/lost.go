package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// lostName lies beside the output and says what is missing in it: the shim's
// journal, where that is told first, goes with the job.
const lostName = "lost.json"

// lostOutput is a gap in one rank's output.
type lostOutput struct {
	Rank int       `json:"rank"`
	Lost shim.Lost `json:"lost"`
}

// noteLost keeps the last word on each gap.
func (t *try) noteLost(ev shim.Event) {
	new := lostOutput{ev.Rank, *ev.Lost}
	t.entryMu.Lock()
	i := slices.IndexFunc(t.lost, func(old lostOutput) bool {
		return old.Rank == new.Rank && old.Lost.Stream == new.Lost.Stream && old.Lost.Offset == new.Lost.Offset
	})
	if i < 0 {
		t.lost = append(t.lost, new)
	} else {
		t.lost[i] = new
	}
	t.entryMu.Unlock()
	t.saveLost()
}

// saveLost writes the gaps down. On a full disk this may fail; on one whose reserve is
// left it does not. It is tried again when the try is forgotten: then there is
// nobody else who knows.
func (t *try) saveLost() {
	if err := writeJSON(filepath.Join(t.a.logDir(t.key), lostName), t.lost); err != nil {
		t.a.cfg.Logger.Warn("note lost output", "job", t.key.Job, "error", err)
		t.lostUnsaved = true
		return
	}
	t.lostUnsaved = false
}

func (t *try) lostSoFar() []lostOutput {
	t.entryMu.Lock()
	defer t.entryMu.Unlock()
	return slices.Clone(t.lost)
}

// tellLost passes on what gaps there are, each as it opens and as it ends. The
// file may be missing while the disk is full: a try in the ledger knows itself.
func (l *reader) tellLost() error {
	if !l.lostAt {
		return nil
	}
	l.lostAt = false
	var all []lostOutput
	if l.try != nil {
		all = l.try.lostSoFar()
	} else if err := readJSON(filepath.Join(l.dir, lostName), &all); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, g := range all {
		if !l.wanted[g.Rank] || l.losses[g] {
			continue
		}
		l.losses[g] = true
		note := fmt.Sprintf("rank %d: %s of its std%s were lost at byte %d: %s", g.Rank, size(g.Lost.Bytes), g.Lost.Stream, g.Lost.Offset, g.Lost.Error)
		// Without a stream: it moves no cursor.
		if err := l.fn(launcher.Chunk{Rank: g.Rank, Note: note}); err != nil {
			return err
		}
	}
	return nil
}
