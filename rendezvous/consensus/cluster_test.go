package consensus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

// A future that raft dropped as it ended is waited for for ever (see await).
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error"))
}

// list is a machine that keeps its entries.
type list struct {
	mu      sync.Mutex
	entries []string
	indexes []uint64
}

func (l *list) Apply(index uint64, entry []byte) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch string(entry) {
	case "unknown":
		return &FatalError{Err: errors.New("unknown kind 77")}
	case "panic":
		panic("boom")
	}
	if n := len(l.indexes); n > 0 && l.indexes[n-1] >= index {
		panic(fmt.Sprintf("entry %d after entry %d", index, l.indexes[n-1]))
	}
	l.entries, l.indexes = append(l.entries, string(entry)), append(l.indexes, index)
	return len(l.entries)
}

type listState struct {
	Entries []string
	Indexes []uint64
}

func (l *list) Snapshot() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return json.Marshal(listState{l.entries, l.indexes})
}

func (l *list) Restore(b []byte) error {
	var s listState
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries, l.indexes = s.Entries, s.Indexes
	return nil
}

func (l *list) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.entries...)
}

// node is one member of a test cluster.
type node struct {
	*Raft
	id      string
	dir     string
	machine *list
	fatal   chan error
	slow    *slowDisk
	up      bool
}

// slowDisk can be made to hang or to fail.
type slowDisk struct {
	diskStore
	mu   sync.Mutex
	hang chan struct{}
	err  error // of writing entries
	term error // of writing the term
}

func (s *slowDisk) set(hang chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hang, s.err = hang, err
}

func (s *slowDisk) StoreLogs(l []*raft.Log) error {
	s.mu.Lock()
	hang, err := s.hang, s.err
	s.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if err != nil {
		return err
	}
	return s.diskStore.StoreLogs(l)
}

func (s *slowDisk) SetUint64(k []byte, v uint64) error {
	s.mu.Lock()
	err := s.term
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.diskStore.SetUint64(k, v)
}

// cluster runs nodes that reach each other in memory or over loopback TCP.
type cluster struct {
	t     testing.TB
	tcp   bool
	nodes []*node
	tune  func(*Config)

	mu    sync.Mutex
	inmem map[string]*raft.InmemTransport
	addrs map[string]string       // tcp: node id -> address
	lns   map[string]*tcpListener // tcp: node id -> listener
	cut   map[string]bool         // ids that nobody reaches and who reach nobody
}

type tcpListener struct {
	ln net.Listener
	ch chan net.Conn
	wg sync.WaitGroup
}

func (l *tcpListener) close() {
	l.ln.Close()
	l.wg.Wait()
	for {
		select {
		case c := <-l.ch:
			c.Close()
		default:
			return
		}
	}
}

func newCluster(t testing.TB, tcp bool, tune func(*Config)) *cluster {
	c := &cluster{t: t, tcp: tcp, tune: tune, inmem: map[string]*raft.InmemTransport{}, addrs: map[string]string{},
		lns: map[string]*tcpListener{}, cut: map[string]bool{}}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			c.crash(n)
		}
	})
	return c
}

