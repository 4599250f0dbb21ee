package dial

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// route is one address of a member.
type route struct {
	Addr   netip.AddrPort // a link-local address has its zone
	Fabric bool           // else management
}

func (r route) String() string {
	if r.Fabric {
		return "fabric " + r.Addr.String()
	}
	return "management " + r.Addr.String()
}

// network is what routes are made of: the Dialer's own, or a test's.
type network struct {
	// Routes lists where a member listens, the best first; an error says why no address
	// is known. It is called often and answers from memory.
	Routes func(id string) ([]route, error)
	// Connect opens a connection to an address; ctx bounds it.
	Connect func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Handshake proves that the member is at the other end; ctx bounds it.
	Handshake func(ctx context.Context, c net.Conn, id, proto string) (net.Conn, error)
	// Proto is the protocol for proving a route when no connection is wanted.
	Proto string
	// Acked tells how much of what was sent on a connection of Connect the peer has
	// acknowledged, for how long nothing has come from it, and whether anything is still
	// waiting for an acknowledgement. This comes from the kernel, not from the peer's
	// process, which may be slow for many reasons.
	Acked func(net.Conn) (bytes uint64, quiet time.Duration, waiting bool)
	// Cut tells whether this machine's own interface with that address has lost
	// its link.
	Cut func(local netip.Addr) bool
	// OnChange is called when Detour has changed for a member, OnBetter when a better
	// route works again than the one that some connection uses. Neither may block, or
	// call back except redial.
	OnChange, OnBetter func(id string)
	Logger             *slog.Logger
}

const (
	// firstHead is the head start of the best route, as RFC 8305 recommends;
	// nextHead that of each further one before the next.
	firstHead = 250 * time.Millisecond
	nextHead  = 100 * time.Millisecond
	// connectWithin bounds reaching an address: on one network it answers in milliseconds
	// or not at all. handshakeWithin allows for a busy peer: a handshake that is given up
	// was wasted work, and makes the next one slower.
	connectWithin   = 2 * time.Second
	handshakeWithin = 4 * time.Second
	// maxRoutes bounds a race.
	maxRoutes = 8

	// lookEvery is how often a connection is checked on which something waits.
	lookEvery = 100 * time.Millisecond
	// suspectAfter is how long a connection may wait for its peer's kernel to
	// acknowledge anything before other routes are tried. A delayed ACK takes
	// 40 ms; raft's lease, which should survive the change, 900 ms.
	suspectAfter = 300 * time.Millisecond
	// searchEvery is the pause between two searches for another route.
	searchEvery = time.Second
	// deadAfter is the same wait after which the connection is given up,
	// whether or not there is another route.
	deadAfter = 3 * time.Second
	// againEvery is how often a route that was left is tried, againTimes how often it
	// must work in a row: it is not worth moving to a link that comes and goes each
	// second.
	againEvery = 2 * time.Second
	againTimes = 2
)

// routes are one node's connections to members.
type routes struct {
	net   network
	began time.Time // conn.asked counts from here: a clock may be set while an answer is awaited

	ctx    context.Context // until Close
	cancel context.CancelFunc

	due   *time.Timer // the next look of watch
	armed atomic.Bool // due is set

	mu      sync.Mutex
	members map[string]*member
	closed  bool
	tasks   sync.WaitGroup
}

// member is what is known about the routes to one member.
type member struct {
	conns map[*conn]struct{}
	// left are the routes that did not work when another did, with how often in a row
	// they have worked since.
	left      map[netip.AddrPort]int
	searching bool
	searched  time.Time
	trying    bool
	tried     time.Time
	detour    bool // as reported last
}

// conn is an open connection and its route.
type conn struct {
	net.Conn
	r     *routes
	id    string
	proto string
	route route
	stays bool // on its route, though a better one works

	// asked is when something was written (routes.now) and nothing has come since; 0: nothing.
	asked atomic.Int64

	// Of the watch, under r.mu.
	acked   uint64
	waiting time.Time // since when nothing more was acknowledged; zero: nothing waits
}

// newRoutes makes routes; watch watches them.
func newRoutes(over network) *routes {
	r := &routes{net: over, began: time.Now(), members: map[string]*member{}, due: time.NewTimer(time.Hour)}
	r.due.Stop() // until something is written
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// now is a time for conn.asked, in ns, never 0.
func (r *routes) now() int64 { return int64(time.Since(r.began)) + 1 }

// Close ends attempts under way and waits for them. Connections stay open: they belong to
// their dialler.
func (r *routes) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.tasks.Wait()
}

// begin runs a task in a goroutine; false after Close.
func (r *routes) begin(task func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.tasks.Go(task)
	return true
}

// member gives a member's entry; r.mu is held.
func (r *routes) member(id string) *member {
	m := r.members[id]
	if m == nil {
		m = &member{conns: map[*conn]struct{}{}, left: map[netip.AddrPort]int{}}
		r.members[id] = m
	}
	return m
}

