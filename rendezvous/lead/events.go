package lead

import (
	"context"
	"slices"
	"sort"
	"sync"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// eventLog is what followers of a job receive. A slow follower slows nobody down. Of entries of which only the
// latest matters - what the job waits for, the progress of a pull, whether a node is up - earlier ones are dropped:
// a job may wait or run for months.
type eventLog struct {
	mu      sync.Mutex
	entries []entry
	last    int           // number of the latest entry
	more    chan struct{} // closed and replaced by tell
	err     error         // why the log ends without StepEnded
}

// entry is one step, with its number.
type entry struct {
	n     int
	topic topic
	p     rendezvous.Progress
}

// topic: a later entry replaces an earlier one of the same topic; entries of the zero topic stay.
type topic struct {
	step rendezvous.Step
	host string
}

func topicOf(p rendezvous.Progress) topic {
	switch p.Step {
	case rendezvous.StepWaiting:
		return topic{step: p.Step}
	case rendezvous.StepPreparing:
		return topic{step: p.Step, host: p.Host}
	case rendezvous.StepNodeDown, rendezvous.StepNodeUp:
		return topic{step: rendezvous.StepNodeDown, host: p.Host}
	case rendezvous.StepStage:
		if p.Host != "" { // about one machine; that a stage is ready is reported once
			return topic{step: p.Step, host: p.Host}
		}
	}
	return topic{}
}

// maxEntries bounds the log: a service may restart for years.
const maxEntries = 4096

func newEventLog() *eventLog { return &eventLog{more: make(chan struct{})} }

func (l *eventLog) add(p rendezvous.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	about := topicOf(p)
	if about != (topic{}) { // into a new slice: followers read the old one
		l.entries = slices.DeleteFunc(slices.Clone(l.entries), func(w entry) bool { return w.topic == about })
	}
	l.last++
	if most := len(l.entries) - maxEntries; most > 0 { // the oldest go, many at a time
		l.entries = slices.Clone(l.entries[most+maxEntries/4:])
	}
	l.entries = append(l.entries, entry{l.last, about, p})
	close(l.more)
	l.more = make(chan struct{})
}

// fail ends the log without StepEnded: the job could not be recorded, or another run goes on with it.
func (l *eventLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	close(l.more)
	l.more = make(chan struct{})
}

// after gives the entries after number n.
func (l *eventLog) after(n int) ([]entry, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].n > n })
	return l.entries[i:], l.more, l.err
}

// follow passes every entry up to StepEnded to fn.
func (l *eventLog) follow(ctx, leadership context.Context, fn func(rendezvous.Progress) error) error {
	n := 0
	for {
		news, more, broken := l.after(n)
		for _, w := range news {
			n = w.n
			if err := fn(w.p); err != nil {
				return err
			}
			if w.p.Step == rendezvous.StepEnded {
				return nil
			}
		}
		if broken != nil {
			return broken
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		case <-leadership.Done():
			return ErrOver
		}
	}
}
