package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/jobs"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Who is a member every node judges by the newest list that it has: its own copy
// of the record, or the roll that it was told last. See
// rendezvous/trust/DESIGN.md, "The roll".

// openGate makes the gate, with the roll that this node was told last.
func (n *node) openGate(id *trust.Identity) error {
	text, err := trust.LoadMembers(n.cfg.Paths.trust())
	if err == nil {
		var r wire.MemberList
		if err = json.Unmarshal(text, &r); err == nil {
			n.roll.Store(&r)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read who is a member: %w", err)
	}
	n.gate, err = trust.NewGate(trust.Config{Identity: id, Members: n.admits, Now: n.cfg.Now})
	return err
}

// openDoor makes the door for calls, and for raft in this node's epoch.
func (n *node) openDoor() (err error) {
	n.door, err = trust.NewListener(trust.ListenerConfig{
		Gate: n.gate, Protos: []trust.Proto{{Name: dial.Calls, Open: true}, {Name: n.failover.Proto()}}, Refused: n.refused,
	})
	return err
}

// refused writes down a connection that the door has turned away.
func (n *node) refused(from netip.AddrPort, err error) {
	n.log.Debug("refuse a connection", "from", from, "error", err)
	n.audit.Unauthenticated(audit.Line{What: "handshake", From: from.String(), Outcome: audit.Refused, Why: err.Error()})
}

func saveRoll(p Paths, r wire.MemberList) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save roll: %w", err)
	}
	return trust.SaveMembers(p.trust(), append(text, '\n'))
}

// later tells whether a place of the record comes after another.
func later(e launcher.Epoch, index uint64, than launcher.Epoch, thanIndex uint64) bool {
	c := e.Compare(than)
	return c > 0 || c == 0 && index > thanIndex
}

// told is the roll that this node was told, where it is newer than its own copy
// of the record; nil where that one counts.
func (n *node) toldRoll() *wire.MemberList {
	_, _, index := n.record.Cluster()
	if t := n.roll.Load(); t != nil && (index == 0 || later(t.Epoch, t.Index, n.record.Epoch(), index)) {
		return t
	}
	return nil
}

// onRoll finds a member on the newest list that this node has.
func (n *node) onRoll(id launcher.NodeID) (wire.Member, bool) {
	if t := n.toldRoll(); t != nil {
		for _, m := range t.Members {
			if m.ID == id {
				return m, true
			}
		}
		return wire.Member{}, false
	}
	m, ok := n.record.Node(id)
	return rollMember(m), ok
}

func rollMember(m rendezvous.Node) wire.Member {
	return wire.Member{ID: m.ID, Host: m.Host, Key: m.Key, Addr: m.Addr}
}

// hasRoll tells whether this node knows who is a member: one that has just been
// founded does not, nor one that joined under an older version and has met no leader.
func (n *node) hasRoll() bool {
	_, _, index := n.record.Cluster()
	return index > 0 || n.roll.Load() != nil
}

// rollNow is the newest list that this node has.
func (n *node) rollNow() wire.MemberList {
	if t := n.toldRoll(); t != nil {
		return *t
	}
	var r wire.MemberList
	_, _, r.Index = n.record.Cluster()
	r.Epoch = n.record.Epoch()
	for _, m := range n.record.Nodes() {
		r.Members = append(r.Members, rollMember(m))
	}
	r.Clients = n.record.Clients()
	return r
}

// admits is the membership list that every handshake and every call asks: by
// name and key. Whoever has joined while this node was away is refused at first,
// and asked about.
func (n *node) admits(p trust.Peer, key trust.Pin) error {
	if p.Role == trust.RoleClient {
		return n.admitsClient(p, key)
	}
	if !n.hasRoll() {
		return nil // nobody has told it yet: the certificate's word
	}
	m, known := n.onRoll(launcher.NodeID(p.NodeID))
	switch {
	case !known:
		n.wantRoll()
		return rendezvous.ErrNoNode
	case m.Key != "" && m.Key != key.String():
		return fmt.Errorf("%s has another key", m.Host)
	case p.Role != trust.RoleNode:
		return fmt.Errorf("%s is a node, and no %s", m.Host, p.Role)
	}
	return nil
}

// wantRoll has the list asked for, unless that is under way.
func (n *node) wantRoll() {
	select {
	case n.rollAsk <- struct{}{}:
	default:
	}
}

// partWithin is how long somebody who leaves of his own accord may keep what is
// open: the answer to that goes over it.
const partWithin = 10 * time.Second

