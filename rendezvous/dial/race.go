package dial

import (
	"context"
	"fmt"
	"net"
	"time"
)

// attempt is the result of connecting over one route.
type attempt struct {
	route route
	conn  net.Conn // of the handshake
	err   error
}

// race tries the routes one after the other, each with a head start before the
// next: the first that proves the member wins. A route that fails gives way at
// once. While a handshake is under way and the peer's kernel acknowledges it, no
// further route is tried: the peer is slow, on all of them, and would be slower
// with a second handshake to make.
func (r *routes) race(ctx context.Context, id, proto string, order []route) (net.Conn, error) {
	ends := make(chan attempt, len(order))
	connected := make(chan *conn, len(order))
	// Not under ctx: an attempt on a better route that is only slow goes on to its end,
	// in the background.
	trying, cancel := context.WithTimeout(r.ctx, connectWithin+2*handshakeWithin)
	started, ended := 0, 0
	shaking := map[route]*conn{}
	var failed []attempt
	// afterwards waits for the attempts that are under way.
	afterwards := func(inspect func([]attempt)) {
		if !r.begin(func() {
			defer cancel()
			rest := failed
			for range started - ended {
				rest = append(rest, <-ends)
			}
			inspect(rest)
		}) {
			cancel()
		}
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if started == len(order) {
				continue
			}
			if r.acknowledged(shaking) {
				timer.Reset(nextHead)
				continue
			}
			route := order[started]
			if !r.begin(func() {
				c, err := r.open(trying, id, proto, route, connected)
				ends <- attempt{route, c, err}
			}) {
				cancel()
				return nil, fmt.Errorf("reach node %s: %w", id, net.ErrClosed)
			}
			if timer.Reset(nextHead); started == 0 {
				timer.Reset(firstHead)
			}
			started++
		case c := <-connected:
			shaking[c.route] = c
		case a := <-ends:
			ended++
			delete(shaking, a.route)
			if a.err == nil {
				afterwards(func(others []attempt) { r.settle(id, a.route, others) })
				return a.conn, nil
			}
			failed = append(failed, a)
			if started < len(order) {
				timer.Reset(0)
			} else if ended == started {
				cancel()
				return nil, telling(failed)
			}
		case <-ctx.Done():
			cancel()
			afterwards(func(others []attempt) {
				for _, a := range others {
					a.close()
				}
			})
			return nil, fmt.Errorf("reach node %s: %w", id, ctx.Err())
		}
	}
}

func (a attempt) close() {
	if a.conn != nil {
		_ = a.conn.Close()
	}
}

// telling picks the error to show: management's is the most useful.
func telling(failed []attempt) error {
	for _, a := range failed {
		if !a.route.Fabric {
			return a.err
		}
	}
	return failed[0].err
}

// settle evaluates a race that one route has won: a better one that failed is left; one
// that was only slow is still the better one.
func (r *routes) settle(id string, won route, others []attempt) {
	all, err := r.net.Routes(id)
	if err != nil {
		all = nil
	}
	late := false
	for _, a := range others {
		a.close()
		switch {
		case !better(all, a.route, won) || r.ctx.Err() != nil:
		case a.err != nil:
			r.leave(id, a.route, a.err.Error())
		default:
			r.carries(id, a.route)
			late = true
		}
	}
	r.tellDetour(id)
	if late {
		r.net.OnBetter(id)
	}
}

// acknowledged tells whether the peer's kernel acknowledges some handshake.
func (r *routes) acknowledged(shaking map[route]*conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range shaking {
		if c.update(r.net.Acked) < suspectAfter && !r.net.Cut(c.local()) {
			return true
		}
	}
	return false
}

// open connects over one route, calls connected unless nil, and proves who is at the
// other end.
func (r *routes) open(ctx context.Context, id, proto string, route route, connected chan<- *conn) (net.Conn, error) {
	return r.openAs(ctx, &conn{r: r, id: id, proto: proto, route: route}, connected)
}

func (r *routes) openAs(ctx context.Context, c *conn, connected chan<- *conn) (net.Conn, error) {
	connecting, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	raw, err := r.net.Connect(connecting, c.route.Addr)
	if err != nil {
		return nil, err
	}
	c.Conn = raw
	if connected != nil {
		connected <- c
	}
	shaking, cancel := context.WithTimeout(ctx, handshakeWithin)
	defer cancel()
	proven, err := r.net.Handshake(shaking, c, c.id, c.proto)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	r.mu.Lock()
	r.member(c.id).conns[c] = struct{}{}
	r.mu.Unlock()
	return proven, nil
}
