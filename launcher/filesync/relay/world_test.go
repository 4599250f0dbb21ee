package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// testChunk keeps files small.
const testChunk = 64 << 10

// memPart is a disk: what was kept on it survives its node.
type memPart struct {
	mu   sync.RWMutex
	data []byte
	kept Kept
	full bool
	slow time.Duration
}

func (p *memPart) ReadAt(b []byte, off int64) (int, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return bytes.NewReader(p.data).ReadAt(b, off)
}

func (p *memPart) WriteAt(b []byte, off int64) (int, error) {
	time.Sleep(p.slow)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full {
		return 0, errors.New("no space left on device")
	}
	return copy(p.data[off:], b), nil
}

func (p *memPart) Keep(sum Sum, hash []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept.Sums = append(p.kept.Sums, sum)
	if hash != nil {
		p.kept.Hash, p.kept.At = hash, len(p.kept.Sums)
	}
	return nil
}

func (p *memPart) Drop(int64, int64) {}

// world is a chain of nodes, and the outside.
type world struct {
	t       *testing.T
	cut     layout
	content []byte
	sum     string
	buffers int
	limit   int64

	mu        sync.Mutex
	nodes     []*worldNode
	down      error             // what the outside says, if anything
	silent    bool              // the outside
	noOutside bool              // for nodes that begin
	served    []uint8           // how often each byte came from outside
	pace      time.Duration     // of each read, everywhere
	events    []string          // "NODE: SOURCE ERR"
	links     map[[2]int]*Limit // by from and to; the outside is -1
	sent      map[[2]int]int    // bytes from a member to a member
	cutOff    map[[2]int]bool   // they cannot reach each other
}

type worldNode struct {
	part  *memPart
	file  *File // nil: it does not run
	life  int
	stop  context.CancelFunc
	ended chan struct{}
	err   error
	wrong bool // its bytes are spoilt on their way
	hangs bool // it answers, and gives no bytes
	noWay bool // the outside is not reached from it
}

func newWorld(t *testing.T, nodes, chunks int) *world {
	w := &world{t: t, content: make([]byte, chunks*testChunk-77), buffers: 3, pace: 8 * time.Millisecond,
		sent: map[[2]int]int{}, cutOff: map[[2]int]bool{}}
	w.cut = layout{int64(len(w.content)), testChunk}
	rng := rand.NewChaCha8([32]byte{7})
	rng.Read(w.content)
	sum := sha256.Sum256(w.content)
	w.sum = hex.EncodeToString(sum[:])
	w.served = make([]uint8, len(w.content))
	for range nodes {
		w.nodes = append(w.nodes, &worldNode{part: &memPart{data: make([]byte, len(w.content))}})
	}
	return w
}

// begin has a node fetch.
func (w *world) begin(i int) {
	n := w.nodes[i]
	cfg := Config{Size: w.cut.size, SHA256: w.sum, Part: n.part, Self: i,
		Buffers: NewBuffers(w.buffers), Limit: NewLimit(w.limit), chunk: testChunk}
	if !w.noOutside {
		cfg.Outside = func(ctx context.Context, off, size int64) (io.ReadCloser, error) {
			w.mu.Lock()
			noWay := n.noWay
			w.mu.Unlock()
			if noWay {
				return nil, errors.New("no route to host")
			}
			return w.outside(ctx, off, size)
		}
	}
	n.part.mu.Lock()
	cfg.Kept = Kept{slices.Clone(n.part.kept.Sums), n.part.kept.Hash, n.part.kept.At}
	n.part.mu.Unlock()
	for j := range w.nodes {
		cfg.Chain = append(cfg.Chain, Member{Name: fmt.Sprint("node", j), Source: wire{w, i, j}})
	}
	cfg.Event = func(e Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		line := fmt.Sprintf("node%d: %s", i, e.Source)
		if e.Err != nil {
			line += " left: " + e.Err.Error()
		}
		w.events = append(w.events, line)
	}
	file, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.mu.Lock()
	n.file, n.stop, n.ended, n.err = file, stop, make(chan struct{}), nil
	n.life++
	w.mu.Unlock()
	go func() {
		err := file.Run(ctx)
		w.mu.Lock()
		n.err = err
		w.mu.Unlock()
		close(n.ended)
	}()
}

func (w *world) beginAll() {
	for i := range w.nodes {
		w.begin(i)
	}
}

