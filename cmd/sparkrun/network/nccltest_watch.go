package network

import (
	"encoding/json"
	"fmt"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nettest"
	"github.com/sparkrun/sparkrun/workloads/nettest/nccltest"
)

// watcher reads the objects that a launch prints.
type watcher struct {
	ranksOutput
	table  nccltest.Parser
	log    nccltest.Log
	early  *nccltest.Verdict  // of the first rank that could not begin
	places []rendezvous.Place // from the last plan of the main stage
	ended  rendezvous.End     // empty: it has not
}

// event notes who runs the test, and how it ended.
func (w *watcher) event(line []byte) {
	var e struct {
		Plan    *rendezvous.Plan    `json:"plan"`
		Outcome *rendezvous.Outcome `json:"outcome"`
	}
	if json.Unmarshal(line, &e) != nil {
		return
	}
	if e.Plan != nil && e.Plan.Stage == "" { // --before and --after run on one machine only
		w.places = e.Plan.Nodes
	}
	if e.Outcome != nil {
		w.ended = e.Outcome.End
	}
}

func (w *watcher) line(l follow.OutputLine) {
	if w.verbose {
		fmt.Fprintf(w.err, "[%d] %s\n", l.Rank, *l.Line)
	}
	if v, is := nccltest.NoTorch(l.Host, *l.Line); is && w.early == nil {
		w.early = &v
	}
	ours := w.log.Line(*l.Line)
	switch {
	case l.Stream == wire.Stderr && !ours && !w.verbose:
		w.keep(l)
	case l.Rank == 0 && l.Stream == wire.Stdout && w.table.Line(*l.Line) && w.live:
		r := w.table.Table().Rows
		last := r[len(r)-1]
		fmt.Fprintf(w.err, "sparkrun: %s: %.2f GB/s\n", nettest.Size(last.Bytes), last.Bus())
	}
}
