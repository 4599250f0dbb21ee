package membership

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// ListConfig of a List. All of it is needed.
type ListConfig struct {
	Self   launcher.NodeID
	Trust  string // folder of this node's keys, its certificate, and the member list that it was told
	Record *rendezvous.Record
	Now    func() time.Time // the clock for checking certificates
	Logger *slog.Logger
}

// List is who is a member and who is a client, as far as this node knows: its own copy of the record or the list
// that it was told last, whichever is newer. See rendezvous/trust/DESIGN.md, "The member list".
type List struct {
	// Gate checks all handshakes against this list.
	Gate *trust.Gate

	cfg    ListConfig
	told   rendezvous.Latest[*wire.MemberList]
	taking sync.Mutex    // over told and its file
	ask    chan struct{} // a request for a newer list; has room for one

	parting sync.Map      // by id: nodes that are leaving; see part
	parted  chan struct{} // signals that partWithin is over for one; has room for one
}

// OpenList reads this node's certificate, renewing it if it can do so alone, and the list that it was told last.
func OpenList(cfg ListConfig) (*List, error) {
	l := &List{cfg: cfg, ask: make(chan struct{}, 1), parted: make(chan struct{}, 1)}
	id, err := trust.LoadIdentity(cfg.Trust)
	if err != nil {
		return nil, err
	}
	if id, err = l.renewAlone(id); err != nil {
		return nil, err
	}
	text, err := trust.LoadMembers(cfg.Trust)
	if err == nil {
		var r wire.MemberList
		if err = json.Unmarshal(text, &r); err == nil {
			l.told.Store(&r)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read who is a member: %w", err)
	}
	l.Gate, err = trust.NewGate(trust.Config{Identity: id, Members: l.admits, Now: cfg.Now})
	return l, err
}

func saveList(folder string, r wire.MemberList) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save who is a member: %w", err)
	}
	return trust.SaveMembers(folder, append(text, '\n'))
}

// later tells whether one position in the record comes after another.
func later(e launcher.Epoch, index uint64, than launcher.Epoch, thanIndex uint64) bool {
	c := e.Compare(than)
	return c > 0 || c == 0 && index > thanIndex
}

// newerTold is the list that this node was told if it is newer than its own copy of the record, else nil.
func (l *List) newerTold() *wire.MemberList {
	_, _, index := l.cfg.Record.Cluster()
	if t := l.told.Load(); t != nil && (index == 0 || later(t.Epoch, t.Index, l.cfg.Record.Epoch(), index)) {
		return t
	}
	return nil
}

// member finds a member on the newest list that this node has.
func (l *List) member(id launcher.NodeID) (wire.Member, bool) {
	if t := l.newerTold(); t != nil {
		for _, m := range t.Members {
			if m.ID == id {
				return m, true
			}
		}
		return wire.Member{}, false
	}
	m, ok := l.cfg.Record.Node(id)
	return listed(m), ok
}

func listed(m rendezvous.Node) wire.Member {
	return wire.Member{ID: m.ID, Host: m.Host, Key: m.Key, Addr: m.Addr}
}

// Client finds a client on the newest list that this node has.
func (l *List) Client(id string) (rendezvous.Client, bool) {
	if t := l.newerTold(); t != nil {
		for _, c := range t.Clients {
			if c.ID == id {
				return c, true
			}
		}
		return rendezvous.Client{}, false
	}
	return l.cfg.Record.Client(id)
}

// Listed gives a member's host and address from the record or from the list that this
// node was told.
func (l *List) Listed(id launcher.NodeID) (host string, at netip.AddrPort, ok bool) {
	if m, ok := l.cfg.Record.Node(id); ok {
		return m.Host, m.Addr, true
	}
	m, ok := l.member(id) // for a node outside raft, or whose copy lags behind
	return m.Host, m.Addr, ok
}

