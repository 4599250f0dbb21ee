package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

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
	if n := len(t.lost); n > 0 && t.lost[n-1].Rank == ev.Rank && t.lost[n-1].Lost.Stream == ev.Lost.Stream && t.lost[n-1].Lost.Offset == ev.Lost.Offset {
		t.lost = t.lost[:n-1]
	}
	t.lost = append(t.lost, lostOutput{ev.Rank, *ev.Lost})
	// On a full disk this may fail; on one whose reserve is left it does not.
	if err := writeJSON(filepath.Join(t.a.logDir(t.key), lostName), t.lost); err != nil {
		t.a.cfg.Logger.Warn("note lost output", "job", t.key.Job, "error", err)
	}
}

// tellLost passes on what gaps there are, each as it opens and as it ends.
func (l *reader) tellLost() error {
	if !l.lostAt {
		return nil
	}
	l.lostAt = false
	var all []lostOutput
	if err := readJSON(filepath.Join(l.dir, lostName), &all); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