// kill ends a node at once: nobody gets another byte from it, and of its part there is what
// was kept.
func (w *world) kill(i int) {
	n := w.nodes[i]
	w.mu.Lock()
	n.file, n.life = nil, n.life+1
	w.mu.Unlock()
	n.stop()
	<-n.ended
	n.part.mu.Lock()
	defer n.part.mu.Unlock()
	clear(n.part.data[w.cut.end(len(n.part.kept.Sums)):])
}

// wait waits for all that run, and checks what they have.
func (w *world) wait() {
	w.t.Helper()
	for i, n := range w.nodes {
		if n.file == nil {
			continue
		}
		select {
		case <-n.ended:
		case <-time.After(10 * time.Minute):
			w.t.Fatalf("node%d has %d of %d bytes and does not end; events %q", i, n.file.Have(), w.cut.size, w.events)
		}
		if n.err != nil {
			w.t.Errorf("node%d: %v", i, n.err)
		} else if !bytes.Equal(n.part.data, w.content) {
			w.t.Errorf("node%d has wrong bytes", i)
		}
	}
}

// forget has a node that ended stop answering.
func (w *world) forget(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[i].file, w.nodes[i].err = nil, nil
}

func (w *world) stopAll() {
	for _, n := range w.nodes {
		if n.stop != nil {
			n.stop()
			<-n.ended
		}
	}
}

// twice is how many bytes came from outside more than once.
func (w *world) twice() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, times := range w.served {
		n += max(0, int(times)-1)
	}
	return n
}

func (w *world) once() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, times := range w.served {
		n += int(times)
	}
	return n
}

func (w *world) told() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

func (w *world) outside(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	w.mu.Lock()
	down := w.down
	w.mu.Unlock()
	if down != nil {
		return nil, down
	}
	return io.NopCloser(readFunc(func(p []byte) (int, error) {
		if err := pause(ctx, w.pace); err != nil {
			return 0, err
		}
		w.mu.Lock()
		silent, down := w.silent, w.down
		w.mu.Unlock()
		if silent {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		if down != nil {
			return 0, down
		}
		m := copy(p[:min(len(p), 8<<10)], w.content[off:off+n])
		if err := w.links[[2]int{outsideIndex, 0}].wait(ctx, m); err != nil {
			return 0, err
		}
		w.mu.Lock()
		for k := range m {
			w.served[off+int64(k)]++
		}
		w.mu.Unlock()
		off, n = off+int64(m), n-int64(m)
		if m == 0 {
			return 0, io.EOF
		}
		return m, nil
	})), nil
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// wire is how node from reads of node to.
type wire struct {
	w        *world
	from, to int
}

var errRefused = errors.New("connection refused")

func (l wire) file() (*File, int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	n := l.w.nodes[l.to]
	if n.file == nil || l.w.cutOff[[2]int{l.from, l.to}] || l.w.cutOff[[2]int{l.to, l.from}] {
		return nil, 0, errRefused
	}
	return n.file, n.life, nil
}

func (l wire) State(ctx context.Context, from int, wait time.Duration) (State, error) {
	f, life, err := l.file()
	if err != nil {
		return State{}, err
	}
	s, err := f.State(ctx, from, wait)
	if _, now, gone := l.file(); gone != nil || now != life {
		return State{}, errRefused
	}
	return s, err
}

func (l wire) Open(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	f, life, err := l.file()
	if err != nil {
		return nil, err
	}
	body, err := f.Open(ctx, off, n)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{readFunc(func(p []byte) (int, error) {
		if err := pause(ctx, l.w.pace); err != nil {
			return 0, err
		}
		if _, now, gone := l.file(); gone != nil || now != life {
			return 0, errRefused
		}
		l.w.mu.Lock()
		to := l.w.nodes[l.to]
		wrong, hangs := to.wrong, to.hangs
		l.w.mu.Unlock()
		if hangs {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		m, err := body.Read(p[:min(len(p), 4<<10)])
		if err := l.w.links[[2]int{l.to, l.from}].wait(ctx, m); err != nil {
			return 0, err
		}
		if wrong && m > 0 {
			p[0] ^= 1
		}
		l.w.mu.Lock()
		l.w.sent[[2]int{l.to, l.from}] += m
		l.w.mu.Unlock()
		return m, err
	}), body}, nil
}

// inWorld runs a test in virtual time.
func inWorld(t *testing.T, nodes, chunks int, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nodes, chunks)
		test(t, w)
		w.stopAll()
	})
}
