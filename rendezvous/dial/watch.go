package dial

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// watch watches the connections until ctx ends. links changes when a link of this
// machine may have come or gone. Nothing ticks: r.due fires after a write that was not
// answered, and as long as what it finds has to be followed.
func (r *routes) watch(ctx context.Context, links *rendezvous.Latest[envgen.Inventory]) error {
	_, changed := links.Watch()
	defer r.due.Stop()
	for {
		now := false
		select {
		case <-r.due.C:
		case <-changed:
			_, changed = links.Watch()
			now = true
		case <-ctx.Done():
			return ctx.Err()
		}
		r.armed.Store(false)
		if next := r.lookAround(now); next > 0 {
			r.armed.Store(true)
			r.due.Reset(min(next, suspectAfter)) // something may have been written meanwhile
		}
	}
}

// Write notes since when the peer owes an answer.
func (c *conn) Write(b []byte) (int, error) {
	if c.asked.Load() == 0 {
		c.asked.CompareAndSwap(0, c.r.now())
		if !c.r.armed.Swap(true) {
			c.r.due.Reset(suspectAfter)
		}
	}
	return c.Conn.Write(b)
}

// Read takes what comes for the answer. If it is none, the next write is looked at.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.asked.Load() != 0 {
		c.asked.Store(0)
	}
	return n, err
}

// lookAround checks the connections and gives the pause before the next look; 0: until the
// next write. now: something has changed, so do not wait for pauses.
func (r *routes) lookAround(now bool) (next time.Duration) {
	r.mu.Lock()
	ids := make([]string, 0, len(r.members))
	for id := range r.members {
		ids = append(ids, id)
	}
	r.mu.Unlock()
	for _, id := range ids {
		next = sooner(next, r.lookAt(id, now))
	}
	return next
}

// sooner is the shorter of two pauses; 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

func (r *routes) lookAt(id string, now bool) (next time.Duration) {
	r.mu.Lock()
	m := r.members[id]
	if m == nil {
		r.mu.Unlock()
		return 0
	}
	var suspects []route
	var dead []*conn
	for c := range m.conns {
		waits, again := c.look(r.net.Acked)
		switch cut := r.net.Cut(c.local()); {
		case waits >= deadAfter:
			dead = append(dead, c)
		case waits >= suspectAfter || cut:
			suspects = append(suspects, c.route)
			again = suspectAfter
		}
		next = sooner(next, again)
	}
	if len(m.left) > 0 {
		next = sooner(next, againEvery)
	}
	search := len(suspects) > 0 && !m.searching && (now || time.Since(m.searched) >= searchEvery)
	try := len(m.left) > 0 && !m.trying && (now || time.Since(m.tried) >= againEvery)
	m.searching = m.searching || search
	m.trying = m.trying || try
	r.mu.Unlock()

	for _, c := range dead {
		r.net.Logger.Warn("give connection up", "node", id, "route", c.route, "unacknowledged", deadAfter)
		c.drop()
	}
	if search {
		r.begin(func() {
			r.search(id, suspects)
			r.mu.Lock()
			m.searching, m.searched = false, time.Now()
			r.mu.Unlock()
		})
	}
	if try {
		r.begin(func() {
			r.tryLeft(id)
			r.mu.Lock()
			m.trying, m.tried = false, time.Now()
			r.mu.Unlock()
		})
	}
	return next
}

// look tells how long the connection has been waiting for an acknowledgement, and when to
// look again; 0: after the next write. The kernel is asked only about a write that has had
// no answer for suspectAfter; r.mu is held.
func (c *conn) look(acked func(net.Conn) (uint64, time.Duration, bool)) (waits, again time.Duration) {
	asked := c.asked.Load()
	if asked == 0 && c.waiting.IsZero() {
		return 0, 0
	}
	if c.waiting.IsZero() {
		if left := suspectAfter - time.Duration(c.r.now()-asked); left > 0 {
			return 0, left
		}
	}
	if waits = c.update(acked); c.waiting.IsZero() {
		c.asked.CompareAndSwap(asked, 0) // the peer's kernel has it: the peer is slow
		return 0, 0
	}
	return waits, lookEvery
}

// update tells how long the connection has been waiting for an acknowledgement;
// r.mu is held.
func (c *conn) update(acked func(net.Conn) (uint64, time.Duration, bool)) time.Duration {
	bytes, quiet, waiting := acked(c.Conn)
	switch {
	case !waiting:
		c.waiting = time.Time{}
	case c.waiting.IsZero():
		c.waiting = time.Now().Add(-quiet)
		if asked := c.asked.Load(); asked != 0 && c.r.began.Add(time.Duration(asked)).After(c.waiting) {
			c.waiting = c.r.began.Add(time.Duration(asked)) // it was idle before
		}
	case bytes != c.acked:
		c.waiting = time.Now()
	}
	c.acked = bytes
	if c.waiting.IsZero() {
		return 0
	}
	return time.Since(c.waiting)
}

func (c *conn) local() netip.Addr {
	if a, ok := c.LocalAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// search looks for another route than the suspected ones. A suspect is left only once
// another one was proven, and if it is still suspected then: a peer that is merely slow
// is slow on all routes.
func (r *routes) search(id string, suspects []route) {
	_, order, err := r.usable(id)
	if err != nil {
		return
	}
	suspected := map[netip.AddrPort]route{}
	for _, s := range suspects {
		suspected[s.Addr] = s
	}
	var others []route
	for _, o := range order {
		if _, is := suspected[o.Addr]; !is {
			others = append(others, o)
		}
	}
	if len(others) == 0 {
		return
	}
	c, err := r.race(r.ctx, id, r.net.Proto, others)
	if err != nil {
		return
	}
	defer c.Close()
	for _, s := range suspected {
		if why := r.stillSuspect(id, s); why != "" {
			r.leave(id, s, why)
			for _, c := range r.connsOf(id, func(c *conn) bool { return c.route.Addr == s.Addr }) {
				c.drop()
			}
		}
	}
}

// stillSuspect says why a route is suspected; empty if it no longer is.
func (r *routes) stillSuspect(id string, route route) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.member(id).conns {
		if c.route.Addr != route.Addr {
			continue
		}
		if r.net.Cut(c.local()) {
			return "the link of this machine's interface is down"
		}
		if waits := c.update(r.net.Acked); waits >= suspectAfter {
			return fmt.Sprintf("nothing is acknowledged for %s", waits.Round(10*time.Millisecond))
		}
	}
	return ""
}

// tryLeft tries the routes that were left and are better than one in use.
func (r *routes) tryLeft(id string) {
	all, err := r.net.Routes(id)
	listed := map[netip.AddrPort]route{}
	for _, x := range all {
		listed[x.Addr] = x
	}
	r.mu.Lock()
	m := r.member(id)
	var left []route
	for a := range m.left {
		if x, ok := listed[a]; ok && err == nil {
			left = append(left, x)
		} else {
			delete(m.left, a) // the member no longer has it
		}
	}
	r.mu.Unlock()
	for _, route := range left {
		c, err := r.open(r.ctx, id, r.net.Proto, route, nil)
		if err == nil {
			err = c.Close()
		}
		r.mu.Lock()
		m.left[route.Addr]++
		if err != nil {
			m.left[route.Addr] = 0
		}
		good := m.left[route.Addr] >= againTimes
		r.mu.Unlock()
		if !good {
			continue
		}
		r.carries(id, route)
		if len(r.connsOf(id, func(c *conn) bool { return !c.stays && better(all, route, c.route) })) > 0 {
			r.net.OnBetter(id)
		}
	}
	r.tellDetour(id)
}
