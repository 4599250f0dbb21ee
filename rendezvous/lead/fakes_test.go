package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// world is a cluster in memory: nodes that keep ledgers, one record, and one
// leadership after another. It is the outside witness of what was started.
type world struct {
	t         testing.TB
	record    *rendezvous.Record
	nodes     []*fakeNode
	fabric    Fabric // of every leadership; nil knows of none
	wg        sync.WaitGroup
	slowProof time.Duration // of a leadership
	lag       time.Duration // of orders on their way; longer than a fail-over, a dead leader's come late
	hold      func() string // the leaders' Config.Hold; nil = none
	others    Others        // the leaders' Config.Others; nil = none

	mu       sync.Mutex
	index    uint64
	reign    *reign // the present one; nil between two
	terms    uint64
	epoch    uint64
	crowned  chan struct{} // closed and replaced when a reign begins
	execs    map[witnessed]int
	prepared map[launcher.Key]map[launcher.NodeID]bool
	running  map[witnessed]bool
	acked    map[launcher.JobID]bool
	told     map[launcher.JobID]told
	faults   []string
	closing  bool // settle has begun to end it all
}

type witnessed struct {
	launcher.Key
	rank int
	life int // of those that may have several
}

func newWorld(t testing.TB, nodes int) *world {
	w := &world{
		t: t, record: rendezvous.NewRecord(), crowned: make(chan struct{}),
		execs: map[witnessed]int{}, prepared: map[launcher.Key]map[launcher.NodeID]bool{},
		epoch: 1, lag: 5 * time.Millisecond, running: map[witnessed]bool{}, acked: map[launcher.JobID]bool{},
		told: map[launcher.JobID]told{},
	}
	node := func(i int) rendezvous.Node {
		return rendezvous.Node{
			ID: launcher.NodeID(fmt.Sprintf("id%d", i)), Host: fmt.Sprintf("spark%d", i),
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 7940),
		}
	}
	w.commit(rendezvous.Entry{Kind: rendezvous.KindFound,
		Found: &rendezvous.Found{Cluster: "c", Epoch: 1, First: node(1)}})
	w.commit(rendezvous.Entry{Kind: rendezvous.KindToken,
		Token: &rendezvous.Token{ID: "t", Uses: 99, Expires: time.Now().Add(time.Hour)}})
	for i := 1; i <= nodes; i++ {
		n := node(i)
		if i > 1 {
			w.commit(rendezvous.Entry{Kind: rendezvous.KindJoin, At: time.Now(), Join: &rendezvous.Join{TokenID: "t", Node: n}})
		}
		w.nodes = append(w.nodes, &fakeNode{
			w: w, id: n.ID, host: n.Host, booted: time.Now().Add(-time.Hour), boot: fmt.Sprintf("boot%d.1", i),
			boots: 1, ledger: map[launcher.Key]*fakeTry{}, links: map[*link]bool{},
			life: func(launcher.Key, int) (time.Duration, *launcher.Exit) { return 0, nil },
		})
	}
	return w
}

// commit puts an entry into the record, as raft would.
func (w *world) commit(e rendezvous.Entry) error {
	data, err := e.Encode()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index++
	if answer, ok := w.record.Apply(w.index, data).(error); ok {
		return answer
	}
	return nil
}

// fault notes a broken promise. Faults are told at the end, from the test's
// goroutine.
func (w *world) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// reign is one leadership with what stands around a Leader: streams to the
// nodes and a recorder. It dies as a process does: at once.
type reign struct {
	w      *world
	leader *Leader
	fence  launcher.Fence
	ctx    context.Context
	stop   context.CancelFunc

	mu     sync.Mutex
	dead   bool
	links  map[launcher.NodeID]*link
	points int                               // things that have happened so far
	dieAt  int                               // the reign dies right after that many; 0 = never
	hook   func(rendezvous.Kind, bool) error // asked before (false) and after each commit
	orders map[string]int                    // kinds sent, for assertions
}

// fakeOthers are machines that answer as told; a func that is nil says what a Config without Others does.
type fakeOthers struct {
	answers func() bool
	unheard func() []string
	only    func(context.Context) string
}

func (o fakeOthers) Answers(context.Context, rendezvous.Roster, rendezvous.Place) bool {
	return o.answers != nil && o.answers()
}

func (o fakeOthers) Unheard() []string {
	if o.unheard == nil {
		return nil
	}
	return o.unheard()
}

func (o fakeOthers) OnlyHere(ctx context.Context) string {
	if o.only == nil {
		return ""
	}
	return o.only(ctx)
}

