package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// ordinaryHeartbeats is a transport whose heartbeats are handled like every other
// request. raft would answer them outside its main loop, which can then believe in a
// leader of a term that it has just left (raft #695). The price: a follower with a slow
// disk answers late.
type ordinaryHeartbeats struct {
	raft.Transport
	copies *copies
}

func (ordinaryHeartbeats) SetHeartbeatHandler(func(raft.RPC)) {}

func (t ordinaryHeartbeats) RequestPreVote(id raft.ServerID, addr raft.ServerAddress, req *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	return askTwice(func() error {
		return t.Transport.(raft.WithPreVote).RequestPreVote(id, addr, req, resp) // checked by withDefaults
	})
}

func (t ordinaryHeartbeats) RequestVote(id raft.ServerID, addr raft.ServerAddress, req *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse) error {
	return askTwice(func() error { return t.Transport.RequestVote(id, addr, req, resp) })
}

// askTwice asks for a vote again if the connection was dead: raft keeps one of each server since it last asked, which
// may be an election ago, and would stand again only after another election time-out. To ask twice for the same vote
// does no harm.
func askTwice(ask func() error) error {
	err := ask()
	for _, dead := range []error{net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET, io.EOF} {
		if err != nil && strings.HasSuffix(err.Error(), dead.Error()) { // what msgpack returns cannot be unwrapped
			return ask() // raft has thrown the connection away
		}
	}
	return err
}

func (t ordinaryHeartbeats) AppendEntries(id raft.ServerID, addr raft.ServerAddress, req *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	err := t.Transport.AppendEntries(id, addr, req, resp)
	if err == nil {
		t.copies.appended(id, req, resp)
	}
	return err
}

func (t ordinaryHeartbeats) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline,
	error) {
	p, err := t.Transport.AppendEntriesPipeline(id, addr)
	if err != nil {
		return nil, err // unwrapped, because raft compares it
	}
	return t.copies.pipeline(id, p), nil
}

func (t ordinaryHeartbeats) InstallSnapshot(id raft.ServerID, addr raft.ServerAddress,
	req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := t.Transport.InstallSnapshot(id, addr, req, resp, data)
	if err == nil && resp.Success {
		t.copies.note(id, req.Term, req.LastLogIndex)
	}
	return err
}

func (t ordinaryHeartbeats) Close() error {
	if c, ok := t.Transport.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

// nodeAddr is a node's UUID in place of an address.
type nodeAddr string

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(a) }

// streams is the raft.StreamLayer over connections that others open and authenticate. It
// tracks every connection in use, because raft's transport forgets the accepted ones and
// would serve them after Close.
type streams struct {
	id     string
	dial   func(ctx context.Context, nodeID string) (net.Conn, error)
	accept <-chan net.Conn

	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex
	conns  map[*trackedConn]struct{}
}

func newStreams(cfg Config) *streams {
	s := &streams{id: cfg.ID, dial: cfg.Dialer, accept: cfg.Accept, conns: map[*trackedConn]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

type trackedConn struct {
	net.Conn
	s *streams
}

func (c *trackedConn) Close() error {
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
	return c.Conn.Close()
}

func (s *streams) track(c net.Conn) (net.Conn, error) {
	t := &trackedConn{c, s}
	s.mu.Lock()
	closed := s.ctx.Err() != nil
	if !closed {
		s.conns[t] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	return t, nil
}

// Dial opens a connection to the node whose UUID is addr.
func (s *streams) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	c, err := s.dial(ctx, string(addr))
	if err != nil {
		return nil, fmt.Errorf("dial raft of %s: %w", addr, err)
	}
	return s.track(c)
}

func (s *streams) Accept() (net.Conn, error) {
	in := s.accept
	for {
		select {
		case c, ok := <-in:
			if !ok {
				in = nil // the listener is closed; raft would call again at once
				continue
			}
			return s.track(c)
		case <-s.ctx.Done():
			return nil, net.ErrClosed
		}
	}
}

// Close ends every connection at once: a node that has failed must fall silent.
func (s *streams) Close() error {
	s.cancel()
	s.mu.Lock()
	conns := make([]*trackedConn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	return nil
}

func (s *streams) Addr() net.Addr { return nodeAddr(s.id) }

// newTransport is the transport of a configuration, with ordinaryHeartbeats.
func newTransport(cfg Config, c *copies) raft.Transport {
	if cfg.Transport != nil {
		return ordinaryHeartbeats{cfg.Transport, c}
	}
	// Pooled connections are shared by heartbeats and votes; entries use their pipeline's own. Each has buffers of
	// 256 kB at both ends, and raft never closes a pooled one.
	return ordinaryHeartbeats{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: newStreams(cfg), MaxPool: 1, Timeout: cfg.RPCTimeout, Logger: newHCLogger(cfg.Logger),
	}), c}
}
