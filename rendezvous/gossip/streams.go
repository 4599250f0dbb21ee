package gossip

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"
)

// Limits on what unauthenticated peers can make this node hold. memberlist reads up to 20
// MiB of each connection before it finds that it cannot decrypt them, and accepts any
// number.
const (
	maxStreams        = 64        // incoming connections at once
	maxStreamsPerAddr = 8         // from one address
	maxStreamBytes    = 256 << 10 // read of each: a table of 400 nodes
)

// bounded is memberlist's transport with bounds on incoming TCP. With too many
// connections the oldest is closed: a genuine one takes milliseconds.
type bounded struct {
	*memberlist.NetTransport
	out   chan net.Conn
	end   chan struct{}
	once  sync.Once
	tasks sync.WaitGroup

	mu   sync.Mutex
	open []*stream // oldest first
}

func newBounded(addr netip.Addr, port uint16, l *log.Logger) (*bounded, error) {
	inner, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{addr.String()},
		BindPort: int(port), Logger: l})
	if err != nil {
		return nil, err
	}
	b := &bounded{NetTransport: inner, out: make(chan net.Conn), end: make(chan struct{})}
	b.tasks.Go(b.pass)
	return b, nil
}

// StreamCh is where memberlist takes connections from.
func (b *bounded) StreamCh() <-chan net.Conn { return b.out }

// Shutdown is called before memberlist stops taking connections.
func (b *bounded) Shutdown() error {
	err := b.NetTransport.Shutdown()
	b.once.Do(func() { close(b.end) })
	b.tasks.Wait()
	return err
}

func (b *bounded) pass() {
	for {
		select {
		case c := <-b.NetTransport.StreamCh():
			s := b.enter(c)
			select {
			case b.out <- s:
			case <-b.end:
				s.Close()
				return
			}
		case <-b.end:
			return
		}
	}
}

func (b *bounded) enter(c net.Conn) *stream {
	s := &stream{Conn: c, of: b, left: maxStreamBytes}
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		s.from = a.AddrPort().Addr().Unmap()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	same := func(x *stream) bool { return x.from == s.from }
	held := 0
	for _, x := range b.open {
		if same(x) {
			held++
		}
	}
	switch {
	case held >= maxStreamsPerAddr:
		b.drop(slices.IndexFunc(b.open, same))
	case len(b.open) >= maxStreams:
		b.drop(0)
	}
	b.open = append(b.open, s)
	return s
}

// drop closes a stream, so that its reader gives it up. b.mu is held.
func (b *bounded) drop(i int) {
	_ = b.open[i].Conn.Close()
	b.open = slices.Delete(b.open, i, i+1)
}

// stream is one incoming connection.
type stream struct {
	net.Conn
	of   *bounded
	from netip.Addr
	left int // bytes that may still be read
}

func (s *stream) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, fmt.Errorf("more than %d bytes from %s: %w", maxStreamBytes, s.from, io.ErrShortBuffer)
	}
	n, err := s.Conn.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

func (s *stream) Close() error {
	s.of.mu.Lock()
	if i := slices.Index(s.of.open, s); i >= 0 {
		s.of.open = slices.Delete(s.of.open, i, i+1)
	}
	s.of.mu.Unlock()
	return s.Conn.Close()
}
