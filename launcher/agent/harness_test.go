package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// The test binary is also the shim, and an agent that can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "shim" {
		syscall.Exit(shim.Main(os.Args[2])) // os.Exit takes a second in a race build
	}
	if len(os.Args) == 3 && os.Args[1] == "agent" {
		syscall.Exit(agentMain(os.Args[2]))
	}
	if len(os.Args) == 3 && os.Args[1] == "bind" {
		syscall.Exit(bindMain(os.Args[2]))
	}
	os.Exit(m.Run())
}

// agentMain obeys the orders that come on stdin, one JSON object each, until
// it is killed.
func agentMain(base string) int {
	a, err := Open(configIn(base, slog.New(slog.DiscardHandler)))
	if err == nil {
		err = a.Raise(fence)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	in := json.NewDecoder(os.Stdin)
	for {
		var o launcher.Order
		if err := in.Decode(&o); err != nil {
			return 1
		}
		if err := a.Order(o); err != nil {
			return 1
		}
	}
}

const (
	job  = launcher.JobID("abcd234567")
	boot = "boot-of-today"
)

var (
	fence = launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 3}
	key   = launcher.Key{Job: job, Generation: 1}
)

func configIn(base string, log *slog.Logger) Config {
	return Config{
		Node: launcher.NodeID("test-" + filepath.Base(filepath.Dir(base)) + strconv.Itoa(os.Getpid())), Boot: boot,
		RunDir: filepath.Join(base, "run"), LogDir: filepath.Join(base, "logs"),
		Fabric: func(launcher.Assignment) ([]launcher.Setting, error) { return nil, nil },
		Logger: log,
	}
}

// node is one node under test: an agent that may be dropped and opened again,
// and all that was heard of it.
type node struct {
	t    testing.TB
	ctx  context.Context
	base string
	cfg  Config
	mark string // in every rank's environment: finds survivors whatever the ledger says
	a    *Agent
	rec  *recorder
	log  lockedBuffer
	// killed says that a shim was: before its start its cgroup is then known to
	// nobody, and stays.
	killed bool
}

func newNode(t testing.TB, change ...func(*Config)) *node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // 200 rounds take two where the processor is emulated
	base := t.TempDir()
	must(t, os.Chmod(base, 0o755))
	must(t, os.Chmod(filepath.Dir(base), 0o755))
	n := &node{t: t, ctx: ctx, base: base, mark: fmt.Sprintf("TEST_ID=%s-%d", filepath.Base(base), time.Now().UnixNano())}
	n.cfg = configIn(base, slog.New(slog.NewTextHandler(&n.log, nil)))
	for _, f := range change {
		f(&n.cfg)
	}
	t.Cleanup(func() {
		defer cancel()
		n.clean()
	})
	n.open()
	return n
}

func (n *node) open() {
	n.t.Helper()
	a, err := Open(n.cfg)
	must(n.t, err)
	n.a = a
	must(n.t, a.Raise(fence))
	n.rec = record(a)
}

// drop is what a kill -9 does, as far as the shims can tell.
func (n *node) drop() {
	n.t.Helper()
	n.rec.stop()
	n.a.Close()
	n.a = nil
}

// clean ends everything and sees that nothing is left: no process, no folder,
// no goroutine.
func (n *node) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	n.ctx = ctx // the test's own may have run out
	if n.a == nil {
		n.open()
	}
	for _, e := range n.a.Ledger() {
		must(n.t, n.a.Order(launcher.Order{Fence: n.fence(), Forget: &e.Key}))
	}
	n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
	n.drop()
	if left := n.survivors(); len(left) > 0 {
		n.t.Errorf("processes are left: %v", left)
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if left := n.shimPIDs(); len(left) > 0 {
		n.t.Errorf("shims are left: %v", left)
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGTERM) // ends its attempt, if it has one
		}
	}
	if left, _ := os.ReadDir(filepath.Join(n.cfg.RunDir, "jobs")); len(left) > 0 {
		n.t.Errorf("left in jobs: %v", left)
	}
	for _, root := range []string{"", "unified", "freezer"} {
		left, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", root, "sparkrun", string(n.cfg.Node)+"-*"))
		for _, dir := range left {
			_ = os.Remove(dir)
		}
		if len(left) > 0 && !n.killed {
			n.t.Errorf("cgroups are left: %v", left)
		}
	}
	if _, bench := n.t.(*testing.B); !bench {
		goleak.VerifyNone(n.t)
	}
	if n.t.Failed() {
		n.t.Logf("log:\n%s", n.log.String())
	}
}