// Close takes the connection off the list.
func (c *conn) Close() error {
	c.r.mu.Lock()
	if m := c.r.members[c.id]; m != nil {
		delete(m.conns, c)
	}
	c.r.mu.Unlock()
	return c.Conn.Close()
}

// drop closes a connection whose route is left, and throws away unsent data: if it were
// sent later it would be outdated.
func (c *conn) drop() {
	if l, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}

// usable lists a member's routes in the order to try them: those that were left
// last.
func (r *routes) usable(id string) (best route, order []route, err error) {
	all, err := r.net.Routes(id)
	if err != nil {
		return route{}, nil, err
	}
	if len(all) == 0 {
		return route{}, nil, fmt.Errorf("reach node %s: no address of it is known", id)
	}
	all = all[:min(len(all), maxRoutes)]
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.member(id)
	isLeft := func(x route) bool { _, left := m.left[x.Addr]; return left }
	var last []route
	for _, x := range all {
		if isLeft(x) {
			last = append(last, x)
		} else {
			order = append(order, x)
		}
	}
	return all[0], append(order, last...), nil
}

// Dial opens a connection to a member over the best route that works.
func (r *routes) Dial(ctx context.Context, id, proto string) (net.Conn, error) {
	_, order, err := r.usable(id)
	if err != nil {
		return nil, err
	}
	return r.race(ctx, id, proto, order)
}

// DialFabric opens a connection over the k-th of the fabric routes to a member, counted
// round, and stays there until it is closed or the route is left; where none of them works,
// over the best route that does. Whoever opens several with k, k+1, ... uses all rails.
func (r *routes) DialFabric(ctx context.Context, id, proto string, k int) (net.Conn, error) {
	_, order, err := r.usable(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	left := r.member(id).left
	rails := slices.DeleteFunc(order, func(x route) bool { _, is := left[x.Addr]; return is || !x.Fabric })
	r.mu.Unlock()
	var open net.Conn
	failed := map[route]error{}
	for i := range rails {
		c := &conn{r: r, id: id, proto: proto, route: rails[(k+i)%len(rails)], stays: true}
		if open, err = r.openAs(ctx, c, nil); err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("reach node %s: %w", id, err)
		}
		failed[c.route] = err
	}
	if open == nil {
		open, err = r.Dial(ctx, id, proto)
	}
	if err != nil {
		return nil, err
	}
	for x, why := range failed { // now that another is proven
		r.leave(id, x, why.Error())
	}
	return open, nil
}

// Detour tells whether a member's best route did not work when another one did. For a
// member that is away it means nothing.
func (r *routes) Detour(id string) bool {
	best, _, err := r.usable(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	_, left := r.member(id).left[best.Addr]
	return err == nil && left
}

// redial closes a member's connections that do not use its best route, but for
// those of one protocol: whoever uses them dials again. It tells whether one of
// that protocol is left on a worse route.
func (r *routes) redial(id, but string) (left bool) {
	best, _, err := r.usable(id)
	if err != nil {
		return false
	}
	for _, c := range r.connsOf(id, func(c *conn) bool { return c.route.Addr != best.Addr && !c.stays }) {
		if c.proto == but {
			left = true
			continue
		}
		_ = c.Close()
	}
	return left
}

// Drop closes all connections to members that are gone.
func (r *routes) Drop(gone func(id string) bool) {
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

func (r *routes) connsOf(id string, which func(*conn) bool) (out []*conn) {
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

// leave notes that a route did not work when another did.
func (r *routes) leave(id string, route route, why string) {
	r.mu.Lock()
	m := r.member(id)
	_, known := m.left[route.Addr]
	m.left[route.Addr] = 0
	m.tried = time.Now()
	r.mu.Unlock()
	if !known {
		r.net.Logger.Warn("leave route", "node", id, "route", route, "why", why)
	}
	r.tellDetour(id)
}

// carries notes that a route works again.
func (r *routes) carries(id string, route route) {
	r.mu.Lock()
	m := r.member(id)
	_, was := m.left[route.Addr]
	delete(m.left, route.Addr)
	r.mu.Unlock()
	if was {
		r.net.Logger.Info("route carries again", "node", id, "route", route)
		r.tellDetour(id)
	}
}

// tellDetour calls OnChange if Detour says something new.
func (r *routes) tellDetour(id string) {
	now := r.Detour(id)
	r.mu.Lock()
	m := r.member(id)
	changed := now != m.detour
	m.detour = now
	r.mu.Unlock()
	if changed {
		r.net.OnChange(id)
	}
}

// better tells whether a comes before b among a member's routes; one that is not
// listed any more is the worst.
func better(all []route, a, b route) bool {
	at := func(x route) int {
		if i := slices.Index(all, x); i >= 0 {
			return i
		}
		return len(all)
	}
	return at(a) < at(b)
}
