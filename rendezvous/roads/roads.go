// Package roads reaches members that have several addresses: on the management
// network, and on the fabric's.
//
// It decides over which address a connection is opened (the best one that
// carries, found by racing them, RFC 8305), when one has stopped carrying, and
// when a better one carries again. A road that is suspected is left only for
// another that was just proven: where there is none, nothing is torn down for
// being slow.
//
// It must not decide who is a member or dead, must not know what travels on a
// connection, and must not open a second connection where one will do.
package roads

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Road is one address of a member.
type Road struct {
	Addr   netip.AddrPort // a link-local address has its zone
	Fabric bool           // else management
}

func (r Road) String() string {
	if r.Fabric {
		return "fabric " + r.Addr.String()
	}
	return "management " + r.Addr.String()
}

// Config of one node's roads. Roads, Connect, Handshake and Logger are needed.
type Config struct {
	// Roads lists where a member listens, the best first; an error says why no
	// place is known. It is asked often and answers from memory.
	Roads func(id string) ([]Road, error)
	// Connect opens a connection to an address; ctx bounds it.
	Connect func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Handshake proves that the member is at the other end; ctx bounds it.
	Handshake func(ctx context.Context, c net.Conn, id, proto string) (net.Conn, error)
	// Proto is what a road is proven with, where no connection is wanted.
	Proto string
	// Acked tells how much of what was sent on a connection of Connect the peer
	// has acknowledged, and whether anything is still waiting for that. It is
	// the kernel's word, not the peer's process's, which may be slow for many
	// reasons. Nil: no road is ever suspected for its silence.
	Acked func(net.Conn) (bytes uint64, waiting bool)
	// Cut tells whether this machine's own interface with that address has lost
	// its link. Nil: it is not known.
	Cut func(local netip.Addr) bool
	// OnChange is called when Detour has changed for a member, OnBetter when a
	// better road carries again than the one that some connection uses. Neither
	// may block, or call back but for Leave.
	OnChange, OnBetter func(id string)
	Logger             *slog.Logger
}

const (
	// firstHead is the head start of the best road, as RFC 8305 recommends;
	// nextHead that of each further one before the next.
	firstHead = 250 * time.Millisecond
	nextHead  = 100 * time.Millisecond
	// connectWithin bounds reaching an address: on one network it answers in
	// milliseconds or not at all. handshakeWithin is a busy peer's share: one that
	// is given up was work for nothing, and makes the next one slower.
	connectWithin   = 2 * time.Second
	handshakeWithin = 4 * time.Second
	// maxRoads bounds a race.
	maxRoads = 8

	// lookEvery is how often connections are looked at.
	lookEvery = 100 * time.Millisecond
	// suspectAfter is how long a connection may wait for its peer's kernel to
	// acknowledge anything before other roads are tried. A delayed ACK takes
	// 40 ms; raft's lease, which should survive the change, 700 ms.
	suspectAfter = 300 * time.Millisecond
	// searchEvery is the pause between two searches for another road.
	searchEvery = time.Second
	// deadAfter is the same wait after which the connection is given up,
	// whether or not there is another road.
	deadAfter = 3 * time.Second
	// againEvery is how often a road that was left is tried, againTimes how
	// often it must carry in a row: a link that comes and goes each second is
	// not worth moving for.
	againEvery = 2 * time.Second
	againTimes = 2
)

// Roads are one node's connections to members.
type Roads struct {
	cfg Config

	ctx    context.Context // until Close
	cancel context.CancelFunc
	look   chan struct{} // has room for one

	mu      sync.Mutex
	members map[string]*member
	closed  bool
	tasks   sync.WaitGroup
}

// member is what is known of the roads to one member.
type member struct {
	conns map[*conn]struct{}
	// left are the roads that did not carry when another did, with how often in
	// a row they have carried since.
	left      map[netip.AddrPort]int
	searching bool
	searched  time.Time
	trying    bool
	tried     time.Time
	detour    bool // as told last
}

// conn is an open connection and its road.
type conn struct {
	net.Conn
	r     *Roads
	id    string
	proto string
	road  Road

	// Of the watch, under r.mu.
	acked   uint64
	waiting time.Time // since when nothing more was acknowledged; zero = nothing waits
}

