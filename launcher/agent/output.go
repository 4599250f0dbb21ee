package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Logs reads the output of an attempt's local ranks; see logs.Read.
//
// An attempt that is not in the ledger counts as ended. If the output is followed and
// there is none yet, the attempt may have been planned a moment ago: its Prepare is
// waited for, up to awaitPrepare. A request for an unknown job leaves no trace.
func (a *Agent) Logs(ctx context.Context, r logs.Request, fn func(launcher.Chunk) error) error {
	if err := r.Key.Job.Validate(); err != nil {
		return err
	}
	dir := a.logDir(r.Key)
	t := a.attempt(r.Key)
	if t == nil && r.Follow && !exists(dir) {
		t = a.awaitAttempt(ctx, r.Key)
	}
	if t == nil && !exists(dir) {
		return fn(launcher.Chunk{Note: fmt.Sprintf("no output of job %s (attempt %d) is kept here", r.Key.Job,
			r.Key.Generation)})
	}
	var live logs.Live
	if t != nil {
		live.Lost = t.lostSoFar
	}
	if r.Follow {
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(a.ctx, stop)() // a closed agent gets no end
		news := a.subscribe(bell)
		defer a.unsubscribe(news)
		live.News, live.Watchers = news.more, &a.watchers
		live.Ended = func(ranks map[int]bool) bool { return a.allEnded(r.Key, ranks) }
	}
	return logs.Read(ctx, dir, r, live, fn)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// awaitPrepare is how long a reader waits for an attempt's first order: it is sent as soon
// as the plan, from which the reader knows of it, is recorded.
const awaitPrepare = 5 * time.Second

// awaitAttempt waits until an attempt is in the ledger; nil: it did not come.
func (a *Agent) awaitAttempt(ctx context.Context, k launcher.Key) *attempt {
	late := time.NewTimer(awaitPrepare)
	defer late.Stop()
	news := a.subscribe(bell)
	defer a.unsubscribe(news)
	for {
		if t := a.attempt(k); t != nil {
			return t
		}
		select {
		case <-news.more:
		case <-late.C:
			return a.attempt(k) // it may be preparing, for which there is no event
		case <-ctx.Done():
			return nil
		}
	}
}

// allEnded reports whether no more output can come from these ranks here.
func (a *Agent) allEnded(k launcher.Key, wanted map[int]bool) bool {
	t := a.attempt(k)
	return t == nil || t.allEnded(wanted)
}

// attempt finds an attempt in the ledger; nil: it is not there.
func (a *Agent) attempt(k launcher.Key) *attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attempts[k]
}

// noteLost keeps the latest word on each gap in the output.
func (t *attempt) noteLost(ev shim.Event) {
	t.entryMu.Lock()
	t.lost = logs.Note(t.lost, ev.Rank, *ev.Lost)
	t.entryMu.Unlock()
	t.saveLost()
}

// saveLost writes the gaps to disk. On a full disk this may fail, unless the disk's reserve
// is left. It is tried again when the attempt is forgotten: from then on only the file
// knows.
func (t *attempt) saveLost() {
	err := logs.KeepLost(t.a.logDir(t.key), t.lost)
	if err != nil {
		t.a.cfg.Logger.Warn("note lost output", "job", t.key.Job, "error", err)
	}
	t.lostUnsaved = err != nil
}

func (t *attempt) lostSoFar() []logs.Lost {
	t.entryMu.Lock()
	defer t.entryMu.Unlock()
	return slices.Clone(t.lost)
}
