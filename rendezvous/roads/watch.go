package roads

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Run watches the connections until ctx ends.
func (r *Roads) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.lookAround(false)
		case <-r.look:
			r.lookAround(true)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lookAround looks at each connection once; now says that something has
// changed, and that pauses are over.
func (r *Roads) lookAround(now bool) {
	r.mu.Lock()
	ids := make([]string, 0, len(r.members))
	for id := range r.members {
		ids = append(ids, id)
	}
	r.mu.Unlock()
	for _, id := range ids {
		r.lookAt(id, now)
	}
}

func (r *Roads) lookAt(id string, now bool) {
	r.mu.Lock()
	m := r.members[id]
	if m == nil {
		r.mu.Unlock()
		return
	}
	var suspects []Road
	var dead []*conn
	for c := range m.conns {
		switch waits := c.update(r.cfg.Acked); {
		case waits >= deadAfter:
			dead = append(dead, c)
		case waits >= suspectAfter || r.cfg.Cut(c.local()):
			suspects = append(suspects, c.road)
		}
	}
	search := len(suspects) > 0 && !m.searching && (now || time.Since(m.searched) >= searchEvery)
	try := len(m.left) > 0 && !m.trying && (now || time.Since(m.tried) >= againEvery)
	m.searching = m.searching || search
	m.trying = m.trying || try
	r.mu.Unlock()

	for _, c := range dead {
		r.cfg.Logger.Warn("give connection up", "node", id, "road", c.road, "unacknowledged", deadAfter)
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
}

// update tells how long the connection has been waiting for an acknowledgement;
// r.mu is held.
func (c *conn) update(acked func(net.Conn) (uint64, bool)) time.Duration {
	bytes, waiting := acked(c.Conn)
	switch {
	case !waiting:
		c.waiting = time.Time{}
	case c.waiting.IsZero() || bytes != c.acked:
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

// search looks for another road than those suspected. Only once one has been
// proven is a suspect left, if it still is one: a peer that is merely slow is
// slow on all of them.
func (r *Roads) search(id string, suspects []Road) {
	_, order, err := r.usable(id)
	if err != nil {
		return
	}
	suspected := map[netip.AddrPort]Road{}
	for _, s := range suspects {
		suspected[s.Addr] = s
	}
	var others []Road
	for _, o := range order {
		if _, is := suspected[o.Addr]; !is {
			others = append(others, o)
		}
	}
	if len(others) == 0 {
		return
	}
	c, err := r.race(r.ctx, id, r.cfg.Proto, others)
	if err != nil {
		return
	}
	defer c.Close()
	for _, s := range suspected {
		if why := r.stillSuspect(id, s); why != "" {
			r.leave(id, s, why)
			for _, c := range r.connsOf(id, func(c *conn) bool { return c.road.Addr == s.Addr }) {
				c.drop()
			}
		}
	}
}

// stillSuspect says why a road is; empty if it is not any more.
func (r *Roads) stillSuspect(id string, road Road) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.member(id).conns {
		if c.road.Addr != road.Addr {
			continue
		}
		if r.cfg.Cut(c.local()) {
			return "the link of this machine's interface is down"
		}
		if waits := c.update(r.cfg.Acked); waits >= suspectAfter {
			return fmt.Sprintf("nothing is acknowledged for %s", waits.Round(10*time.Millisecond))
		}
	}
	return ""
}

// tryLeft tries the roads that were left and are better than one in use.
func (r *Roads) tryLeft(id string) {
	all, err := r.cfg.Roads(id)
	listed := map[netip.AddrPort]Road{}
	for _, x := range all {
		listed[x.Addr] = x
	}
	r.mu.Lock()
	m := r.member(id)
	var left []Road
	for a := range m.left {
		if x, ok := listed[a]; ok && err == nil {
			left = append(left, x)
		} else {
			delete(m.left, a) // it is the member's no more
		}
	}
	r.mu.Unlock()
	for _, road := range left {
		c, err := r.open(r.ctx, id, r.cfg.Proto, road, nil)
		if err == nil {
			err = c.Close()
		}
		r.mu.Lock()
		m.left[road.Addr]++
		if err != nil {
			m.left[road.Addr] = 0
		}
		good := m.left[road.Addr] >= againTimes
		r.mu.Unlock()
		if !good {
			continue
		}
		r.carries(id, road)
		if len(r.connsOf(id, func(c *conn) bool { return better(all, road, c.road) })) > 0 {
			r.cfg.OnBetter(id)
		}
	}
	r.tellDetour(id)
}