// parts lets a node that asks to leave keep its open connections for a while. It
// gets no new ones, and its calls on the old ones are refused.
func (n *node) parts(id launcher.NodeID) {
	n.parting.Store(id, true)
	time.AfterFunc(partWithin, func() {
		n.parting.Delete(id)
		select {
		case n.parted <- struct{}{}:
		default: // enforce is about to look
		}
	})
}

// isGone tells of a node that it is no member any more, and of a client that it is none.
func (n *node) isGone(id string) bool {
	if _, parts := n.parting.Load(launcher.NodeID(id)); parts || !n.hasRoll() || launcher.NodeID(id) == n.m.Node {
		return false
	}
	_, known := n.onRoll(launcher.NodeID(id))
	_, client := n.clientOnRoll(id)
	return !known && !client
}

// enforce closes what those have open who are members no more.
func (n *node) enforce(ctx context.Context) error {
	for {
		recordChanged := n.record.Changed()
		_, rollChanged := n.roll.Watch()
		n.door.Sweep(n.isGone)
		n.dial.Drop(n.isGone)
		select {
		case <-recordChanged:
		case <-rollChanged:
		case <-n.parted:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// trusted is what this node knows of members and keys, for another one.
func (n *node) trusted() (wire.Trusted, error) {
	n.ringing.Lock() // a key goes from one of them to the other
	defer n.ringing.Unlock()
	keyring, err := n.ring()
	if err != nil {
		return wire.Trusted{}, err
	}
	retired, err := n.retired()
	return wire.Trusted{Members: n.rollNow(), Keyring: wireRing(keyring), Retired: wireRing(trust.Keyring(retired))}, err
}

func (n *node) ring() (trust.Keyring, error) { return trust.LoadGossipKeys(n.cfg.Paths.trust()) }

func wireRing(keyring trust.Keyring) (out []wire.GossipKey) {
	for _, k := range keyring {
		out = append(out, wire.GossipKey{Number: k.Number, Key: k.Reveal()})
	}
	return out
}

func ringOf(keys []wire.GossipKey) (keyring trust.Keyring) {
	for _, k := range keys {
		keyring = append(keyring, trust.GossipKey{Number: k.Number, Secret: trust.NewSecret(k.Key)})
	}
	return keyring
}

// takeRoll takes a list that is of a later place than the one told before, or of
// the same.
func (n *node) takeRoll(r wire.MemberList) error {
	n.ringing.Lock()
	defer n.ringing.Unlock()
	old := n.roll.Load()
	if old != nil && later(old.Epoch, old.Index, r.Epoch, r.Index) || len(r.Members) == 0 {
		return nil
	}
	if old != nil && slices.Equal(old.Members, r.Members) && slices.EqualFunc(old.Clients, r.Clients, sameClient) {
		n.roll.Store(&r) // its place may lag behind on disk: the list is the same
		return nil
	}
	if err := saveRoll(n.cfg.Paths, r); err != nil {
		return err
	}
	n.roll.Store(&r)
	return nil
}

// takeRing takes the leader's gossip keys, unless this node knows a newer one than
// any of them; it gives those that are in use then. Another member's, which may be
// behind a step, are taken for a newer key alone.
func (n *node) takeRing(keyring trust.Keyring, leaders bool) (trust.Keyring, error) {
	n.ringing.Lock()
	defer n.ringing.Unlock()
	own, err := n.ring()
	if err != nil {
		return nil, err
	}
	if err := keyring.Check(); err != nil {
		return own, fmt.Errorf("take gossip keys: %w: %w", launcher.ErrInvalid, err)
	}
	if _, newer := keyring.Merge(own); newer || own.Equal(keyring) {
		return own, nil
	}
	if _, newer := own.Merge(keyring); !newer && !leaders {
		return own, nil
	}
	if err := n.retire(own.Without(keyring)); err != nil { // first: a crash in between loses no key
		return own, err
	}
	if err := trust.SaveGossipKeys(n.cfg.Paths.trust(), keyring); err != nil {
		return own, err
	}
	if g := n.gossip.Load(); g != nil { // else it begins with what was saved
		if err := g.SetKeyring(keyring.Keys()); err != nil {
			return own, err
		}
		g.Rejoin()
	}
	n.log.Info("gossip keys changed", "keys", len(keyring), "number", keyring.Newest().Number)
	return keyring, nil
}

// retire keeps keys for the secrets of jobs that go on. ringing is held.
func (n *node) retire(keys trust.Keyring) error {
	old, err := n.retired()
	if err != nil {
		return err
	}
	if more := old.Add(keys); !more.Equal(old) {
		return trust.SaveRetired(n.cfg.Paths.trust(), more)
	}
	return nil
}

// takeRetired takes up keys of before. Those that are not among them go, where a leader that has the same ring says so.
func (n *node) takeRetired(t wire.Trusted, leaders bool) error {
	n.ringing.Lock()
	defer n.ringing.Unlock()
	own, err := n.ring()
	if err != nil {
		return err
	}
	told := ringOf(t.Retired)
	if len(told) > 0 {
		if err := told.Check(); err != nil {
			return fmt.Errorf("take keys of before: %w: %w", launcher.ErrInvalid, err)
		}
	}
	told = told.Without(own)
	if !leaders || !t.Settled || !own.Equal(ringOf(t.Keyring)) {
		return n.retire(told)
	}
	old, err := n.retired()
	if now := (trust.Retired{}).Add(told); err == nil && !now.Equal(old) {
		err = trust.SaveRetired(n.cfg.Paths.trust(), now)
	}
	return err
}

// settleKeys forgets the keys that no job needs any more; it tells whether all secrets of jobs that go on can be opened
// with those that are left.
func (n *node) settleKeys() (bool, error) {
	n.ringing.Lock()
	defer n.ringing.Unlock()
	keyring, err := n.ring()
	if err != nil {
		return false, err
	}
	old, err := n.retired()
	if err != nil {
		return false, err
	}
	needed, all, err := old.Keep(keyring, jobs.Sealed(n.record.Secretive()))
	if err != nil || !all || needed.Equal(old) {
		return all, err
	}
	return true, trust.SaveRetired(n.cfg.Paths.trust(), needed)
}

// keepTrusted takes the leader's word whom to trust.
func (n *node) keepTrusted(_ context.Context, c wire.Caller, t wire.Trusted) (wire.Trusted, error) {
	if c.Node != n.failover.Leader() {
		return wire.Trusted{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	if err := n.takeRoll(t.Members); err != nil {
		return wire.Trusted{}, err
	}
	keyring, err := n.takeRing(ringOf(t.Keyring), true)
	if err != nil {
		return wire.Trusted{Keyring: wireRing(keyring)}, err
	}
	if err := n.takeRetired(t, true); err != nil {
		return wire.Trusted{}, err
	}
	now, err := n.trusted()
	now.Members = wire.MemberList{} // nobody asked
	return now, err
}

func (n *node) askTrusted(context.Context, wire.Caller, wire.Empty) (wire.Trusted, error) {
	return n.trusted()
}

const (
	// askAgain is the pause between two rounds of asking members what they know.
	askAgain = time.Second
	// lonelyAfter is how often a node that hears nobody by gossip asks: its keys, or its list, may be old.
	lonelyAfter   = 5 * time.Second
	askRollWithin = 3 * time.Second
)

// keepRoll asks members for their list and keys, when somebody came who is not on
// this node's own list, and when it hears nobody.
func (n *node) keepRoll(ctx context.Context) error {
	lonely := time.NewTicker(lonelyAfter)
	defer lonely.Stop()
	for {
		select {
		case <-n.rollAsk:
		case <-lonely.C:
			if n.leading.Load() != nil || len(n.gossipAlive()) > 1 {
				n.shunned.Store(false)
				continue
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		n.askForRoll(ctx)
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// shunnedText is what to do about refusals by all who answer.
const shunnedText = "if it was taken out of the cluster while it was off (`sparkrun status` on another machine), `sudo sparkrun leave --force` here removes its keys; " +
	"else look at the clocks, and at audit.log there"

// askForRoll asks the members on this node's own list, all at once: whatever is
// newer counts.
func (n *node) askForRoll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askRollWithin)
	defer cancel()
	members := n.rollNow().Members
	var refused, answered atomic.Int32
	defer func() {
		shunned := refused.Load() > 0 && answered.Load() == 0
		if was := n.shunned.Swap(shunned); shunned && !was {
			n.log.Warn("other members refuse this machine", "remedy", shunnedText)
		}
	}()
	each(len(members), func(i int) {
		if members[i].ID == n.m.Node {
			return
		}
		t, err := wire.AskTrusted.Call(ctx, n.dial.Client(members[i].ID), wire.Empty{})
		switch {
		case err == nil:
			answered.Add(1)
		case strings.Contains(err.Error(), "tls: bad certificate"): // all that a refused end learns, and without a type
			refused.Add(1)
		}
		if err == nil {
			err = n.takeRoll(t.Members)
		}
		if err == nil {
			_, err = n.takeRing(ringOf(t.Keyring), false)
		}
		if err == nil {
			err = n.takeRetired(t, false)
		}
		if err != nil {
			n.log.Debug("ask who is a member", "node", members[i].Host, "error", err)
		}
	})
}

func (n *node) retired() (trust.Retired, error) { return trust.LoadRetired(n.cfg.Paths.trust()) }
