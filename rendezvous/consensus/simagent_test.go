package consensus

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
)

// simAgent stands in for an agent with its shims and ranks, which need processes
// of a real machine. Its fence is the product's own; the rest keeps the rules of
// launcher/agent in small. It outlives its node's raft: ranks do not end with an
// agent that is killed, only with the power.
type simAgent struct {
	s    *sim
	node *simNode
	id   launcher.NodeID
	rng  *rand.Rand

	mu     sync.Mutex
	boots  int
	fence  launcher.Fence
	ledger map[launcher.Key]*simTry
	links  map[*simLink]bool
}

type simTry struct {
	launcher.LedgerEntry
	a         *launcher.Assignment // nil: a tombstone
	ending    bool
	forgotten bool
}

func newSimAgent(s *sim, n *simNode) *simAgent {
	return &simAgent{s: s, node: n, id: launcher.NodeID(n.id), rng: rand.New(rand.NewPCG(s.seed, 1000+uint64(n.num))),
		ledger: map[launcher.Key]*simTry{}, links: map[*simLink]bool{}}
}

func (a *simAgent) boot() string { return fmt.Sprintf("%s.%d", a.id, a.boots) }

// powerLost ends everything here; the next boot has another id.
func (a *simAgent) powerLost() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.ledger {
		for _, r := range t.Ranks {
			a.s.witness.ends(t.Key, r.Rank)
		}
	}
	a.boots++
	a.fence, a.ledger = launcher.Fence{}, map[launcher.Key]*simTry{}
}

// attach lets a leader in and gives it the ledger, as one step.
func (a *simAgent) attach(f launcher.Fence, l *simLink) (lead.Up, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next, err := a.fence.Raise(f)
	if err != nil && a.s.bug != noFence {
		return lead.Up{}, err
	}
	a.fence = next
	a.links[l] = true
	up := lead.Up{Boot: a.boot(), Inventory: envgen.Inventory{Host: a.node.member().Host}}
	for _, t := range a.ledger {
		e := t.LedgerEntry
		e.Ranks = slices.Clone(e.Ranks)
		up.Ledger = append(up.Ledger, e)
	}
	return up, nil
}

func (a *simAgent) detach(l *simLink) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.links, l)
}

func (a *simAgent) order(o launcher.Order) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fence.Admit(o.Fence) != nil && a.s.bug != noFence {
		return
	}
	switch {
	case o.Prepare != nil:
		a.prepare(o.Prepare)
	case o.Start != nil:
		if t := a.ledger[o.Start.Key]; t != nil && t.Phase == launcher.PhasePrepared {
			a.start(t, o.Start.Port)
		}
	case o.End != nil:
		t := a.ledger[o.End.Key]
		if t == nil {
			t = &simTry{LedgerEntry: launcher.LedgerEntry{Key: o.End.Key}}
			a.ledger[o.End.Key] = t
		}
		a.end(t)
	case o.Forget != nil:
		if t := a.ledger[*o.Forget]; t != nil {
			t.forgotten = true
			a.end(t)
			a.tidy(t)
		}
	}
}

// Below, a.mu is held.

func (a *simAgent) tell(ev launcher.Event) {
	ev.Node, ev.Time = a.id, time.Now()
	for l := range a.links {
		l.up(ev)
	}
}

