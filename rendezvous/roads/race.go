package roads

import (
	"context"
	"fmt"
	"net"
	"time"
)

// attempt is how a try of one road ended.
type attempt struct {
	road Road
	conn net.Conn // of the handshake
	err  error
}

// race tries the roads one after the other, each with a head start before the
// next: the first that proves the member wins. A road that fails gives way at
// once. While a handshake is under way and the peer's kernel acknowledges it, no
// further road is tried: the peer is slow, on all of them, and would be slower
// with a second handshake to make.
func (r *Roads) race(ctx context.Context, id, proto string, order []Road) (net.Conn, error) {
	ends := make(chan attempt, len(order))
	connected := make(chan *conn, len(order))
	// Not under ctx: a better road that is only slow is heard to its end, beside
	// the caller.
	trying, cancel := context.WithTimeout(r.ctx, connectWithin+2*handshakeWithin)
	started, ended := 0, 0
	shaking := map[Road]*conn{}
	var failed []attempt
	// afterwards hears the attempts that are under way to their ends.
	afterwards := func(judge func([]attempt)) {
		if !r.begin(func() {
			defer cancel()
			rest := failed
			for range started - ended {
				rest = append(rest, <-ends)
			}
			judge(rest)
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
			road := order[started]
			if !r.begin(func() {
				c, err := r.open(trying, id, proto, road, connected)
				ends <- attempt{road, c, err}
			}) {
				cancel()
				return nil, fmt.Errorf("reach node %s: %w", id, net.ErrClosed)
			}
			if timer.Reset(nextHead); started == 0 {
				timer.Reset(firstHead)
			}
			started++
		case c := <-connected:
			shaking[c.road] = c
		case a := <-ends:
			ended++
			delete(shaking, a.road)
			if a.err == nil {
				afterwards(func(others []attempt) { r.settle(id, a.road, others) })
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

// telling picks the error to show: management's says most.
func telling(failed []attempt) error {
	for _, a := range failed {
		if !a.road.Fabric {
			return a.err
		}
	}
	return failed[0].err
}

// settle draws the conclusions of a race that one road has won: a better one
// that failed is left, one that was only slow is better all the same.
func (r *Roads) settle(id string, won Road, others []attempt) {
	all, err := r.cfg.Roads(id)
	if err != nil {
		all = nil
	}
	late := false
	for _, a := range others {
		a.close()
		switch {
		case !better(all, a.road, won) || r.ctx.Err() != nil:
		case a.err != nil:
			r.leave(id, a.road, a.err.Error())
		default:
			r.carries(id, a.road)
			late = true
		}
	}
	r.tellDetour(id)
	if late {
		r.cfg.OnBetter(id)
	}
}

// acknowledged tells whether the peer's kernel hears some handshake.
func (r *Roads) acknowledged(shaking map[Road]*conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range shaking {
		if c.update(r.cfg.Acked) < suspectAfter && !r.cfg.Cut(c.local()) {
			return true
		}
	}
	return false
}

// open connects over one road, tells connected (nil: nobody), and proves who is
// there.
func (r *Roads) open(ctx context.Context, id, proto string, road Road, connected chan<- *conn) (net.Conn, error) {
	connecting, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	raw, err := r.cfg.Connect(connecting, road.Addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, r: r, id: id, proto: proto, road: road}
	if connected != nil {
		connected <- c
	}
	shaking, cancel := context.WithTimeout(ctx, handshakeWithin)
	defer cancel()
	proven, err := r.cfg.Handshake(shaking, c, id, proto)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	r.mu.Lock()
	r.member(id).conns[c] = struct{}{}
	r.mu.Unlock()
	return proven, nil
}
