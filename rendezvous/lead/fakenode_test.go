package lead

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// fakeNode does what an agent and its shims do, without processes.
type fakeNode struct {
	w    *world
	id   launcher.NodeID
	host string

	mu      sync.Mutex
	boot    string
	boots   int
	fence   launcher.Fence
	ledger  map[launcher.Key]*fakeTry
	links   map[*link]bool
	away    bool // cut off, or switched off
	refuses string
	deaf    bool          // its ranks ignore TERM
	stuck   string        // why its ranks survive KILL; empty: they do not
	slow    time.Duration // to prepare
	does    string        // what it tells of that
	ahead   time.Duration // its clock
	life    func(k launcher.Key, rank int) (time.Duration, *launcher.Exit)
	booted  time.Time
	running *int  // requests under way at its services; nil: their metrics do not say
	memory  int64 // for jobs, in bytes; 0: it does not tell
	old     bool  // of a version without leases
	// waits is what its probes of a step still wait for; nil: nothing.
	waits func(step int) string
	says  string // the last lines that its ranks have written meanwhile
	// mute: a service whose rank 0 is here never answers.
	mute bool
	// lingers is how long its ranks need to end when they are told to, and late what is then
	// found in their logs.
	lingers time.Duration
	late    string
}

// fakeTry is a ledger entry with what goes on behind it.
type fakeTry struct {
	launcher.LedgerEntry
	a         *launcher.Assignment // nil: a tombstone
	ending    bool
	killAt    time.Time
	forgotten bool
	until     launcher.Uptime // of its lease
	cause     string          // why its node ends it
}

// attach is the Hello of a leader: atomic with the ledger's copy.
func (n *fakeNode) attach(f launcher.Fence, lk *link) (Up, error) {
	time.Sleep(time.Millisecond)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away {
		return Up{}, errUnknown
	}
	next, err := n.fence.Raise(f)
	if err != nil {
		return Up{}, err
	}
	n.fence = next
	n.links[lk] = true
	up := Up{Boot: n.boot, Version: "test", Protocol: rendezvous.Protocol, Inventory: inventoryOf(n.host), Leases: !n.old,
		Memory: n.memory}
	for _, tr := range n.ledger {
		e := tr.LedgerEntry
		e.Ranks = append([]launcher.RankStatus(nil), e.Ranks...)
		up.Ledger = append(up.Ledger, e)
	}
	return up, nil
}

// detach ends the node's side of a stream. Orders that are on their way still
// come: the network keeps no promise about a dead leader's last words.
func (n *fakeNode) detach(lk *link) {
	n.mu.Lock()
	delete(n.links, lk)
	n.mu.Unlock()
	n.w.wg.Go(func() {
		time.Sleep(700 * time.Millisecond)
		lk.cut()
	})
}

// obey takes the orders of one stream until it is cut.
func (n *fakeNode) obey(lk *link) {
	for {
		for _, o := range lk.orders.take() {
			time.Sleep(time.Millisecond)
			n.mu.Lock()
			if !n.away {
				n.order(o)
			}
			n.mu.Unlock()
		}
		select {
		case <-lk.orders.ready:
			time.Sleep(n.w.lag)
		case <-lk.broken:
			return
		}
	}
}

// cutOff makes the node unreachable; heal makes it reachable again.
func (n *fakeNode) cutOff() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = true
	for lk := range n.links {
		lk.cut()
	}
}

func (n *fakeNode) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = false
}

// crash is a power cut: ranks, ledger and fence are gone, the boot is another.
// The node stays away until heal.
func (n *fakeNode) crash() {
	n.cutOff()
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, tr := range n.ledger {
		for _, st := range tr.Ranks {
			n.w.rankEnds(n.as(k, st.Rank, st.Again))
		}
	}
	n.boots++
	n.booted = time.Now()
	n.boot = n.host + "." + string(rune('0'+n.boots))
	n.fence = launcher.Fence{}
	n.ledger = map[launcher.Key]*fakeTry{}
}

// quit ends the node's goroutines.
func (n *fakeNode) quit() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for lk := range n.links {
		lk.cut()
	}
}

// Below, n.mu is held.

func (n *fakeNode) emit(ev launcher.Event) {
	ev.Node, ev.Time = n.id, time.Now().Add(n.ahead)
	if n.away {
		return
	}
	for lk := range n.links {
		lk.events.push(ev)
	}
}

