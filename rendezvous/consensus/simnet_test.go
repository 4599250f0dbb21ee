package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// simNet joins the nodes of one simulation. What becomes of a message is drawn
// from the seed and the message's number on its link, so that it does not hang
// on which goroutine came first.
type simNet struct {
	seed uint64

	mu    sync.Mutex
	ends  map[string]*simTransport
	cut   map[[2]string]bool // one way each
	loss  float64            // of requests and of answers, each
	twice float64            // requests that arrive twice
	delay time.Duration      // at most
	sent  map[[2]string]uint64
}

func newSimNet(seed uint64) *simNet {
	return &simNet{seed: seed, ends: map[string]*simTransport{}, cut: map[[2]string]bool{},
		sent: map[[2]string]uint64{}, delay: 2 * time.Millisecond}
}

// calm takes every fault of the network away.
func (s *simNet) calm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.cut)
	s.loss, s.twice, s.delay = 0, 0, 2*time.Millisecond
}

func (s *simNet) rough(loss, twice float64, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loss, s.twice, s.delay = loss, twice, delay
}

func (s *simNet) block(from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut[[2]string{from, to}] = true
}

// fate of one message.
type fate struct {
	lost, twice bool
	delay       time.Duration
}

func (s *simNet) fate(from, to string) fate {
	s.mu.Lock()
	defer s.mu.Unlock()
	link := [2]string{from, to}
	s.sent[link]++
	h := s.seed
	for _, b := range []byte(from + ">" + to) {
		h = h*1099511628211 + uint64(b)
	}
	rng := rand.New(rand.NewPCG(h, s.sent[link]))
	f := fate{lost: rng.Float64() < s.loss || s.cut[link], twice: rng.Float64() < s.twice}
	f.delay = time.Duration(rng.Int64N(int64(s.delay)) + 1)
	return f
}

// counts copies how many messages went each way, answers included.
func (s *simNet) counts(to map[[2]string]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(to, s.sent)
}

// open tells whether a message that is on its way now arrives.
func (s *simNet) open(from, to string) (*simTransport, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.ends[to]
	return t, t != nil && !s.cut[[2]string{from, to}]
}

// attach gives a node its end; an earlier one of the node is dead already.
func (s *simNet) attach(id string, timeout time.Duration) *simTransport {
	t := &simTransport{net: s, id: id, in: make(chan raft.RPC), timeout: timeout, closed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends[id] = t
	return t
}

// simTransport is a raft.Transport whose messages meet the faults of a simNet.
type simTransport struct {
	net     *simNet
	id      string
	in      chan raft.RPC
	timeout time.Duration
	once    sync.Once
	closed  chan struct{}
}

var (
	errSimLost   = errors.New("no answer")
	errSimClosed = errors.New("transport is closed")
)

func (t *simTransport) Close() error {
	t.once.Do(func() {
		close(t.closed)
		t.net.mu.Lock()
		defer t.net.mu.Unlock()
		if t.net.ends[t.id] == t {
			delete(t.net.ends, t.id)
		}
	})
	return nil
}

func (t *simTransport) Consumer() <-chan raft.RPC              { return t.in }
func (t *simTransport) LocalAddr() raft.ServerAddress          { return raft.ServerAddress(t.id) }
func (t *simTransport) SetHeartbeatHandler(cb func(raft.RPC))  {}
func (t *simTransport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }
func (t *simTransport) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte {
	return []byte(a)
}

// sleep tells whether the time passed before the transport was closed.
func (t *simTransport) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.closed:
		return false
	}
}

// carry brings one request to its receiver and the answer back into got. It
// gives up in silence, as a network does.
func (t *simTransport) carry(to string, command any, body []byte, f fate, got chan<- raft.RPCResponse) {
	if f.lost || !t.sleep(f.delay) {
		return
	}
	end, ok := t.net.open(t.id, to)
	if !ok {
		return
	}
	answer := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: command, RespChan: answer}
	if body != nil {
		rpc.Reader = bytes.NewReader(body)
	}
	patience := time.NewTimer(10 * t.timeout)
	defer patience.Stop()
	select {
	case end.in <- rpc:
	case <-end.closed:
		return
	case <-patience.C:
		return
	}
	select {
	case a := <-answer:
		back := t.net.fate(to, t.id)
		if back.lost || !t.sleep(back.delay) {
			return
		}
		if _, ok := t.net.open(to, t.id); ok {
			got <- a
		}
	case <-end.closed:
	case <-patience.C:
	}
}