// crown begins a leadership that dies after so many points (0 = never).
func (w *world) crown(dieAt int) *reign {
	ctx, stop := context.WithCancel(context.Background())
	w.mu.Lock()
	w.terms++
	r := &reign{w: w, fence: launcher.Fence{Epoch: launcher.Epoch{N: w.epoch}, Term: w.terms}, ctx: ctx, stop: stop,
		links: map[launcher.NodeID]*link{}, dieAt: dieAt, orders: map[string]int{}}
	w.mu.Unlock()
	r.leader = Open(ctx, Config{Fence: r.fence, Record: w.record, Recorder: r, Send: r.send, Others: w.others,
		Fabric: w.fabric, Hold: w.hold, Logger: slog.New(slog.DiscardHandler)})
	for _, n := range w.nodes {
		w.wg.Go(func() { r.serve(n) })
	}
	w.wg.Go(r.asks)
	w.mu.Lock()
	w.reign = r
	close(w.crowned)
	w.crowned = make(chan struct{})
	closing := w.closing
	w.mu.Unlock()
	if closing {
		r.kill()
	}
	return r
}

// succession crowns one leader after another until settle; each dies after so
// many points, and the one after the last of them stays.
func (w *world) succession(gap time.Duration, deaths ...int) (points func() []int) {
	var had []int
	done := make(chan struct{})
	w.wg.Go(func() {
		defer close(done)
		for i := 0; ; i++ {
			k := 0
			if i < len(deaths) {
				k = deaths[i]
			}
			r := w.crown(k)
			<-r.ctx.Done()
			r.kill()
			r.mu.Lock()
			had = append(had, r.points)
			r.mu.Unlock()
			time.Sleep(gap)
			w.mu.Lock()
			closing := w.closing
			w.mu.Unlock()
			if closing {
				return
			}
		}
	})
	return func() []int { <-done; return had }
}

// point counts one thing that happens; true means that the reign is dead.
func (r *reign) point() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.points++
	if r.points == r.dieAt {
		r.dead = true
		r.stop()
	}
	return r.dead
}

// kill ends the reign and waits for its loops, as Close promises.
func (r *reign) kill() {
	r.mu.Lock()
	r.dead = true
	r.mu.Unlock()
	r.stop()
	r.leader.Close()
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.w.reign == r {
		r.w.reign = nil
	}
}

// Plan, Stop, Verdict and End are the Recorder. A reign can die before an entry is committed
// and after, without knowing.
func (r *reign) Plan(ctx context.Context, job rendezvous.Job) error {
	e := job.Entry()
	e.At = time.Now()
	return r.propose(ctx, e)
}

func (r *reign) Stop(ctx context.Context, stop rendezvous.JobStop) error {
	e := stop.Entry()
	e.At = time.Now()
	return r.propose(ctx, e)
}

func (r *reign) Verdict(ctx context.Context, end rendezvous.JobEnd) error {
	e := end.Verdict()
	e.At = time.Now()
	return r.propose(ctx, e)
}

func (r *reign) End(ctx context.Context, end rendezvous.JobEnd) error {
	return r.propose(ctx, rendezvous.Entry{Kind: rendezvous.KindEnd, At: time.Now(), End: &end})
}

var errUnknown = errors.New("the outcome is not known")

func (r *reign) propose(ctx context.Context, e rendezvous.Entry) error {
	time.Sleep(2 * time.Millisecond) // a commit takes a while
	r.mu.Lock()
	hook := r.hook
	r.mu.Unlock()
	if hook == nil {
		hook = func(rendezvous.Kind, bool) error { return nil }
	}
	if err := hook(e.Kind, false); err != nil {
		return err
	}
	if r.point() {
		return errors.Join(errUnknown, ctx.Err())
	}
	if err := r.w.commit(e); err != nil {
		return err
	}
	if r.point() {
		return errors.Join(errUnknown, ctx.Err())
	}
	return hook(e.Kind, true)
}

// onCommit sets the hook.
func (r *reign) onCommit(hook func(kind rendezvous.Kind, done bool) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hook = hook
}

// link is one control stream.
type link struct {
	orders queue[launcher.Order]
	events queue[launcher.Event]
	once   sync.Once
	broken chan struct{}
}

func (l *link) cut() { l.once.Do(func() { close(l.broken) }) }

type queue[T any] struct {
	mu    sync.Mutex
	items []T
	ready chan struct{}
}

func newQueue[T any]() queue[T] { return queue[T]{ready: make(chan struct{}, 1)} }

func (q *queue[T]) push(v T) {
	q.mu.Lock()
	q.items = append(q.items, v)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *queue[T]) take() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.items
	q.items = nil
	return out
}

func (r *reign) send(id launcher.NodeID, o launcher.Order) {
	r.mu.Lock()
	lk := r.links[id]
	dead := r.dead
	if !dead {
		r.orders[orderKind(o)]++
	}
	r.mu.Unlock()
	if dead || lk == nil {
		return
	}
	lk.orders.push(o)
	r.point()
}