// after runs fn a while later, unless the power has gone since.
func (a *simAgent) after(d time.Duration, fn func()) {
	boots := a.boots
	a.s.wg.Go(func() {
		select {
		case <-time.After(d):
		case <-a.s.ctx.Done():
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.boots == boots {
			fn()
		}
	})
}

func (a *simAgent) prepare(as *launcher.Assignment) {
	if t := a.ledger[as.Key]; t != nil {
		switch {
		case t.Phase == launcher.PhaseEnded:
			a.tell(launcher.Event{Key: as.Key, Kind: launcher.Ended})
		case t.Phase >= launcher.PhasePrepared:
			a.tell(launcher.Event{Key: as.Key, Kind: launcher.Prepared, Port: t.Port})
		}
		return
	}
	refuse := func(err error) { a.tell(launcher.Event{Key: as.Key, Kind: launcher.Refused, Text: err.Error()}) }
	if as.Boot != a.boot() {
		refuse(launcher.ErrOtherBoot)
		return
	}
	for k, t := range a.ledger {
		if k.Job == as.Job && (k.Generation > as.Generation || t.Phase != launcher.PhaseEnded) {
			refuse(launcher.ErrStaleGeneration)
			return
		}
	}
	t := &simTry{LedgerEntry: launcher.LedgerEntry{Key: as.Key}, a: as}
	a.ledger[as.Key] = t
	a.after(time.Duration(1+a.rng.IntN(500))*time.Millisecond, func() {
		if t.Phase != launcher.PhaseNone {
			return
		}
		t.Phase = launcher.PhasePrepared
		if as.NodeRank == 0 {
			t.Port = 29500
		}
		a.s.witness.prepared(as.Key, a.id)
		a.tell(launcher.Event{Key: as.Key, Kind: launcher.Prepared, Port: t.Port})
	})
}

func (a *simAgent) start(t *simTry, port int) {
	t.Phase, t.Port = launcher.PhaseStarted, port
	for i := range t.a.Ranks {
		rank := t.a.FirstRank + i
		a.s.witness.exec(*t.a, rank)
		t.Ranks = append(t.Ranks,
			launcher.RankStatus{Rank: rank, State: launcher.RankRunning, PID: 1000 + rank, Time: time.Now()})
		exit := launcher.Exit{Code: a.rng.IntN(3) / 2} // a third fails
		a.after(time.Duration(200+a.rng.IntN(8000))*time.Millisecond, func() { a.exited(t, rank, exit) })
	}
	a.tell(launcher.Event{Key: t.Key, Kind: launcher.Started})
}

func (a *simAgent) exited(t *simTry, rank int, e launcher.Exit) {
	e.ByUs = t.ending
	left := false
	for i := range t.Ranks {
		r := &t.Ranks[i]
		if r.Rank == rank && r.Advance(launcher.RankStatus{Rank: rank, State: launcher.RankEnded, Exit: &e,
			Time: time.Now()}) {
			a.s.witness.ends(t.Key, rank)
			a.tell(launcher.Event{Key: t.Key, Kind: launcher.Exited, Rank: rank, Exit: &e})
		}
		left = left || r.State != launcher.RankEnded
	}
	if !left {
		a.ended(t)
	}
}

func (a *simAgent) ended(t *simTry) {
	if t.Phase != launcher.PhaseEnded {
		t.Phase = launcher.PhaseEnded
		a.tell(launcher.Event{Key: t.Key, Kind: launcher.Ended})
	}
	a.tidy(t)
}

func (a *simAgent) tidy(t *simTry) {
	if t.forgotten && t.Phase == launcher.PhaseEnded && a.ledger[t.Key] == t {
		delete(a.ledger, t.Key)
	}
}

// end is TERM, grace, KILL: the ranks take up to two seconds to go.
func (a *simAgent) end(t *simTry) {
	switch {
	case t.Phase == launcher.PhaseEnded:
		a.tell(launcher.Event{Key: t.Key, Kind: launcher.Ended})
	case t.Phase < launcher.PhaseStarted:
		a.ended(t)
	case !t.ending:
		t.ending = true
		a.after(time.Duration(a.rng.IntN(2000))*time.Millisecond, func() {
			for _, r := range slices.Clone(t.Ranks) {
				if r.State == launcher.RankRunning {
					a.exited(t, r.Rank, launcher.Exit{Signal: 15})
				}
			}
		})
	}
}

// simWitness stands outside: it believes what was exec'd, nobody's word. It knows
// what was asked for by its name, however often it was asked.
type simWitness struct {
	s     *sim
	mu    sync.Mutex
	execs map[string]int
	runs  map[launcher.Key]map[int]string // by rank: what was asked for
	ready map[launcher.Key]map[launcher.NodeID]bool
	begun map[launcher.JobID]int // ranks that were ever started
}

func newSimWitness(s *sim) *simWitness {
	return &simWitness{s: s, execs: map[string]int{}, runs: map[launcher.Key]map[int]string{},
		ready: map[launcher.Key]map[launcher.NodeID]bool{}, begun: map[launcher.JobID]int{}}
}

func (w *simWitness) prepared(k launcher.Key, id launcher.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ready[k] == nil {
		w.ready[k] = map[launcher.NodeID]bool{}
	}
	w.ready[k][id] = true
}

func (w *simWitness) exec(a launcher.Assignment, rank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun[a.Job]++
	name := a.Spec.Name
	what := fmt.Sprintf("%s generation %d rank %d", name, a.Generation, rank)
	if w.execs[what]++; w.execs[what] > 1 {
		w.s.violated("P2 started once", "%s was started %d times", what, w.execs[what])
	}
	if len(w.ready[a.Key]) < a.NodeCount {
		w.s.violated("P9 none before all are prepared", "%s", what)
	}
	for k, ranks := range w.runs {
		for r, other := range ranks {
			if other == name && k != a.Key {
				w.s.violated("P3 generations never overlap", "%s while rank %d of %s runs", what, r, k)
			}
		}
	}
	if w.runs[a.Key] == nil {
		w.runs[a.Key] = map[int]string{}
	}
	w.runs[a.Key][rank] = name
}

func (w *simWitness) ends(k launcher.Key, rank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.runs[k], rank)
}

// running lists what has not ended.
func (w *simWitness) running() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for k, ranks := range w.runs {
		for r := range maps.Keys(ranks) {
			out = append(out, fmt.Sprintf("%s rank %d", k, r))
		}
	}
	slices.Sort(out)
	return out
}