func (n *node) fence() launcher.Fence {
	n.a.mu.Lock()
	defer n.a.mu.Unlock()
	return n.a.fence
}

// poll is for what nothing tells of.
func (n *node) poll(what string, f func() bool) {
	n.t.Helper()
	for !f() {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-n.ctx.Done():
			n.t.Fatalf("waited in vain for %s; ledger %+v", what, n.a.Ledger())
		}
	}
}

// survivors finds processes by the mark that ranks were given.
func (n *node) survivors() []int {
	var left []int
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range paths {
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte(n.mark)) {
			pid, _ := strconv.Atoi(strings.Split(p, "/")[2])
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !bytes.Contains(stat, []byte(") Z ")) {
				left = append(left, pid)
			}
		}
	}
	return left
}

// as makes an assignment of one rank that runs a shell script. In it,
// `gate` waits until open lets this rank through, `witness` leaves a line.
func (n *node) as(script string, change ...func(*launcher.Assignment)) launcher.Assignment {
	const words = `exec 3<>"$GATE.$RANK"; gate() { read x <&3; }; witness() { echo "$RANK $$" >> "$WITNESS"; }; `
	a := launcher.Assignment{
		Key: key, Node: n.cfg.Node, Host: "spark1", Boot: boot, NodeCount: 1, Ranks: 1, World: 1,
		Head: netip.MustParseAddr("127.0.0.1"), Addr: netip.MustParseAddr("127.0.0.1"), Network: "loopback",
		Spec: launcher.Spec{
			ID: job, Nodes: 1, Grace: time.Second,
			Stages: []launcher.Stage{{
				Name: "main", Main: true, RanksPerNode: 1, Workdir: n.base,
				Argv: launcher.Lits("sh", "-c", words+script),
				Env: []launcher.Var{
					{Name: "TEST_ID", Value: launcher.Lit(strings.TrimPrefix(n.mark, "TEST_ID="))},
					{Name: "GATE", Value: launcher.Lit(filepath.Join(n.base, "gate"))},
					{Name: "WITNESS", Value: launcher.Lit(filepath.Join(n.base, "witness"))},
					{Name: "RANK", Value: launcher.Of(launcher.Rank)},
				},
			}},
		},
	}
	for _, f := range change {
		f(&a)
	}
	a.Spec.ID = a.Job
	for r := range a.Ranks {
		path := filepath.Join(n.base, fmt.Sprintf("gate.%d", a.FirstRank+r))
		if err := syscall.Mkfifo(path, 0o666); err != nil && err != syscall.EEXIST {
			n.t.Fatal(err)
		}
		must(n.t, os.Chmod(path, 0o666))
	}
	return a
}

func ranks(first, count int) func(*launcher.Assignment) {
	return func(a *launcher.Assignment) {
		a.FirstRank, a.Ranks, a.World = first, count, first+count
		a.Spec.Stages[0].RanksPerNode = count
	}
}

func generation(g launcher.Generation) func(*launcher.Assignment) {
	return func(a *launcher.Assignment) { a.Generation = g }
}

func named(id launcher.JobID) func(*launcher.Assignment) {
	return func(a *launcher.Assignment) { a.Job = id }
}

// pass lets a rank through its gate.
func (n *node) pass(rank int) {
	n.t.Helper()
	f, err := os.OpenFile(filepath.Join(n.base, fmt.Sprintf("gate.%d", rank)), os.O_WRONLY, 0)
	must(n.t, err)
	_, err = f.WriteString("go\n")
	must(n.t, err)
	must(n.t, f.Close())
}

