package consensus

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

func simLogger(n *simNode) *slog.Logger {
	if os.Getenv("CONSENSUS_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", n.num)
}

func (s *sim) upTo(d time.Duration) time.Duration { return time.Duration(s.rng.Int64N(int64(d))) }

func (s *sim) any() *simNode { return s.nodes[s.rng.IntN(len(s.nodes))] }

// target is a node, the leader every other time: faults elsewhere are easier.
func (s *sim) target() *simNode {
	n := s.any()
	if l := s.leader(); l != nil && s.rng.IntN(2) == 0 {
		return l.node
	}
	return n
}

// operate brings faults on the cluster for a while, one after another; some of
// them last while the next ones come.
func (s *sim) operate(span time.Duration, faults []func()) {
	for end := time.Now().Add(span); time.Now().Before(end); {
		time.Sleep(100*time.Millisecond + s.upTo(2*time.Second))
		faults[s.rng.IntN(len(faults))]()
		if s.rng.IntN(3) == 0 {
			s.net.calm()
		}
	}
}

// split parts the nodes in two.
func (s *sim) split() {
	var sides [2][]*simNode
	for _, n := range s.nodes {
		i := s.rng.IntN(2)
		sides[i] = append(sides[i], n)
	}
	for _, a := range sides[0] {
		for _, b := range sides[1] {
			s.net.block(a.id, b.id)
			s.net.block(b.id, a.id)
		}
	}
	time.Sleep(s.upTo(5 * time.Second))
}

// oneWay lets a node hear nobody, or nobody hear it, or cuts one direction of one link.
func (s *sim) oneWay() {
	n, kind, other := s.target(), s.rng.IntN(3), s.any()
	for _, o := range s.nodes {
		switch {
		case o == n || kind == 2 && o != other:
		case kind == 0:
			s.net.block(o.id, n.id)
		default:
			s.net.block(n.id, o.id)
		}
	}
	time.Sleep(s.upTo(5 * time.Second))
}

// isolate cuts a node off.
func (s *sim) isolate() {
	n := s.target()
	for _, o := range s.nodes {
		if o != n {
			s.net.block(o.id, n.id)
			s.net.block(n.id, o.id)
		}
	}
	time.Sleep(s.upTo(5 * time.Second))
}

// later boots a node after a while, unless somebody else has.
func (s *sim) later(n *simNode, d time.Duration) {
	s.wg.Go(func() {
		select {
		case <-time.After(d):
		case <-s.ctx.Done():
			return
		}
		if err := n.boot(false); err != nil {
			s.refused(n, err)
		}
	})
}

func (s *sim) crash() {
	n := s.target()
	n.down(s.rng.IntN(3) > 0)
	s.later(n, s.upTo(4*time.Second))
}

// blackout takes everybody's power at once: what only memory had is gone.
func (s *sim) blackout() {
	if s.rng.IntN(2) == 0 {
		return
	}
	for _, n := range s.nodes {
		n.down(true)
	}
	for _, n := range s.nodes {
		s.later(n, s.upTo(2*time.Second))
	}
}

func (s *sim) slowDisk() {
	slow, n := s.upTo(time.Second), s.target()
	if l := n.now(); l != nil {
		l.disk.set(slow, nil)
	}
}

// hungDisk hangs for less than the deadline, or for more.
func (s *sim) hungDisk() {
	n, d := s.target(), s.upTo(12*time.Second)
	l := n.now()
	if l == nil {
		return
	}
	hang := make(chan struct{})
	l.disk.set(0, hang)
	s.wg.Go(func() {
		select {
		case <-time.After(d):
		case <-s.ctx.Done():
		}
		l.disk.set(0, nil)
		close(hang)
	})
}

func (s *sim) roughNet() {
	s.net.rough(float64(s.rng.IntN(30))/100, float64(s.rng.IntN(30))/100, time.Millisecond+s.upTo(600*time.Millisecond))
}

