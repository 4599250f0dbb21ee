package consensus

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// sim is one run: nodes of the product's own parts (raft, its store, the record)
// over a simulated network and simulated disks, in a bubble of its own time.
type sim struct {
	t    *testing.T
	seed uint64
	bug  bug
	rng  *rand.Rand // the operator's alone
	net  *simNet
	dir  string

	nodes []*simNode
	// agents and witness are there where the simulation starts ranks.
	agents  []*simAgent
	witness *simWitness
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu       sync.Mutex
	broken   []violation
	states   map[uint64]string // of the record after each index: P8
	history  history
	launched []launcher.JobID // acknowledged
	stills   int              // the operator's; see standstill
	tardy    atomic.Bool      // the next leader's orders are slow
	observer func(*simLife)   // begins what goes on beside a node's life; nil = nothing
}

// violation is a promise that was broken, by the check that found it.
type violation struct{ check, text string }

func (s *sim) violated(check, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = append(s.broken, violation{check, fmt.Sprintf(format, args...)})
}

// simNode is a machine. It outlives its lives.
type simNode struct {
	s   *sim
	num int
	id  string
	dir string

	agent *simAgent // nil where nothing is started
	op    gate      // held while it is booted or brought down
	mu    sync.Mutex
	life  *simLife // nil while it is down
}

// gate is a mutex that may be held over what takes the bubble's time: a goroutine
// that waits for a sync.Mutex would stop it.
type gate chan struct{}

func (g gate) Lock()   { g <- struct{}{} }
func (g gate) Unlock() { <-g }

// simLife is a node from its boot to its end.
type simLife struct {
	*Raft
	node   *simNode
	record *rendezvous.Record
	disk   *simDisk
	end    *simTransport
	fatal  chan error
	over   context.Context
	kill   context.CancelFunc
	joined sync.WaitGroup
	brain  *simBrain // while it leads; guarded by node.mu
}

func (n *simNode) now() *simLife {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life
}

// simMachine is the record, and tells the run of each state it takes.
type simMachine struct {
	*rendezvous.Record
	s    *sim
	node string
}

func (m simMachine) Apply(index uint64, entry []byte) any {
	res := m.Record.Apply(index, entry)
	if unknown, ok := res.(rendezvous.UnknownKindError); ok {
		return &FatalError{Index: index, Err: unknown}
	}
	m.agree(index)
	return res
}

func (m simMachine) Restore(b []byte) error {
	if err := m.Record.Restore(b); err != nil {
		return err
	}
	_, _, index := m.Record.Cluster()
	m.agree(index)
	return nil
}

// agree is P8: after one index every record is the same, in every life.
func (m simMachine) agree(index uint64) {
	b, err := m.Record.Snapshot()
	if err != nil {
		m.s.violated("P8 states agree", "%s at %d: %v", m.node, index, err)
		return
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(b))
	m.s.mu.Lock()
	was, known := m.s.states[index]
	m.s.states[index] = sum
	m.s.mu.Unlock()
	if known && was != sum {
		m.s.violated("P8 states agree", "%s has another record after entry %d than an earlier one", m.node, index)
	}
}

// boot opens a node on what its folder holds.
func (n *simNode) boot(bootstrap bool) error {
	n.op.Lock()
	defer n.op.Unlock()
	return n.open(bootstrap)
}

func (n *simNode) open(bootstrap bool) error {
	if n.now() != nil {
		return nil
	}
	l := &simLife{node: n, record: rendezvous.NewRecord(), fatal: make(chan error, 1)}
	l.over, l.kill = context.WithCancel(n.s.ctx)
	l.end = n.s.net.attach(n.id, time.Second)
	var diskErr error
	r, err := Open(Config{
		ID: n.id, Dir: n.dir, Machine: simMachine{l.record, n.s, n.id}, Bootstrap: bootstrap, Transport: l.end,
		RPCTimeout: time.Second, SnapshotThreshold: 24, SnapshotInterval: 2 * time.Second, TrailingLogs: 8, HandOver: -1,
		OnFatal: func(err error) { l.fatal <- err },
		wrapStore: func(d diskStore) diskStore {
			l.disk, diskErr = newSimDisk(d, filepath.Join(n.dir, logFile), n.s.bug == noFsync)
			return l.disk
		},
		Logger: simLogger(n),
	})
	if err = errors.Join(err, diskErr); err != nil {
		l.kill()
		l.end.Close()
		return err
	}
	l.Raft = r
	n.mu.Lock()
	n.life = l
	n.mu.Unlock()
	if n.s.observer != nil {
		n.s.observer(l)
	}
	// As the agent's unit: whoever stops by a fault is started again.
	n.s.wg.Go(func() {
		select {
		case <-l.fatal:
			n.restart(l)
		case <-l.over.Done():
		}
	})
	return nil
}

func (n *simNode) restart(l *simLife) {
	for n.s.ctx.Err() == nil {
		n.op.Lock()
		switch n.now() {
		case l:
			n.shut(false)
		case nil:
		default:
			n.op.Unlock()
			return // the operator was faster
		}
		err := n.open(false)
		n.op.Unlock()
		if err == nil {
			return
		}
		n.s.refused(n, err)
		time.Sleep(time.Second)
	}
}

// refused tells of a folder that a node will not start with: no fault of the
// simulation damages a file.
func (s *sim) refused(n *simNode, err error) {
	if _, damaged := errors.AsType[*CorruptError](err); damaged {
		s.violated("start", "%s: %v", n.id, err)
	}
}