// New makes roads; Run watches them.
func New(cfg Config) (*Roads, error) {
	if cfg.Roads == nil || cfg.Connect == nil || cfg.Handshake == nil || cfg.Logger == nil {
		return nil, errors.New("make roads: Roads, Connect, Handshake and Logger are needed")
	}
	nothing := func(string) {}
	if cfg.OnChange == nil {
		cfg.OnChange = nothing
	}
	if cfg.OnBetter == nil {
		cfg.OnBetter = nothing
	}
	if cfg.Acked == nil {
		cfg.Acked = func(net.Conn) (uint64, bool) { return 0, false }
	}
	if cfg.Cut == nil {
		cfg.Cut = func(netip.Addr) bool { return false }
	}
	r := &Roads{cfg: cfg, members: map[string]*member{}, look: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Close ends what is being tried and waits for it. Connections stay: they are
// their dialler's.
func (r *Roads) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.tasks.Wait()
}

// begin runs a task beside the caller; false after Close.
func (r *Roads) begin(task func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.tasks.Go(task)
	return true
}

// member gives a member's entry; r.mu is held.
func (r *Roads) member(id string) *member {
	m := r.members[id]
	if m == nil {
		m = &member{conns: map[*conn]struct{}{}, left: map[netip.AddrPort]int{}}
		r.members[id] = m
	}
	return m
}

// Close takes the connection out of the books.
func (c *conn) Close() error {
	c.r.mu.Lock()
	if m := c.r.members[c.id]; m != nil {
		delete(m.conns, c)
	}
	c.r.mu.Unlock()
	return c.Conn.Close()
}

// drop closes a connection whose road is left, and throws away what waits in
// it: sent later, it would be old.
func (c *conn) drop() {
	if l, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}

// usable lists a member's roads in the order to try them: those that were left
// last.
func (r *Roads) usable(id string) (best Road, order []Road, err error) {
	all, err := r.cfg.Roads(id)
	if err != nil {
		return Road{}, nil, err
	}
	if len(all) == 0 {
		return Road{}, nil, fmt.Errorf("reach node %s: no address of it is known", id)
	}
	all = all[:min(len(all), maxRoads)]
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.member(id)
	isLeft := func(x Road) bool { _, left := m.left[x.Addr]; return left }
	var last []Road
	for _, x := range all {
		if isLeft(x) {
			last = append(last, x)
		} else {
			order = append(order, x)
		}
	}
	return all[0], append(order, last...), nil
}

// Dial opens a connection to a member over the best road that carries.
func (r *Roads) Dial(ctx context.Context, id, proto string) (net.Conn, error) {
	_, order, err := r.usable(id)
	if err != nil {
		return nil, err
	}
	return r.race(ctx, id, proto, order)
}

// Detour tells that a member's best road did not carry when another one did.
// Of a member that is away it says nothing of use.
func (r *Roads) Detour(id string) bool {
	best, _, err := r.usable(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	_, left := r.member(id).left[best.Addr]
	return err == nil && left
}

// Leave closes a member's connections of one protocol that do not use its best
// road: whoever uses them dials again.
func (r *Roads) Leave(id, proto string) {
	best, _, err := r.usable(id)
	if err != nil {
		return
	}
	for _, c := range r.connsOf(id, func(c *conn) bool { return c.proto == proto && c.road.Addr != best.Addr }) {
		_ = c.Close()
	}
}

// Drop closes all connections to members that are gone.
func (r *Roads) Drop(gone func(id string) bool) {
	r.mu.Lock()
	var out []*conn
	for id, m := range r.members {
		if len(m.conns) > 0 && gone(id) {
			for c := range m.conns {
				out = append(out, c)
			}
		}
	}
	r.mu.Unlock()
	for _, c := range out {
		c.drop()
	}
}

// Astray tells whether some connection of one protocol to a member does not use
// its best road.
func (r *Roads) Astray(id, proto string) bool {
	best, _, err := r.usable(id)
	return err == nil && len(r.connsOf(id, func(c *conn) bool { return c.proto == proto && c.road.Addr != best.Addr })) > 0
}

func (r *Roads) connsOf(id string, which func(*conn) bool) (out []*conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[id]; m != nil {
		for c := range m.conns {
			if which(c) {
				out = append(out, c)
			}
		}
	}
	return out
}

// Look looks at all connections now: a link has come or gone.
func (r *Roads) Look() {
	select {
	case r.look <- struct{}{}:
	default:
	}
}

// leave notes that a road did not carry where another did.
func (r *Roads) leave(id string, road Road, why string) {
	r.mu.Lock()
	m := r.member(id)
	_, known := m.left[road.Addr]
	m.left[road.Addr] = 0
	m.tried = time.Now()
	r.mu.Unlock()
	if !known {
		r.cfg.Logger.Warn("leave road", "node", id, "road", road, "why", why)
	}
	r.tellDetour(id)
}

// carries notes that a road is good again.
func (r *Roads) carries(id string, road Road) {
	r.mu.Lock()
	m := r.member(id)
	_, was := m.left[road.Addr]
	delete(m.left, road.Addr)
	r.mu.Unlock()
	if was {
		r.cfg.Logger.Info("road carries again", "node", id, "road", road)
		r.tellDetour(id)
	}
}

// tellDetour calls OnChange if Detour says something new.
func (r *Roads) tellDetour(id string) {
	now := r.Detour(id)
	r.mu.Lock()
	m := r.member(id)
	changed := now != m.detour
	m.detour = now
	r.mu.Unlock()
	if changed {
		r.cfg.OnChange(id)
	}
}

// better tells whether a comes before b among a member's roads; one that is not
// listed any more is the worst.
func better(all []Road, a, b Road) bool {
	at := func(x Road) int {
		if i := slices.Index(all, x); i >= 0 {
			return i
		}
		return len(all)
	}
	return at(a) < at(b)
}
