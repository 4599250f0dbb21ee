package notify

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// tries are the waits between the tries of one notice: five tries within ten minutes.
var tries = [...]time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 7 * time.Minute}

// deliver brings one target its notices, one after the other, oldest first.
func (l *Leader) deliver(ctx context.Context, name string) error {
	for ctx.Err() == nil {
		l.troubled(name, "") // what was of one that is done with, or removed
		now, changed := l.Record.Notify()
		t, has := now.Targets[name]
		q, waits := now.Next(name)
		if !has || !waits {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		problem, over := l.bring(ctx, t, q)
		if !over {
			continue // it was removed, or this leadership ends
		}
		if problem != "" {
			l.Logger.Warn("notice given up", "target", name, "event", q.Event, "error", problem)
		}
		done := rendezvous.NotifyChange{Done: &rendezvous.NotifyDone{Notice: q.ID, Target: name, Error: problem}}
		for err := l.Recorder.Notify(ctx, done); err != nil && !errors.Is(err, rendezvous.ErrNoNotify); {
			l.Logger.Warn("record notice", "target", name, "error", err) // it must not be sent again
			if !pause(ctx, time.Second) {
				return ctx.Err()
			}
			err = l.Recorder.Notify(ctx, done)
		}
	}
	return ctx.Err()
}

// bring tries until a notice has arrived, or is given up for the problem; over is false where neither is known.
func (l *Leader) bring(ctx context.Context, t rendezvous.NotifyTarget, q rendezvous.Notice) (problem string, over bool) {
	for i := 0; ; i++ {
		if err := l.Prove(ctx); err != nil {
			pause(ctx, time.Second)
			return "", false
		}
		e, err := l.open(t)
		if err == nil {
			err = l.send(ctx, e, l.message(q))
		}
		switch {
		case err == nil:
			return "", true
		case ctx.Err() != nil:
			return "", false
		}
		problem = plain.Cut(plain.Line(err.Error()), rendezvous.MaxNoticeText)
		f := new(failed)
		if errors.As(err, &f) && f.final || i == len(tries) {
			return problem, true
		}
		l.troubled(t.Name, problem)
		if !l.stays(ctx, t, max(tries[i], f.after)) {
			return "", false
		}
	}
}

// stays waits, and tells whether the target is still there then.
func (l *Leader) stays(ctx context.Context, t rendezvous.NotifyTarget, d time.Duration) bool {
	due := time.NewTimer(d)
	defer due.Stop()
	for {
		now, changed := l.Record.Notify()
		if is, has := now.Targets[t.Name]; !has || !bytes.Equal(is.Box, t.Box) { // no two boxes are alike
			return false
		}
		select {
		case <-due.C:
			return true
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// troubled keeps for `notify ls` why a target does not get its notice; empty: it has.
func (l *Leader) troubled(name, problem string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if problem == "" {
		delete(l.trouble, name)
	} else {
		l.trouble[name] = rendezvous.NotifySent{At: time.Now().UTC(), Error: problem}
	}
}
