package consensus

import (
	"context"
	"sync"

	"github.com/hashicorp/raft"
)

// copies notes how far each server has stored the log, according to its own answers to
// this leader. raft does not say.
type copies struct {
	mu      sync.Mutex
	at      map[raft.ServerID]stored
	changed chan struct{} // closed and replaced by every answer, and every silence
}

// stored is valid in one term only: a server may have dropped what it had from an earlier
// leader.
type stored struct{ term, index uint64 }

func newCopies() *copies {
	return &copies{at: map[raft.ServerID]stored{}, changed: make(chan struct{})}
}

func (c *copies) note(id raft.ServerID, term, index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was := c.at[id]; term < was.term || term == was.term && index <= was.index {
		return
	}
	c.at[id] = stored{term, index}
	c.wakeLocked()
}

// wake makes the waiters look again: a server has fallen silent.
func (c *copies) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked()
}

func (c *copies) wakeLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *copies) appended(id raft.ServerID, a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) {
	if r.Success {
		c.note(id, a.Term, a.PrevLogEntry+uint64(len(a.Entries)))
	}
}

func (c *copies) has(id raft.ServerID, term, index uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.at[id]
	return s.term == term && s.index >= index
}

func (c *copies) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Copied waits until another server has stored everything that this node has applied by
// now, and tells whether one has. It gives up when ctx ends, when this node does not
// lead, and at once when raft's heartbeats to all others fail.
func (n *Raft) Copied(ctx context.Context) bool {
	index := n.fsm.applied.Load()
	for {
		term, leads := n.leading()
		if !leads {
			return false
		}
		changed := n.copies.next() // before looking, so that no change is missed
		hope := false
		for _, s := range n.Members().Servers {
			if s.ID == n.cfg.ID {
				continue
			}
			if n.copies.has(raft.ServerID(s.ID), term, index) {
				return true
			}
			hope = hope || s.Silent == 0
		}
		if !hope {
			return false
		}
		select {
		case <-changed:
		case <-n.LeaderChanged():
		case <-n.done:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// countedPipeline notes the answers of a pipeline and passes them on.
type countedPipeline struct {
	raft.AppendPipeline
	copies *copies
	id     raft.ServerID
	out    chan raft.AppendFuture
	once   sync.Once
	closed chan struct{}
}

func (c *copies) pipeline(id raft.ServerID, p raft.AppendPipeline) raft.AppendPipeline {
	w := &countedPipeline{AppendPipeline: p, copies: c, id: id, out: make(chan raft.AppendFuture),
		closed: make(chan struct{})}
	go w.pass() // ends with Close, which raft calls
	return w
}

func (w *countedPipeline) pass() {
	for {
		select {
		case f := <-w.AppendPipeline.Consumer():
			if f.Error() == nil {
				w.copies.appended(w.id, f.Request(), f.Response())
			}
			select {
			case w.out <- f:
			case <-w.closed:
				return
			}
		case <-w.closed:
			return
		}
	}
}

func (w *countedPipeline) Consumer() <-chan raft.AppendFuture { return w.out }

func (w *countedPipeline) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.AppendPipeline.Close()
}
