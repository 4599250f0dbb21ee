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
// An attempt that is not in the ledger counts as ended. One that is followed and has
// left nothing may have been planned a moment ago: its Prepare is waited for, up
// to awaitPrepare. A question about a job that never was leaves no trace.
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
		defer context.AfterFunc(a.ctx, stop)() // a closed agent hears of no end
		news := a.subscribe(bell)
		defer a.unsubscribe(news)
		live.News = news.more
		live.Ended = func(ranks map[int]bool) bool { return a.allEnded(r.Key, ranks) }
	}
	return logs.Read(ctx, dir, r, live, fn)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// awaitPrepare is how long a reader waits for the order that begins an attempt: it
// is sent as soon as the plan, by which the reader knows of it, is recorded.
const awaitPrepare = 5 * time.Second

// awaitAttempt waits until an attempt is in the ledger; nil: it has not come.
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
			return a.attempt(k) // it may be preparing, which nobody tells of
		case <-ctx.Done():
			return nil
		}
	}
}

// allEnded tells whether no more output can come from these ranks here.
func (a *Agent) allEnded(k launcher.Key, wanted map[int]bool) bool {
	t := a.attempt(k)
	return t == nil || t.allEnded(wanted)
}

// attempt finds one in the ledger; nil: it is not there.
func (a *Agent) attempt(k launcher.Key) *attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attempts[k]
}

// noteLost keeps the last word on each gap.
func (t *attempt) noteLost(ev shim.Event) {
	t.entryMu.Lock()
	t.lost = logs.Note(t.lost, ev.Rank, *ev.Lost)
	t.entryMu.Unlock()
	t.saveLost()
}

// saveLost writes the gaps down. On a full disk this may fail; on one whose reserve is
// left it does not. It is tried again when the attempt is forgotten: then there is
// nobody else who knows.
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
