package mpi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/launcher"
)

// Bounds of a space, in bytes of launcher.Pair.Size.
const (
	// MaxBarrier bounds what one node's ranks put between two barriers: 1,024 ranks with a
	// value of 1,024 bytes each, and as much again. It goes to rank 0's node in one
	// message, of which rendezvous/wire takes 4 MiB.
	MaxBarrier = 3 << 20
	// MaxSpace bounds all that all ranks put: each node's shim holds it, and takes the
	// result of one barrier in one message, of 64 MiB.
	MaxSpace = 48 << 20
)

// Errors of a Space.
var (
	// ErrPast: a barrier that is long over was asked for.
	ErrPast = fmt.Errorf("%w: it is over", launcher.ErrNoBarrier)
	// ErrTooMuch: the ranks have put more than MaxSpace.
	ErrTooMuch = fmt.Errorf("%w: the job's ranks have put more than %d MiB in PMI's key-value space",
		launcher.ErrNoBarrier, MaxSpace>>20)
	// ErrStrange: a node has brought pairs that none of its ranks can have put.
	ErrStrange = fmt.Errorf("%w: a machine brings what no rank can have put in PMI's key-value space",
		launcher.ErrNoBarrier)
	// ErrClosed: the ranks are being ended.
	ErrClosed = errors.New("the ranks are being ended")
)

// Space is the key-value space of one attempt on one node, with its barriers: ranks put,
// wait in a barrier, and then get what all others have put before it. It is safe for use
// from several goroutines.
type Space struct {
	name  string
	size  int // ranks in the world
	local int // ranks here

	mu       sync.Mutex
	kv       map[string]string
	bytes    int             // of kv, as in MaxSpace
	fresh    []launcher.Pair // put here since the last barrier
	weight   int             // of fresh
	barriers int             // how many are over
	last     []launcher.Pair // the result of the last one
	in       int             // local ranks in the next one
	over     error           // after Close
	changed  chan struct{}   // closed and replaced whenever any of these changes
}

// NewSpace makes the space of a world of size ranks, local of them here. name is the job's;
// mapping says which rank is on which node (Mapping).
func NewSpace(name, mapping string, size, local int) *Space {
	s := &Space{name: name, size: size, local: local, kv: map[string]string{}, changed: make(chan struct{})}
	s.kv["PMI_process_mapping"] = mapping
	return s
}

// Mapping is MPICH's PMI_process_mapping of nodes with perNode ranks each, numbered node by
// node.
func Mapping(nodes, perNode int) string { return fmt.Sprintf("(vector,(0,%d,%d))", nodes, perNode) }

// tell wakes all that wait for a change. s.mu is held.
func (s *Space) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Close wakes all that wait, with ErrClosed.
func (s *Space) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil {
		s.over = ErrClosed
		s.tell()
	}
}

// put takes a value; the key must be new, as in every process manager.
func (s *Space) put(p launcher.Pair) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, taken := s.kv[p.Key]; {
	case p.Key == "" || len(p.Key) > MaxKey || len(p.Value) > MaxValue:
		return fmt.Errorf("%w: put of a key of %d and a value of %d bytes: at most %d and %d", ErrMalformed,
			len(p.Key), len(p.Value), MaxKey, MaxValue)
	case taken:
		return fmt.Errorf("key %s exists", p.Key)
	}
	n := p.Size()
	if s.weight+n > MaxBarrier || s.bytes+n > MaxSpace {
		return fmt.Errorf("%w: the ranks of this node have put more than %d MiB before a barrier, or all have put "+
			"more than %d", ErrMalformed, MaxBarrier>>20, MaxSpace>>20)
	}
	s.kv[p.Key] = p.Value
	s.fresh = append(s.fresh, p)
	s.weight += n
	s.bytes += n
	return nil
}

