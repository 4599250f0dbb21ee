package gossip

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// conflictQuiet is how long the same conflict is not reported again.
const conflictQuiet = time.Minute

// table is our own copy of which nodes are there. memberlist calls it under its lock:
// every method takes the table's lock for a few copies and returns, and none calls
// memberlist or the user.
//
// Events are not queued but derived: deliver compares what it has reported with the
// current state. So a slow listener costs no memory, however much nodes flap.
type table struct {
	mu      sync.Mutex
	closed  bool
	meta    Meta
	encoded []byte
	self    Peer
	now     map[string]*Peer // every known node except this one and those that left
	left    map[string]Peer  // left and not reported yet
	dirty   []string         // ids for deliver to look at, in order
	wake    chan struct{}

	conflicts []Event
	quiet     map[string]time.Time // conflicts reported recently
	unsettled bool                 // a peer has an outdated view of this node
}

var (
	_ memberlist.Delegate         = (*table)(nil)
	_ memberlist.EventDelegate    = (*table)(nil)
	_ memberlist.AliveDelegate    = (*table)(nil)
	_ memberlist.ConflictDelegate = (*table)(nil)
	_ memberlist.MergeDelegate    = (*table)(nil)
)

func newTable(m Meta, encoded []byte) *table {
	return &table{
		meta: m, encoded: encoded, self: Peer{ID: m.ID, Host: m.Host, RPCPort: m.RPCPort, Meta: m, Alive: true},
		now: map[string]*Peer{}, left: map[string]Peer{}, quiet: map[string]time.Time{}, wake: make(chan struct{}, 1),
	}
}

func (t *table) setSelf(p Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.self.Addr, t.self.Port = p.Addr, p.Port
}

func (t *table) selfPeer() Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.self
}

func (t *table) setMeta(m Meta, encoded []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.meta, t.encoded = m, encoded
	t.self.Meta, t.self.Host, t.self.RPCPort = m, m.Host, m.RPCPort
}

func (t *table) peers() []Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return sortedPeers(t.now)
}

// close stops taking changes: memberlist's timers may still fire after Shutdown.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// mark asks deliver to look at a node; the lock is held.
func (t *table) mark(id string) {
	if !slices.Contains(t.dirty, id) {
		t.dirty = append(t.dirty, id)
	}
	t.poke()
}

func (t *table) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// NodeMeta implements memberlist.Delegate; the limit is checked by Encode.
func (t *table) NodeMeta(int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.encoded)
}

// The rest of memberlist.Delegate is not used.

func (*table) NotifyMsg([]byte)                {}
func (*table) GetBroadcasts(int, int) [][]byte { return nil }
func (*table) LocalState(bool) []byte          { return nil }
func (*table) MergeRemoteState([]byte, bool)   {}

// NotifyAlive refuses a node whose metadata is not valid or names another node.
func (*table) NotifyAlive(n *memberlist.Node) error {
	m, err := decodeMeta(n.Meta)
	if err != nil {
		return err
	}
	if m.ID != n.Name {
		return fmt.Errorf("node %q calls itself %s", n.Name, m.ID)
	}
	if a, ok := netip.AddrFromSlice(n.Addr); !ok || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("node %s has the address %v", n.Name, n.Addr)
	}
	return nil
}

// NotifyJoin implements memberlist.EventDelegate.
func (t *table) NotifyJoin(n *memberlist.Node) { t.set(toPeer(n), true) }

// NotifyUpdate implements memberlist.EventDelegate.
func (t *table) NotifyUpdate(n *memberlist.Node) { t.set(toPeer(n), true) }

// NotifyLeave implements memberlist.EventDelegate.
func (t *table) NotifyLeave(n *memberlist.Node) {
	p := toPeer(n)
	if p.Meta.Leaving { // n.State is not filled in here
		t.drop(p)
		return
	}
	t.set(p, false)
}

func (t *table) set(p Peer, alive bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || p.ID == t.self.ID {
		return
	}
	old := t.now[p.ID]
	p.Alive, p.Since = alive, time.Now()
	if old != nil && old.Alive == alive {
		p.Since = old.Since
	}
	t.now[p.ID] = &p
	delete(t.left, p.ID)
	t.mark(p.ID)
	if alive {
		t.checkHost(p)
	}
}