// later runs fn under the lock unless the node has been booted since.
func (n *fakeNode) later(d time.Duration, fn func()) {
	boot := n.boot
	n.w.wg.Add(1)
	time.AfterFunc(d, func() {
		defer n.w.wg.Done()
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.boot == boot {
			fn()
		}
	})
}

func (n *fakeNode) order(o launcher.Order) {
	if n.fence.Admit(o.Fence) != nil {
		return
	}
	switch {
	case o.Prepare != nil:
		n.prepare(o.Prepare)
	case o.Start != nil:
		if tr := n.ledger[o.Start.Key]; tr != nil && tr.a != nil && tr.a.Spec.Stepped() {
			n.startStep(tr, *o.Start)
		} else if tr != nil && tr.Phase == launcher.PhasePrepared {
			if tr.a.Spec.Lease() > 0 && !n.lease(tr, o.Start.Lease) {
				tr.Refused = "no lease"
				n.emit(launcher.Event{Key: tr.Key, Kind: launcher.Refused, Text: tr.Refused})
				return
			}
			n.start(tr, o.Start.Port)
		}
	case o.Probe != nil:
		if tr := n.ledger[o.Probe.Key]; tr != nil {
			n.probe(tr, o.Probe.Step)
		}
	case o.Again != nil:
		if tr := n.ledger[o.Again.Key]; tr != nil && tr.a != nil {
			n.again(tr, *o.Again)
		}
	case o.End != nil:
		tr := n.ledger[o.End.Key]
		if tr == nil {
			tr = &fakeTry{LedgerEntry: launcher.LedgerEntry{Key: o.End.Key}}
			n.ledger[o.End.Key] = tr
		}
		n.end(tr, o.End.Grace)
	case o.Forget != nil:
		if tr := n.ledger[*o.Forget]; tr != nil {
			tr.forgotten = true
			n.end(tr, 0)
			n.tidy(tr)
		}
	}
}

func (n *fakeNode) prepare(a *launcher.Assignment) {
	if tr := n.ledger[a.Key]; tr != nil {
		switch {
		case tr.Refused != "":
			n.emit(launcher.Event{Key: a.Key, Kind: launcher.Refused, Text: tr.Refused})
		case tr.Phase == launcher.PhaseEnded:
			n.emit(launcher.Event{Key: a.Key, Kind: launcher.Ended})
		case tr.Phase >= launcher.PhasePrepared:
			n.emit(launcher.Event{Key: a.Key, Kind: launcher.Prepared, Port: tr.Port})
		}
		return
	}
	if a.Boot != n.boot {
		n.emit(launcher.Event{Key: a.Key, Kind: launcher.Refused, Text: launcher.ErrOtherBoot.Error()})
		return
	}
	tr := &fakeTry{LedgerEntry: launcher.LedgerEntry{Key: a.Key}, a: a}
	n.ledger[a.Key] = tr
	if n.does != "" {
		n.emit(launcher.Event{Key: a.Key, Kind: launcher.Preparing, Text: n.does})
	}
	n.later(n.slow+time.Millisecond, func() {
		switch {
		case tr.Phase != launcher.PhaseNone:
		case n.refuses != "":
			tr.Refused = n.refuses
			n.emit(launcher.Event{Key: a.Key, Kind: launcher.Refused, Text: n.refuses})
		default:
			tr.Phase = launcher.PhasePrepared
			if a.NodeRank == 0 {
				tr.Port = 29500
			}
			n.w.isPrepared(a.Key, n.id)
			n.emit(launcher.Event{Key: a.Key, Kind: launcher.Prepared, Port: tr.Port})
		}
	})
}

func (n *fakeNode) start(tr *fakeTry, port int) {
	tr.Phase, tr.Port = launcher.PhaseStarted, port
	if port != 29500 {
		n.w.fault("%s of %s is started with port %d", n.host, tr.Key, port)
	}
	for i := range tr.a.Ranks {
		rank := tr.a.FirstRank + i
		n.w.exec(n.as(tr.Key, rank, 0), tr.a.NodeCount)
		tr.Ranks = append(tr.Ranks,
			launcher.RankStatus{Rank: rank, State: launcher.RankRunning, PID: 1000 + rank, Time: time.Now()})
		if after, exit := n.life(tr.Key, rank); exit != nil {
			n.later(after, func() { n.exited(tr, rank, *exit) })
		}
	}
	n.emit(launcher.Event{Key: tr.Key, Kind: launcher.Started})
	n.serves(tr)
}