// valid refuses pairs that would break the lines sent to ranks.
func valid(pairs []launcher.Pair) error {
	for _, p := range pairs {
		switch {
		case p.Key == "" || len(p.Key) > MaxKey || len(p.Value) > MaxValue,
			strings.ContainsAny(p.Key, " \n\x00") || strings.ContainsAny(p.Value, "\n\x00"),
			!utf8.ValidString(p.Key) || !utf8.ValidString(p.Value):
			return fmt.Errorf("%w: key %.80q", ErrStrange, p.Key)
		}
	}
	return nil
}

func (s *Space) get(key string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.kv[key]
	return v, ok
}

// enter makes one local rank wait in the next barrier until it is over. A rank whose ctx
// ends still counts as in it: its job is about to end.
func (s *Space) enter(ctx context.Context) error {
	s.mu.Lock()
	s.in++
	n := s.barriers + 1
	if s.in == s.local && s.local == s.size {
		s.pass(s.fresh) // no other node to wait for
	}
	s.tell()
	s.mu.Unlock()
	return s.until(ctx, func() bool { return s.barriers >= n })
}

// until waits for ok, which is called with s.mu held.
func (s *Space) until(ctx context.Context, ok func() bool) error {
	for {
		s.mu.Lock()
		done, over, changed := ok(), s.over, s.changed
		s.mu.Unlock()
		switch {
		case done:
			return nil
		case over != nil:
			return over
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Barrier is one barrier on a node: what its ranks have put before it or, once it is Done,
// what those of all nodes have put.
type Barrier struct {
	Number int             `json:"number"` // 1, 2, ...
	Pairs  []launcher.Pair `json:"pairs,omitempty"`
	Done   bool            `json:"done,omitempty"`
}

// Next waits until every local rank is in barrier n, and returns what they have put; 0 is
// the next one. If that barrier has just ended it is returned as Done.
func (s *Space) Next(ctx context.Context, n int) (Barrier, error) {
	s.mu.Lock()
	if n == 0 {
		n = s.barriers + 1
	}
	past := n < s.barriers
	s.mu.Unlock()
	if past {
		return Barrier{}, fmt.Errorf("barrier %d: %w", n, ErrPast)
	}
	f := Barrier{Number: n}
	err := s.until(ctx, func() bool {
		switch {
		case s.barriers >= n:
			f.Done, f.Pairs = true, slices.Clone(s.last)
			return true
		case s.barriers == n-1 && s.in == s.local:
			f.Pairs = slices.Clone(s.fresh)
			return true
		}
		return false
	})
	return f, err
}

// Last gives the barrier that ended last, Done; number 0 before the first.
func (s *Space) Last() Barrier {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Barrier{Number: s.barriers, Pairs: slices.Clone(s.last), Done: s.barriers > 0}
}

// Pass ends a barrier that all ranks of all nodes are in: the local ranks get what was put,
// and go on. A barrier that is over is not changed. With ErrTooMuch or ErrStrange they do
// not go on.
func (s *Space) Pass(f Barrier) error {
	if err := valid(f.Pairs); err != nil {
		return fmt.Errorf("barrier %d: %w", f.Number, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case f.Number <= s.barriers:
		return nil
	case f.Number > s.barriers+1 || s.in < s.local:
		return fmt.Errorf("barrier %d: %d of %d ranks of this node are in barrier %d", f.Number, s.in, s.local, s.barriers+1)
	}
	bytes := s.bytes
	for _, p := range f.Pairs {
		if _, own := s.kv[p.Key]; !own {
			bytes += p.Size()
		}
	}
	if bytes > MaxSpace {
		return fmt.Errorf("barrier %d: %w", f.Number, ErrTooMuch)
	}
	s.bytes = bytes
	s.pass(f.Pairs)
	s.tell()
	return nil
}

// pass has no bound of its own: its input has been counted.
func (s *Space) pass(all []launcher.Pair) {
	for _, p := range all {
		if _, own := s.kv[p.Key]; !own {
			s.kv[p.Key] = p.Value
		}
	}
	s.last, s.fresh, s.weight, s.in = all, nil, 0, 0
	s.barriers++
}