// down ends a node: by losing its power, or by a kill -9 that loses no file.
func (n *simNode) down(power bool) {
	n.op.Lock()
	defer n.op.Unlock()
	n.shut(power)
}

func (n *simNode) shut(power bool) {
	l := n.now()
	if l == nil {
		return
	}
	n.mu.Lock()
	n.life = nil
	n.mu.Unlock()
	l.end.Close()
	l.disk.cutPower()
	l.kill()
	l.Close()
	l.joined.Wait()
	if power && n.agent != nil {
		n.agent.powerLost()
	}
	if power {
		if err := l.disk.lose(); err != nil {
			panic(err)
		}
	}
}

// newSim starts a cluster of voters whose record knows all nodes.
func newSim(t *testing.T, seed uint64, b bug, observe func(*sim) func(*simLife)) *sim {
	s := &sim{t: t, seed: seed, bug: b, rng: rand.New(rand.NewPCG(seed, 1)), net: newSimNet(seed),
		states: map[uint64]string{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if observe != nil {
		s.observer = observe(s)
	}
	var remove func()
	s.dir, remove = simFolder(t.TempDir)
	t.Cleanup(remove)
	size := 3 + 2*s.rng.IntN(2)
	var members []Member
	for i := range size {
		n := &simNode{s: s, op: make(gate, 1), num: i + 1, id: nodeID(i + 1), dir: filepath.Join(s.dir, fmt.Sprint(i+1))}
		s.nodes = append(s.nodes, n)
		if s.witness != nil {
			n.agent = newSimAgent(s, n)
			s.agents = append(s.agents, n.agent)
		}
		if err := n.boot(i == 0); err != nil {
			t.Fatal(err)
		}
		members = append(members, Member{ID: n.id, Joined: uint64(i), Healthy: true})
	}
	lead := s.awaitLeader(time.Minute)
	if lead == nil {
		t.Fatal("nobody leads at the beginning")
	}
	for range 40 {
		if err := lead.Verify(s.ctx); err != nil {
			t.Fatal(err)
		}
		c := Desired(members, lead.Members())
		if c.Zero() {
			break
		}
		if err := lead.ApplyChange(s.ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	entries := []rendezvous.Entry{
		{Kind: rendezvous.KindFound, Found: &rendezvous.Found{Cluster: "c", Epoch: 1, First: s.nodes[0].member()}},
		{Kind: rendezvous.KindToken, At: time.Now(),
			Token: &rendezvous.Token{ID: "t", Uses: 9, Expires: time.Now().Add(24 * time.Hour)}},
	}
	for _, n := range s.nodes[1:] {
		entries = append(entries,
			rendezvous.Entry{Kind: rendezvous.KindJoin, At: time.Now(), Join: &rendezvous.Join{TokenID: "t", Node: n.member()}})
	}
	defer func() {
		for _, l := range s.lives() { // a bug with fsync begins with a cluster that is on disk
			if err := l.disk.sync(); err != nil {
				t.Fatal(err)
			}
		}
	}()
	for _, e := range entries {
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if res, err := lead.Apply(s.ctx, b); res != nil || err != nil {
			t.Fatal(res, err)
		}
	}
	return s
}

func (n *simNode) member() rendezvous.Node {
	return rendezvous.Node{
		ID: launcher.NodeID(n.id), Host: fmt.Sprintf("spark%d", n.num),
		Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n.num)}), 7940),
	}
}

// lives are the nodes that are up.
func (s *sim) lives() (out []*simLife) {
	for _, n := range s.nodes {
		if l := n.now(); l != nil {
			out = append(out, l)
		}
	}
	return out
}

// leader is a node that believes that it leads: the one of the latest term.
func (s *sim) leader() (lead *simLife) {
	var latest uint64
	for _, l := range s.lives() {
		if term, ok := l.leading(); ok && term >= latest {
			lead, latest = l, term
		}
	}
	return lead
}

func (s *sim) awaitLeader(within time.Duration) *simLife {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if l := s.leader(); l != nil {
			ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
			err := l.Verify(ctx)
			cancel()
			if err == nil {
				return l
			}
		}
	}
	return nil
}

// heal takes every fault away and waits until all nodes have the same; false if
// that does not come about in a time that would be too long for anybody.
func (s *sim) heal() bool {
	s.net.calm()
	for _, n := range s.nodes {
		if l := n.now(); l != nil {
			l.disk.set(0, nil)
		}
	}
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		for _, n := range s.nodes {
			if err := n.boot(false); err != nil {
				s.refused(n, err)
			}
		}
		lead := s.awaitLeader(10 * time.Second)
		if lead == nil {
			continue
		}
		_, _, want := lead.record.Cluster()
		behind := func(l *simLife) bool { _, _, got := l.record.Cluster(); return got < want }
		if lives := s.lives(); len(lives) == len(s.nodes) && !slices.ContainsFunc(lives, behind) {
			return true
		}
	}
	return false
}

// end stops everything. The bubble would not end before.
func (s *sim) end() {
	s.stop()
	for _, n := range s.nodes {
		n.down(false)
	}
	s.wg.Wait()
}

// wipe empties a node's folder.
func (n *simNode) wipe() {
	n.op.Lock()
	defer n.op.Unlock()
	n.shut(true)
	if err := os.RemoveAll(n.dir); err != nil {
		panic(err)
	}
}