func (t *table) drop(p Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || p.ID == t.self.ID {
		return
	}
	delete(t.now, p.ID)
	p.Since = time.Now()
	t.left[p.ID] = p
	t.mark(p.ID)
}

// checkHost reports two live nodes with one host name; the lock is held.
func (t *table) checkHost(p Peer) {
	if t.self.Host == p.Host {
		t.conflict(HostConflict, p, t.self)
	}
	for _, q := range t.now {
		if q.ID != p.ID && q.Alive && q.Host == p.Host {
			t.conflict(HostConflict, p, *q)
		}
	}
}

func (t *table) conflict(k Kind, p, other Peer) {
	key := fmt.Sprint(k, p.ID, p.Gossip(), other.ID)
	if time.Since(t.quiet[key]) < conflictQuiet {
		return
	}
	if len(t.quiet) > 256 || len(t.conflicts) > 256 {
		clear(t.quiet)
		t.conflicts = nil
	}
	t.quiet[key] = time.Now()
	t.conflicts = append(t.conflicts, Event{Kind: k, Peer: p, Other: &other})
	t.poke()
}

// NotifyConflict implements memberlist.ConflictDelegate.
func (t *table) NotifyConflict(existing, other *memberlist.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.conflict(IDConflict, toPeer(other), toPeer(existing))
}

// NotifyMerge implements memberlist.MergeDelegate. It is called with a peer's view, also
// of this node: while a peer has a wrong address of it or believes it dead, the rejoin
// loop tries again soon. (A peer that does not know this node at all learns about it in
// this very exchange.) Nothing is ever refused.
func (t *table) NotifyMerge(peers []*memberlist.Node) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range peers {
		if n.Name != t.self.ID {
			continue
		}
		addr, _ := netip.AddrFromSlice(n.Addr)
		if n.State != memberlist.StateAlive || netip.AddrPortFrom(addr.Unmap(), n.Port) != t.self.Gossip() {
			t.unsettled = true
		}
	}
	return nil
}

// settled tells whether all peers heard since the last call have the right view of this
// node.
func (t *table) settled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok := !t.unsettled
	t.unsettled = false
	return ok
}

// next gives the next events: the difference between told and now.
func (t *table) next(told map[string]Peer) (events []Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range t.dirty {
		was, known := told[id]
		if p, gone := t.left[id]; gone {
			delete(t.left, id)
			if known {
				events = append(events, Event{Kind: Left, Peer: p})
			}
			delete(told, id)
			continue
		}
		now, ok := t.now[id]
		if !ok {
			continue
		}
		switch {
		case now.Alive && (!known || !was.Alive):
			events = append(events, Event{Kind: Joined, Peer: *now})
		case !now.Alive && known && was.Alive:
			events = append(events, Event{Kind: Dead, Peer: *now})
		case now.Alive && (was.Meta != now.Meta || was.Gossip() != now.Gossip()):
			events = append(events, Event{Kind: Updated, Peer: *now})
		}
		told[id] = *now
	}
	t.dirty = nil
	events = append(events, t.conflicts...)
	t.conflicts = nil
	return events
}

// deliver reports the changes until ctx ends.
func (t *table) deliver(ctx context.Context, log *slog.Logger, onChange func(Event)) error {
	told := map[string]Peer{}
	// A second Run reports everything again.
	t.mu.Lock()
	for id := range t.now {
		t.mark(id)
	}
	t.mu.Unlock()
	for {
		for _, e := range t.next(told) {
			level := slog.LevelInfo
			attrs := []any{"kind", e.Kind.String(), "node", e.Peer.ID, "host", e.Peer.Host, "addr", e.Peer.Gossip().String()}
			if e.Other != nil {
				level = slog.LevelWarn
				attrs = append(attrs, "other", e.Other.ID, "other_addr", e.Other.Gossip().String())
			}
			log.Log(ctx, level, "gossip", attrs...)
			onChange(e)
		}
		select {
		case <-t.wake:
		case <-ctx.Done():
			return nil
		}
	}
}