func nodeID(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

// add makes a node; the first one bootstraps.
func (c *cluster) add() *node {
	c.t.Helper()
	n := &node{id: nodeID(len(c.nodes) + 1), dir: filepath.Join(c.t.TempDir(), "raft")}
	c.nodes = append(c.nodes, n)
	if err := c.open(n, len(c.nodes) == 1); err != nil {
		c.t.Fatal(err)
	}
	return n
}

func testLogger() *slog.Logger {
	if os.Getenv("CONSENSUS_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

func (c *cluster) open(n *node, bootstrap bool) error {
	n.machine, n.fatal = &list{}, make(chan error, 1)
	cfg := Config{
		ID: n.id, Dir: n.dir, Machine: n.machine, Bootstrap: bootstrap,
		OnFatal:   func(err error) { n.fatal <- err },
		Heartbeat: 500 * time.Millisecond, Commit: 10 * time.Millisecond,
		StoreDeadline: 5 * time.Second, SnapshotInterval: time.Hour,
		RPCTimeout: time.Second,
		wrapStore: func(d diskStore) diskStore {
			n.slow = &slowDisk{diskStore: d}
			return n.slow
		},
	}
	if l := testLogger(); l != nil {
		cfg.Logger = l.With("node", n.id[len(n.id)-2:])
	}
	if c.tcp {
		c.listen(n.id)
		cfg.Accept, cfg.Dialer = c.lns[n.id].ch, c.dialer(n.id)
	} else {
		_, tr := raft.NewInmemTransportWithTimeout(raft.ServerAddress(n.id), time.Second)
		cfg.Transport = tr
		c.mu.Lock()
		c.inmem[n.id] = tr
		for id, other := range c.inmem {
			if id != n.id && !c.cut[id] {
				tr.Connect(raft.ServerAddress(id), other)
				other.Connect(raft.ServerAddress(n.id), tr)
			}
		}
		c.mu.Unlock()
	}
	if c.tune != nil {
		c.tune(&cfg)
	}
	r, err := Open(cfg)
	if err != nil {
		c.unplug(n)
		return err
	}
	n.Raft, n.up = r, true
	return nil
}

// listen takes a new port each time: a node's address may change.
func (c *cluster) listen(id string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	l := &tcpListener{ln: ln, ch: make(chan net.Conn, 16)}
	l.wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			select {
			case l.ch <- conn:
			default:
				conn.Close()
			}
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lns[id], c.addrs[id] = l, ln.Addr().String()
}

func (c *cluster) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		c.mu.Lock()
		addr, bad := c.addrs[to], c.cut[from] || c.cut[to]
		c.mu.Unlock()
		if addr == "" || bad {
			return nil, fmt.Errorf("no route to %s", to)
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}
}

// unplug takes a node's network away for good.
func (c *cluster) unplug(n *node) {
	c.mu.Lock()
	l := c.lns[n.id]
	delete(c.lns, n.id)
	delete(c.addrs, n.id)
	delete(c.inmem, n.id)
	for _, tr := range c.inmem {
		tr.Disconnect(raft.ServerAddress(n.id))
	}
	c.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// crash ends a node without a word to the others.
func (c *cluster) crash(n *node) {
	if !n.up {
		return
	}
	n.up = false
	c.unplug(n)
	n.cfg.HandOver = -1
	n.Close()
}

// isolate cuts an in-memory node off both ways, or joins it again.
func (c *cluster) isolate(n *node, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[n.id] = cut
	me := c.inmem[n.id]
	for id, tr := range c.inmem {
		if id == n.id {
			continue
		}
		if cut {
			tr.Disconnect(raft.ServerAddress(n.id))
			me.Disconnect(raft.ServerAddress(id))
		} else {
			tr.Connect(raft.ServerAddress(n.id), me)
			me.Connect(raft.ServerAddress(id), tr)
		}
	}
}

// eventually waits for cond, woken by nothing: only for what has no channel.
func eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// leader waits until one node leads that is none of but.
func (c *cluster) leader(within time.Duration, but ...*node) *node {
	c.t.Helper()
	var found *node
	eventually(c.t, within, "a leader", func() bool {
		for _, n := range c.nodes {
			skip := !n.up
			for _, b := range but {
				skip = skip || b == n
			}
			if !skip && n.State() == Leader {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

func (c *cluster) apply(n *node, entry string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	if _, err := n.Apply(ctx, []byte(entry)); err != nil {
		c.t.Fatalf("apply %q: %v", entry, err)
	}
}

// converge makes members of all nodes by Desired and ApplyChange alone.
func (c *cluster) converge(lead *node, ids ...string) {
	c.t.Helper()
	var members []Member
	for i, id := range ids {
		members = append(members, Member{ID: id, Joined: uint64(i), Healthy: true})
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	if err := lead.Verify(ctx); err != nil {
		c.t.Fatal(err)
	}
	for range 30 {
		ch := Desired(members, lead.Members())
		if ch.Zero() {
			return
		}
		if err := lead.ApplyChange(ctx, ch); err != nil {
			c.t.Fatalf("%+v: %v", ch, err)
		}
		if err := lead.Verify(ctx); err != nil {
			c.t.Fatal(err)
		}
	}
	c.t.Fatalf("no end of changes: %+v", lead.Members())
}

// start makes a cluster of n voters and standbys.
func start(t testing.TB, n int, tcp bool, tune func(*Config)) (*cluster, *node) {
	t.Helper()
	c := newCluster(t, tcp, tune)
	var ids []string
	for range n {
		ids = append(ids, c.add().id)
	}
	lead := c.leader(30 * time.Second)
	c.converge(lead, ids...)
	return c, lead
}

// same waits until every running node has the entries of want.
func (c *cluster) same(want []string) {
	c.t.Helper()
	for _, n := range c.nodes {
		if !n.up {
			continue
		}
		eventually(c.t, 45*time.Second, fmt.Sprintf("entries of %s are %d", n.id, len(want)), func() bool {
			return fmt.Sprint(n.machine.all()) == fmt.Sprint(want)
		})
	}
}