// serves has the service answer after a while, unless the node is mute.
func (n *fakeNode) serves(tr *fakeTry) {
	if tr.a.Spec.Service != nil && tr.a.NodeRank == 0 && !n.mute {
		n.later(10*time.Second, func() { n.sees(tr, launcher.ServiceReady, "") })
	}
}

// sees has a node find a service so.
func (n *fakeNode) sees(tr *fakeTry, state launcher.ServiceState, text string) {
	if tr.Phase != launcher.PhaseStarted || tr.ending {
		return
	}
	now := time.Now()
	seen := launcher.ServiceSeen{State: state, Since: now, Addr: tr.a.Management.String() + ":8000", Ready: &now,
		Text: text}
	if tr.Service != nil {
		seen.Ready = tr.Service.Ready
	}
	if n.running != nil {
		seen.Running = new(*n.running)
	}
	tr.Service = &seen
	n.emit(launcher.Event{Key: tr.Key, Kind: launcher.Served, Service: &seen})
}

// report has a node tell of a job's service, as it is now.
func (n *fakeNode) report(id launcher.JobID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, tr := range n.ledger {
		if k.Job == id && tr.Service != nil {
			n.sees(tr, launcher.ServiceReady, "")
		}
	}
}

// probe tells what a step waits for, each second until it waits no more.
func (n *fakeNode) probe(tr *fakeTry, step int) {
	if tr.Phase != launcher.PhaseStarted || tr.ending {
		return
	}
	ev := launcher.Event{Key: tr.Key, Kind: launcher.Probed, Step: step}
	if n.waits != nil {
		ev.Text, ev.Last = n.waits(step), n.says
	}
	n.emit(ev)
	if ev.Text != "" {
		n.later(time.Second, func() { n.probe(tr, step) })
	}
}

// startStep starts the ranks of one step that have not been.
func (n *fakeNode) startStep(tr *fakeTry, s launcher.Start) {
	if tr.Phase != launcher.PhasePrepared && tr.Phase != launcher.PhaseStarted || tr.ending {
		return
	}
	tr.Phase = launcher.PhaseStarted
	for i := range tr.a.Ranks {
		rank := tr.a.FirstRank + i
		step, _, _ := tr.a.Local(i)
		if step != s.Step || slices.ContainsFunc(tr.Ranks, func(st launcher.RankStatus) bool { return st.Rank == rank }) {
			continue
		}
		n.w.exec(n.as(tr.Key, rank, 0), tr.a.NodeCount)
		tr.Ranks = append(tr.Ranks,
			launcher.RankStatus{Rank: rank, State: launcher.RankRunning, PID: 1000 + rank, Time: time.Now()})
		if after, exit := n.life(tr.Key, rank); exit != nil {
			n.later(after, func() { n.exited(tr, rank, *exit) })
		}
	}
	n.emit(launcher.Event{Key: tr.Key, Kind: launcher.Started, Step: s.Step})
	n.serves(tr)
}

func (n *fakeNode) exited(tr *fakeTry, rank int, e launcher.Exit) {
	e.ByUs, e.Cause = tr.ending && tr.cause == "", tr.cause
	left := 0
	for i := range tr.Ranks {
		st := &tr.Ranks[i]
		if st.Rank == rank && st.Advance(launcher.RankStatus{Rank: rank, Again: st.Again, State: launcher.RankEnded,
			Exit: &e, Time: time.Now().Add(n.ahead)}) {
			n.w.rankEnds(n.as(tr.Key, rank, st.Again))
			n.emit(launcher.Event{Key: tr.Key, Kind: launcher.Exited, Rank: rank, Again: st.Again, Exit: &e})
		}
		if st.State != launcher.RankEnded {
			left++
		}
	}
	if left == 0 && (tr.ending || !tr.a.Spec.ReplacesOn(tr.a.NodeRank)) {
		n.ended(tr)
	}
}

