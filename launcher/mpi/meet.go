package mpi

import (
	"context"
	"fmt"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
)

// Meeting is where the nodes of one attempt bring together what their ranks have put before
// a barrier: on rank 0's node. What it has can be sent again: a node whose call broke asks
// again, and so do all nodes after a restart of this agent.
type Meeting struct {
	nodes int

	mu    sync.Mutex
	open  map[int]*barrier
	first int // all barriers below are over, and forgotten
}

// barrier is one that some node has reached.
type barrier struct {
	parts  map[int][]launcher.Pair
	bytes  int   // of parts, as in MaxSpace
	err    error // instead of all
	whole  bool  // all is complete, and no longer changes
	all    []launcher.Pair
	full   chan struct{} // closed once whole
	stored chan struct{} // closed once rank 0's shim has it, so that it survives this agent
}

// NewMeeting makes the meeting of an attempt on so many nodes.
func NewMeeting(nodes int) *Meeting {
	return &Meeting{nodes: nodes, open: map[int]*barrier{}, first: 1}
}

// at finds or opens a barrier; nil: it is over.
func (m *Meeting) at(n int) *barrier {
	if n < m.first {
		return nil
	}
	f := m.open[n]
	if f == nil {
		f = &barrier{parts: map[int][]launcher.Pair{}, full: make(chan struct{}), stored: make(chan struct{})}
		m.open[n] = f
	}
	return f
}

// maxOpen bounds the open barriers: ranks are in one, and a restarted agent asks for that
// one again.
const maxOpen = 4

// Bring takes what the ranks of a node have put before barrier n, and waits for what those
// of all nodes have put. Rank 0's node gets the answer first; the others once that node has
// called Stored. ErrPast: that barrier is over, and no longer in memory. ErrTooMuch, for
// all nodes: they have put more than a job may. ErrStrange: this node may not bring that.
func (m *Meeting) Bring(ctx context.Context, node, n int, pairs []launcher.Pair) ([]launcher.Pair, error) {
	if node < 0 || node >= m.nodes || n < 1 {
		return nil, fmt.Errorf("barrier %d: %w: node %d of %d", n, launcher.ErrInvalid, node, m.nodes)
	}
	if err := valid(pairs); err != nil {
		return nil, fmt.Errorf("barrier %d: node %d: %w", n, node, err)
	}
	m.mu.Lock()
	if m.open[n] == nil && n >= m.first && len(m.open) >= maxOpen {
		m.mu.Unlock()
		return nil, fmt.Errorf("barrier %d: %w: %d others are not over", n, launcher.ErrInvalid, maxOpen)
	}
	f := m.at(n)
	if f == nil {
		m.mu.Unlock()
		return nil, fmt.Errorf("barrier %d: %w", n, ErrPast)
	}
	if !f.whole {
		m.part(f, node, pairs)
		switch {
		case f.bytes > MaxSpace:
			m.complete(n, f, nil, fmt.Errorf("barrier %d: %w", n, ErrTooMuch))
		case len(f.parts) == m.nodes:
			var all []launcher.Pair
			for i := range m.nodes {
				all = append(all, f.parts[i]...)
			}
			m.complete(n, f, all, nil)
		}
	}
	m.mu.Unlock()
	ready := f.full
	if node != 0 {
		ready = f.stored
	}
	select {
	case <-ready:
		return f.all, f.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// part takes a node's pairs, replacing what it has brought before. m.mu is held.
func (m *Meeting) part(f *barrier, node int, pairs []launcher.Pair) {
	for _, p := range f.parts[node] {
		f.bytes -= p.Size()
	}
	for _, p := range pairs {
		f.bytes += p.Size()
	}
	f.parts[node] = pairs
}

// complete ends the wait for nodes. m.mu is held.
func (m *Meeting) complete(n int, f *barrier, all []launcher.Pair, err error) {
	f.whole, f.all, f.err, f.parts = true, all, err, nil
	// A node that is in this one has got the answer to the one before.
	for k := range m.open {
		if k < n {
			delete(m.open, k)
		}
	}
	m.first = n
	close(f.full)
	if err != nil {
		close(f.stored) // there is nothing to store
	}
}

// Stored releases the answer to a barrier to the other nodes, once rank 0's shim has it.
// The barrier need not have been completed here: an agent that was restarted begins with
// it.
func (m *Meeting) Stored(done Barrier) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.at(done.Number)
	if f == nil {
		return
	}
	if !f.whole {
		m.complete(done.Number, f, done.Pairs, nil)
	}
	select {
	case <-f.stored:
	default:
		close(f.stored)
	}
}