func (n *node) witness() []string {
	b, err := os.ReadFile(filepath.Join(n.base, "witness"))
	if err != nil {
		return nil
	}
	return strings.Fields(strings.ReplaceAll(string(b), " ", ":"))
}

func (n *node) order(o launcher.Order) {
	n.t.Helper()
	o.Fence = n.fence()
	must(n.t, n.a.Order(o))
}

func (n *node) prepare(a launcher.Assignment) { n.t.Helper(); n.order(launcher.Order{Prepare: &a}) }

func (n *node) start(k launcher.Key, port int) {
	n.t.Helper()
	n.order(launcher.Order{Start: &launcher.Start{Key: k, Port: port}})
}

func (n *node) end(k launcher.Key, grace time.Duration) {
	n.t.Helper()
	n.order(launcher.Order{End: &launcher.End{Key: k, Grace: grace, Reason: "the test says so"}})
}

// launch prepares and starts, and returns once all ranks were exec'd.
func (n *node) launch(a launcher.Assignment) {
	n.t.Helper()
	n.prepare(a)
	n.hear(launcher.Prepared)
	n.start(a.Key, n.entry(a.Key).Port)
	n.hear(launcher.Started)
}

// entry gives one attempt of the ledger; the zero entry where there is none.
func (n *node) entry(k launcher.Key) launcher.LedgerEntry {
	for _, e := range n.a.Ledger() {
		if e.Key == k {
			return e
		}
	}
	return launcher.LedgerEntry{}
}

// hear waits for the next event of a kind and passes over the others.
func (n *node) hear(kind launcher.EventKind) launcher.Event {
	n.t.Helper()
	for {
		ev, err := n.rec.take(n.ctx)
		if err != nil {
			n.t.Fatalf("no event %q; ledger %+v; heard %v", kind, n.a.Ledger(), n.rec.all())
		}
		if ev.Kind == kind {
			return ev
		}
		if kind == launcher.Prepared && ev.Kind == launcher.Refused {
			n.t.Fatalf("refused: %s", ev.Text)
		}
	}
}

// heard counts the events of a kind since the agent was opened.
func (n *node) heard(kind launcher.EventKind) int {
	c := 0
	for _, ev := range n.rec.all() {
		if ev.Kind == kind {
			c++
		}
	}
	return c
}

// recorder keeps every event of an agent.
type recorder struct {
	stop func()
	mu   sync.Mutex
	evs  []launcher.Event
	at   int // of the next one to take
	more chan struct{}
}

func record(a *Agent) *recorder {
	r := &recorder{more: make(chan struct{}, 1)}
	next, unsubscribe := a.Events()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer unsubscribe()
		for {
			ev, err := next(ctx)
			if err != nil {
				return
			}
			r.mu.Lock()
			r.evs = append(r.evs, ev)
			r.mu.Unlock()
			select {
			case r.more <- struct{}{}:
			default:
			}
		}
	}()
	r.stop = func() { cancel(); <-done }
	return r
}

func (r *recorder) take(ctx context.Context) (launcher.Event, error) {
	for {
		r.mu.Lock()
		if r.at < len(r.evs) {
			ev := r.evs[r.at]
			r.at++
			r.mu.Unlock()
			return ev, nil
		}
		r.mu.Unlock()
		select {
		case <-r.more:
		case <-ctx.Done():
			return launcher.Event{}, ctx.Err()
		}
	}
}

func (r *recorder) all() []launcher.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.evs)
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shimPIDs finds the living shims of this node.
func (n *node) shimPIDs() []int {
	var pids []int
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range paths {
		b, _ := os.ReadFile(p)
		argv := strings.Split(string(b), "\x00")
		if len(argv) > 2 && argv[1] == "shim" && strings.HasPrefix(argv[2], n.base+"/") {
			pid, _ := strconv.Atoi(strings.Split(p, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}