// again starts a rank anew that has exited.
func (n *fakeNode) again(tr *fakeTry, o launcher.Again) {
	for i := range tr.Ranks {
		st := &tr.Ranks[i]
		if st.Rank != o.Rank || tr.Phase != launcher.PhaseStarted || tr.ending || st.State != launcher.RankEnded ||
			o.Again != st.Again+1 {
			continue
		}
		n.w.exec(n.as(tr.Key, o.Rank, o.Again), tr.a.NodeCount)
		st.Advance(launcher.RankStatus{Rank: o.Rank, Again: o.Again, State: launcher.RankRunning, PID: 1000 + o.Rank,
			Time: time.Now()})
		n.emit(launcher.Event{Key: tr.Key, Kind: launcher.Returned, Rank: o.Rank, Again: o.Again})
		if after, exit := n.life(tr.Key, o.Rank); exit != nil {
			n.later(after, func() { n.exited(tr, o.Rank, *exit) })
		}
	}
}

// as is a rank's life as the witness knows it: one in each boot, and each time that it comes again.
func (n *fakeNode) as(k launcher.Key, rank, again int) witnessed {
	return witnessed{k, rank, 1000*n.boots + again}
}

func (n *fakeNode) ended(tr *fakeTry) {
	if tr.Phase != launcher.PhaseEnded {
		tr.Phase, tr.Stuck = launcher.PhaseEnded, ""
		n.emit(launcher.Event{Key: tr.Key, Kind: launcher.Ended})
	}
	n.tidy(tr)
}

func (n *fakeNode) tidy(tr *fakeTry) {
	if tr.forgotten && tr.Phase == launcher.PhaseEnded && n.ledger[tr.Key] == tr {
		delete(n.ledger, tr.Key)
	}
}

// end does TERM, grace, KILL; a later, shorter grace counts.
func (n *fakeNode) end(tr *fakeTry, grace time.Duration) {
	if tr.Phase == launcher.PhaseEnded {
		n.emit(launcher.Event{Key: tr.Key, Kind: launcher.Ended})
		return
	}
	if tr.Phase < launcher.PhaseStarted {
		n.ended(tr)
		return
	}
	killAt := time.Now().Add(grace)
	if tr.ending && !killAt.Before(tr.killAt) {
		return
	}
	tr.ending, tr.killAt = true, killAt
	signal, after := 15, 5*time.Millisecond+n.lingers
	if n.deaf || grace == 0 {
		signal, after = 9, grace
	}
	n.later(after, func() {
		if n.stuck != "" {
			n.later(10*time.Second, func() {
				if tr.Phase != launcher.PhaseEnded {
					tr.Stuck = n.stuck
					n.emit(launcher.Event{Key: tr.Key, Kind: launcher.Stuck, Text: n.stuck})
				}
			})
			return
		}
		n.killed(tr, signal)
	})
}

func (n *fakeNode) killed(tr *fakeTry, signal int) {
	for _, st := range tr.Ranks {
		if st.State == launcher.RankRunning {
			n.exited(tr, st.Rank, launcher.Exit{Signal: signal, Words: n.late})
		}
	}
	if tr.Phase != launcher.PhaseEnded { // nobody was there
		n.ended(tr)
	}
}

// letDie lets go of who could not be killed.
func (n *fakeNode) letDie() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stuck = ""
	for _, tr := range n.ledger {
		if tr.ending {
			n.killed(tr, 9)
		}
	}
}

// exec is the witness's note that a rank was started. None may be before all
// nodes of the run have been prepared.
func (w *world) exec(k witnessed, nodes int) {
	w.mu.Lock()
	early := len(w.prepared[k.Key]) < nodes
	for other := range w.running {
		if other.Job == k.Job && other.Generation != k.Generation {
			w.faults = append(w.faults,
				fmt.Sprintf("rank %d of %s was started while rank %d of %s ran", k.rank, k.Key, other.rank, other.Key))
		}
	}
	w.execs[k]++
	w.running[k] = true
	w.mu.Unlock()
	if early {
		w.fault("rank %d of %s was started before all nodes were prepared", k.rank, k.Key)
	}
}

func (w *world) rankEnds(k witnessed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, k)
}

func (w *world) isPrepared(k launcher.Key, id launcher.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.prepared[k] == nil {
		w.prepared[k] = map[launcher.NodeID]bool{}
	}
	w.prepared[k][id] = true
}