// call is one request and its answer. Requests are copied: what two nodes share
// is only what nobody writes.
func (t *simTransport) call(to raft.ServerAddress, command func() any, body []byte, timeout time.Duration) (any,
	error) {
	got := make(chan raft.RPCResponse, 2)
	f := t.net.fate(t.id, string(to))
	go t.carry(string(to), command(), body, f, got) // ends with the timeouts
	if f.twice {
		again := f
		again.delay *= 3
		go t.carry(string(to), command(), body, again, got)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case a := <-got:
		return a.Response, a.Error
	case <-timer.C:
		return nil, fmt.Errorf("%s to %s: %w", t.id, to, errSimLost)
	case <-t.closed:
		return nil, errSimClosed
	}
}

func ask[Req, Resp any](t *simTransport, to raft.ServerAddress, req *Req, resp *Resp, body []byte,
	timeout time.Duration) error {
	a, err := t.call(to, func() any { r := *req; return &r }, body, timeout)
	if err == nil {
		*resp = *a.(*Resp)
	}
	return err
}

func (t *simTransport) AppendEntries(_ raft.ServerID, to raft.ServerAddress, req *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	return ask(t, to, copied(req), resp, nil, t.timeout)
}

func (t *simTransport) RequestVote(_ raft.ServerID, to raft.ServerAddress, req *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse) error {
	return ask(t, to, req, resp, nil, t.timeout)
}

func (t *simTransport) RequestPreVote(_ raft.ServerID, to raft.ServerAddress, req *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	return ask(t, to, req, resp, nil, t.timeout)
}

func (t *simTransport) TimeoutNow(_ raft.ServerID, to raft.ServerAddress, req *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse) error {
	return ask(t, to, req, resp, nil, t.timeout)
}

func (t *simTransport) InstallSnapshot(_ raft.ServerID, to raft.ServerAddress, req *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	body, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	return ask(t, to, req, resp, body, 3*t.timeout)
}

// copied is a request whose entries are the receiver's own.
func copied(req *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	r := *req
	r.Entries = make([]*raft.Log, len(req.Entries))
	for i, l := range req.Entries {
		entry := *l
		r.Entries[i] = &entry
	}
	return &r
}

// simPipeline keeps the order of its requests, and breaks with the first that
// is lost, as a connection does.
type simPipeline struct {
	t      *simTransport
	to     string
	once   sync.Once
	broken chan struct{}
	queue  chan *simAppend
	done   chan raft.AppendFuture
}

type simAppend struct {
	start  time.Time
	args   *raft.AppendEntriesRequest
	resp   *raft.AppendEntriesResponse
	err    error
	ready  chan struct{}
	answer chan raft.RPCResponse
}

func (a *simAppend) Error() error                          { <-a.ready; return a.err }
func (a *simAppend) Start() time.Time                      { return a.start }
func (a *simAppend) Request() *raft.AppendEntriesRequest   { return a.args }
func (a *simAppend) Response() *raft.AppendEntriesResponse { return a.resp }

func (t *simTransport) AppendEntriesPipeline(_ raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	if _, ok := t.net.open(t.id, string(to)); !ok {
		return nil, errSimLost
	}
	p := &simPipeline{t: t, to: string(to), broken: make(chan struct{}), queue: make(chan *simAppend, 64),
		done: make(chan raft.AppendFuture, 64)}
	go p.run() // ends with the pipeline or the transport
	return p, nil
}

func (p *simPipeline) Consumer() <-chan raft.AppendFuture { return p.done }

func (p *simPipeline) Close() error {
	p.once.Do(func() { close(p.broken) })
	return nil
}

func (p *simPipeline) AppendEntries(args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	a := &simAppend{start: time.Now(), args: args, resp: resp, ready: make(chan struct{}),
		answer: make(chan raft.RPCResponse, 2)}
	select {
	case <-p.broken:
		return nil, raft.ErrPipelineShutdown
	case <-p.t.closed:
		return nil, errSimClosed
	default:
	}
	select {
	case p.queue <- a:
		return a, nil
	case <-p.broken:
		return nil, raft.ErrPipelineShutdown
	case <-p.t.closed:
		return nil, errSimClosed
	}
}

func (p *simPipeline) run() {
	for {
		var a *simAppend
		select {
		case a = <-p.queue:
		case <-p.broken:
			return
		case <-p.t.closed:
			return
		}
		f := p.t.net.fate(p.t.id, p.to)
		go p.t.carry(p.to, copied(a.args), nil, f, a.answer)
		timer := time.NewTimer(p.t.timeout)
		select {
		case got := <-a.answer:
			a.err = got.Error
			if got.Error == nil {
				*a.resp = *got.Response.(*raft.AppendEntriesResponse)
			}
		case <-timer.C:
			a.err = errSimLost
		case <-p.broken:
			a.err = raft.ErrPipelineShutdown
		case <-p.t.closed:
			a.err = errSimClosed
		}
		timer.Stop()
		close(a.ready)
		select {
		case p.done <- a:
		case <-p.broken:
			return
		}
		if a.err != nil {
			p.Close()
			return
		}
	}
}