func (r *reign) sent(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.orders[kind]
}

func orderKind(o launcher.Order) string {
	switch {
	case o.Prepare != nil:
		return "prepare"
	case o.Start != nil:
		return "start"
	case o.End != nil:
		return "end"
	case o.Forget != nil:
		return "forget"
	}
	return "fence"
}

// serve keeps a stream to one node, dialling again while the reign lasts.
func (r *reign) serve(n *fakeNode) {
	for r.ctx.Err() == nil {
		lk := &link{orders: newQueue[launcher.Order](), events: newQueue[launcher.Event](), broken: make(chan struct{})}
		up, err := n.attach(r.fence, lk)
		if err == nil {
			r.setLink(n.id, lk)
			r.w.wg.Go(func() { n.obey(lk) })
			r.leader.NodeUp(n.id, up)
			r.w.wg.Go(func() { r.echoes(n, lk) })
			r.pump(n, lk)
			n.detach(lk)
			r.setLink(n.id, nil)
			r.leader.NodeDown(n.id)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.ctx.Done():
		}
	}
}

func (r *reign) setLink(id launcher.NodeID, lk *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if lk == nil {
		delete(r.links, id)
		return
	}
	r.links[id] = lk
}

func (r *reign) pump(n *fakeNode, lk *link) {
	for {
		for _, ev := range lk.events.take() {
			time.Sleep(time.Millisecond)
			if r.point() {
				return
			}
			r.leader.Event(ev)
		}
		select {
		case <-lk.events.ready:
		case <-lk.broken:
			time.Sleep(2 * time.Second) // silence is noticed late
			return
		case <-r.ctx.Done():
			return
		}
	}
}

// client behaves as the CLI does: it asks again with the same id until a
// leadership tells it the end. It returns what the last one told.
func (w *world) client(ctx context.Context, spec launcher.Spec) (events []rendezvous.Progress, err error) {
	for {
		w.mu.Lock()
		r, next := w.reign, w.crowned
		w.mu.Unlock()
		if r != nil {
			events = nil
			if err = r.leader.Launch(ctx, spec); err == nil {
				w.mu.Lock()
				w.acked[spec.ID] = true
				w.mu.Unlock()
				err = r.leader.Watch(ctx, spec.ID, func(p rendezvous.Progress) error {
					events = append(events, p)
					return nil
				})
			}
			if err == nil || !errors.Is(err, ErrOver) && r.ctx.Err() == nil || ctx.Err() != nil {
				return events, err
			}
		}
		select {
		case <-next:
		case <-ctx.Done():
			return events, ctx.Err()
		}
	}
}

// settle waits (in the bubble's time) until the nodes have forgotten all, and
// tells every broken promise. It ends the present reign.
func (w *world) settle() {
	w.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for !w.clean() && time.Now().Before(deadline) {
		time.Sleep(100 * time.Millisecond)
	}
	w.mu.Lock()
	r := w.reign
	w.closing = true
	w.mu.Unlock()
	if r != nil {
		r.kill()
	}
	for _, n := range w.nodes {
		n.quit()
	}
	w.wg.Wait()
	for k, n := range w.execs {
		if n > 1 {
			w.t.Errorf("rank %d of %s was started %d times", k.rank, k.Key, n)
		}
	}
	for k := range w.running {
		w.t.Errorf("rank %d of %s runs on", k.rank, k.Key)
	}
	for id := range w.acked {
		if j, ok := w.record.Job(id); !ok || j.Outcome == nil {
			w.t.Errorf("job %s was acknowledged and has no outcome", id)
		}
	}
	for _, n := range w.nodes {
		for k, tr := range n.ledger {
			w.t.Errorf("%s remembers %s as %s", n.host, k, tr.Phase)
		}
	}
	for _, f := range w.faults {
		w.t.Error(f)
	}
}

func (w *world) clean() bool {
	for _, n := range w.nodes {
		n.mu.Lock()
		empty := len(n.ledger) == 0
		n.mu.Unlock()
		if !empty {
			return false
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running) == 0
}

// started counts the ranks of a job that were ever exec'd.
func (w *world) started(id launcher.JobID) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for k := range w.execs {
		if k.Job == id {
			n++
		}
	}
	return n
}

func inventoryOf(host string) envgen.Inventory { return envgen.Inventory{Host: host} }

func spec(id launcher.JobID, nodes, perNode int) launcher.Spec {
	return launcher.Spec{
		ID: id, Workload: "exec", Nodes: nodes,
		Stages: []launcher.Stage{{Name: "main", Main: true, RanksPerNode: perNode, Argv: launcher.Lits("true"),
			Workdir: "/"}},
	}
}