// known tells whether this node knows who is a member: the founder does not before the first entry, nor does a node
// that has joined and has not heard a leader yet.
func (l *List) known() bool {
	_, _, index := l.cfg.Record.Cluster()
	return index > 0 || l.told.Load() != nil
}

// now is the newest list that this node has.
func (l *List) now() wire.MemberList {
	if t := l.newerTold(); t != nil {
		return *t
	}
	var r wire.MemberList
	_, _, r.Index = l.cfg.Record.Cluster()
	r.Epoch = l.cfg.Record.Epoch()
	for _, m := range l.cfg.Record.Nodes() {
		r.Members = append(r.Members, listed(m))
	}
	r.Clients = l.cfg.Record.Clients()
	return r
}

// Members are who is a member by the newest list that this node has.
func (l *List) Members() []wire.Member { return l.now().Members }

// take adopts a list that is not older than the one told before.
func (l *List) take(r wire.MemberList) error {
	l.taking.Lock()
	defer l.taking.Unlock()
	old := l.told.Load()
	if old != nil && later(old.Epoch, old.Index, r.Epoch, r.Index) || len(r.Members) == 0 {
		return nil
	}
	if old != nil && slices.Equal(old.Members, r.Members) && slices.EqualFunc(old.Clients, r.Clients, sameClient) {
		l.told.Store(&r) // only the position on disk may lag: the list is the same
		return nil
	}
	if err := saveList(l.cfg.Trust, r); err != nil {
		return err
	}
	l.told.Store(&r)
	return nil
}

func sameClient(a, b rendezvous.Client) bool {
	return a.ID == b.ID && a.User == b.User && a.Host == b.Host && a.Key == b.Key
}

// admits checks id and key of a peer at every handshake and every call. A peer that joined while this node was away
// is refused at first, and a newer list is asked for.
func (l *List) admits(p trust.Peer, key trust.Pin) error {
	if p.Role == trust.RoleClient {
		return l.admitsClient(p, key)
	}
	if !l.known() {
		return nil // no list yet: the certificate has to do
	}
	m, known := l.member(launcher.NodeID(p.NodeID))
	switch {
	case !known:
		l.want()
		return rendezvous.ErrNoNode
	case m.Key != "" && m.Key != key.String():
		return fmt.Errorf("%s has another key", m.Host)
	case p.Role != trust.RoleNode:
		return fmt.Errorf("%s is a node, not a %s", m.Host, p.Role)
	}
	return nil
}

// admitsClient checks the list of clients. Unlike a member, a client is never admitted by
// its certificate alone.
func (l *List) admitsClient(p trust.Peer, key trust.Pin) error {
	switch c, listed := l.Client(p.NodeID); {
	case !listed:
		l.want() // it may have logged in while this node was away
		return rendezvous.ErrNoClient
	case c.Key != key.String():
		return fmt.Errorf("%s@%s has another key", c.User, c.Host)
	}
	return nil
}

// want requests a newer list, unless a request is under way.
func (l *List) want() {
	select {
	case l.ask <- struct{}{}:
	default:
	}
}

// partWithin is how long a node that leaves by its own request may keep its connections:
// the answer goes over one of them.
const partWithin = 10 * time.Second

// part lets a leaving node keep its open connections for a while. It gets no new ones,
// and its calls on the old ones are refused.
func (l *List) part(id launcher.NodeID) {
	l.parting.Store(id, true)
	time.AfterFunc(partWithin, func() {
		l.parting.Delete(id)
		select {
		case l.parted <- struct{}{}:
		default: // enforce is about to look
		}
	})
}

// isGone tells whether an id is neither a member's (any more) nor a client's.
func (l *List) isGone(id string) bool {
	if _, parts := l.parting.Load(launcher.NodeID(id)); parts || !l.known() || launcher.NodeID(id) == l.cfg.Self {
		return false
	}
	_, member := l.member(launcher.NodeID(id))
	_, client := l.Client(id)
	return !member && !client
}