// transfer passes the leadership on.
func (s *sim) transfer() {
	n := s.any()
	// A request that raft has not read when it is shut down keeps its goroutine for
	// ever (see DESIGN.md): not where a slow disk could hold it back.
	if l := s.leader(); l != nil && l.node != n && l.disk.quick() {
		ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
		defer cancel()
		_ = l.ApplyChange(ctx, Change{ID: n.id, From: Voter, To: Voter, Transfer: true})
	}
}

// wipeFollower takes a voter's whole memory, its vote included. raft can bear
// that only while nothing else is lost until it has caught up; and it must catch
// up within 30 s.
func (s *sim) wipeFollower() {
	n := s.any()
	if s.rng.IntN(3) > 0 || !s.heal() {
		return
	}
	if l := s.leader(); l == nil || l.node == n {
		return
	}
	n.wipe()
	if err := n.boot(false); err != nil {
		s.violated("start", "%s, wiped: %v", n.id, err)
	}
	begin := time.Now()
	if !s.heal() {
		s.violated("row 15 wiped follower", "%s has not caught up for %v", n.id, time.Since(begin))
	} else if d := time.Since(begin); d > 30*time.Second {
		s.violated("row 15 wiped follower", "%s caught up after %v", n.id, d)
	}
}

// faint cuts the links of a node for a moment only: streams break, raft may bear it.
func (s *sim) faint() {
	n := s.any()
	for _, o := range s.nodes {
		if o != n && s.rng.IntN(2) == 0 {
			s.net.block(o.id, n.id)
			s.net.block(n.id, o.id)
		}
	}
	time.Sleep(500*time.Millisecond + s.upTo(3*time.Second))
	s.net.calm()
}

// standstill is the fault that fences are for. A leader's machine stands still as
// it is about to start an attempt that is prepared; another takes over, finds that one
// node of the attempt has been restarted, lets the rest go and tries again elsewhere.
// It cannot tell so to the node that still has the first leader's ear; and then
// that leader's order arrives.
func (s *sim) standstill() {
	if !s.heal() {
		return
	}
	first := s.leader()
	if first == nil || first.theBrain() == nil {
		return
	}
	b := first.theBrain()
	b.still.Store(true)
	defer b.still.Store(false)
	s.stills++
	id := launcher.JobID(fmt.Sprintf("still%05d", s.stills))
	spec := launcher.Spec{
		ID: id, Name: string(id), Workload: "exec", Nodes: len(s.nodes), MinNodes: 1, MaxRestarts: 2,
		Grace: time.Second, StartTimeout: time.Minute,
		Stages: []launcher.Stage{{Name: "main", Main: true, RanksPerNode: 1, Argv: launcher.Lits("true"), Workdir: "/"}},
	}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	if b.Launch(ctx, spec) != nil {
		return
	}
	s.mu.Lock()
	s.launched = append(s.launched, id)
	s.mu.Unlock()
	wait := func(what func() bool) bool {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			if what() {
				return true
			}
		}
		return false
	}
	if !wait(b.held.Load) {
		return
	}
	gone, heir := s.nodes[first.node.num%len(s.nodes)], s.nodes[(first.node.num+1)%len(s.nodes)]
	gone.down(true)
	if gone.boot(false) != nil {
		return
	}
	s.tardy.Store(true)
	defer s.tardy.Store(false)
	_ = first.ApplyChange(ctx, Change{ID: heir.id, From: Voter, To: Voter, Transfer: true})
	if !wait(func() bool {
		l := s.leader()
		return l != nil && l.node == heir && l.theBrain() != nil && l.theBrain().attached() == len(s.nodes)
	}) {
		return
	}
	s.net.block(heir.id, first.node.id)
	s.net.block(first.node.id, heir.id)
	time.Sleep(2*time.Second + s.upTo(4*time.Second))
	b.still.Store(false)
	time.Sleep(2 * time.Second)
}
