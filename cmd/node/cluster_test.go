package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/load"
	"github.com/sparkrun/sparkrun/launcher/shim"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// The agents under test start their shims from this very program.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "shim" {
		syscall.Exit(shim.Main(os.Args[2])) // os.Exit takes a second under the race detector
	}
	if len(os.Args) > 1 && os.Args[1] == load.Command {
		syscall.Exit(load.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// host is one node of a cluster in this process: its own address on
// loopback, its own folders, everything else real.
type host struct {
	t    testing.TB
	cfg  Config
	addr string
	mu   sync.Mutex
	n    *node // while it runs
	stop context.CancelFunc
	done chan error
}

type cluster struct {
	news  int // newcomers so far
	edits []func(*Config)
	t     testing.TB
	hosts []*host
}

// nextNet keeps clusters of tests that run at once apart, in this process and beside it: each gets a 127.P.N.0/24.
var nextNet struct {
	sync.Mutex
	n int
}

func newCluster(t testing.TB, size int, edits ...func(*Config)) *cluster {
	t.Helper()
	nextNet.Lock()
	nextNet.n++
	net := nextNet.n
	nextNet.Unlock()
	c := &cluster{t: t, edits: edits}
	base := t.TempDir()
	for i := range size {
		name := fmt.Sprintf("spark%d", i+1)
		dir := filepath.Join(base, name)
		h := &host{t: t, addr: fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%250, net, 10+i)}
		h.cfg = Config{
			MemoryFloor: new(int64(0)),
			Paths:       Paths{State: dir + "/state", Run: dir + "/run", Sysfs: "/sys", Socket: dir + "/agent.sock"},
			Host:        name, Management: h.addr, Version: "test", Logger: testLogger(t, name),
		}
		for _, edit := range edits {
			edit(&h.cfg)
		}
		c.hosts = append(c.hosts, h)
	}
	t.Cleanup(c.end)
	ctx := t.Context()
	if _, err := Init(ctx, c.hosts[0].cfg); err != nil {
		t.Fatal(err)
	}
	c.hosts[0].start()
	c.hosts[0].wait(1)
	if size > 1 {
		token, err := wire.Token.Call(ctx, c.hosts[0].client(), wire.TokenRequest{Uses: size - 1, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range c.hosts[1:] {
			if _, err := Join(ctx, h.cfg, c.hosts[0].addr, token.Token); err != nil {
				t.Fatal(err)
			}
			h.start()
		}
	}
	c.hosts[0].wait(size)
	return c
}

// end halts the agents once they have let go of every job that has ended, and
// fails the test for each shim that is left: a test stops what it starts, and whose
// end is recorded is let go.
func (c *cluster) end() {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); !c.t.Failed() && len(c.shims((*host).up)) > 0 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	for _, h := range c.hosts {
		h.halt()
	}
	for _, dir := range c.shims((*host).any) {
		c.t.Errorf("the shim of a job is left: %s", dir)
		shim.SignalShim(dir, syscall.SIGTERM)
	}
	for deadline := time.Now().Add(time.Minute); len(c.shims((*host).any)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Errorf("not to be ended: %v", c.shims((*host).any))
			return
		}
	}
}

// shims are the folders of those that live on such hosts.
func (c *cluster) shims(on func(*host) bool) (dirs []string) {
	for _, h := range c.hosts {
		jobs := filepath.Join(h.cfg.Paths.Run, "jobs")
		if on(h) {
			for key := range shim.Living(jobs) {
				dirs = append(dirs, filepath.Join(jobs, key))
			}
		}
	}
	return dirs
}

func (h *host) up() bool { return h.stop != nil }
func (*host) any() bool  { return true }

// testLogger shows a node's log when its test fails.
func testLogger(t testing.TB, name string) *slog.Logger {
	var mu sync.Mutex
	var buf bytes.Buffer
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, buf.Bytes())
		}
	})
	return slog.New(slog.NewTextHandler(lockedWriter{&mu, &buf}, &slog.HandlerOptions{Level: slog.LevelInfo})).With("on", name)
}

type lockedWriter struct {
	mu  *sync.Mutex
	buf *bytes.Buffer
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(b)
}

func (h *host) start() {
	h.t.Helper()
	if h.cfg.Now == nil {
		h.cfg.Now = time.Now
	}
	ctx, stop := context.WithCancel(context.Background())
	held, err := h.cfg.Paths.Folder().Lock()
	if err != nil {
		h.t.Fatal(err)
	}
	h.stop, h.done = stop, make(chan error, 1)
	opened := make(chan struct{})
	go func(done chan<- error) {
		first, err := true, failover.ErrReopen
		for errors.Is(err, failover.ErrReopen) {
			err = live(ctx, h.cfg, func(n *node) {
				h.mu.Lock()
				h.n = n
				h.mu.Unlock()
				if first {
					close(opened)
				}
				first = false
			})
		}
		held.Close()
		if first {
			close(opened)
		}
		done <- err
	}(h.done)
	<-opened
}

// leadsNow tells whether its node leads.
func (h *host) leadsNow() bool {
	leads, _ := h.now().toLeader.Leads()
	return leads
}

// led are the jobs as its node knows them while it leads; none while it does not.
func (h *host) led() []rendezvous.JobStatus {
	if !h.leadsNow() {
		return nil
	}
	res, err := wire.Jobs.Call(h.t.Context(), h.now().toLeader.As(asRoot), wire.JobsRequest{})
	if err != nil {
		return nil
	}
	return res.Jobs
}

// now is the node in its present life: a change of epochs begins another.
func (h *host) now() *node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

func (h *host) halt() {
	if h.stop == nil {
		return
	}
	h.stop()
	if err := <-h.done; err != nil {
		h.t.Errorf("agent of %s: %v", h.cfg.Host, err)
	}
	h.stop = nil
}

// crash ends an agent without a word to anybody, which a clean stop would have.
func (h *host) crash() {
	h.now().end()
	if err := <-h.done; err != nil {
		h.t.Errorf("agent of %s: %v", h.cfg.Host, err)
	}
	h.stop()
	h.stop = nil
}

func (h *host) client() *wire.Client { return Dial(h.cfg.Paths.Socket) }

// wait blocks until the host sees n ready nodes.
func (h *host) wait(n int) wire.Status {
	h.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		c := h.client()
		st, err := wire.ShowStatus.Call(h.t.Context(), c, wire.StatusRequest{WaitNodes: n, Timeout: time.Until(deadline)})
		c.Close()
		if err == nil {
			return st
		}
		if !errors.Is(err, ErrNoAgent) || time.Now().After(deadline) {
			h.t.Fatalf("wait for %d nodes on %s: %v", n, h.cfg.Host, err)
		}
		time.Sleep(10 * time.Millisecond) // the socket is about to be made
	}
}

// command is a spec that runs a shell line on each of n nodes.
func command(nodes, perNode int, line string) launcher.Spec {
	return launcher.Spec{
		ID: launcher.NewJobID(), Workload: "exec", Nodes: nodes, Grace: 2 * time.Second,
		Stages: []launcher.Stage{{
			Name: "main", Main: true, RanksPerNode: perNode, Argv: launcher.Lits("sh", "-c", line), Workdir: "/", UsesPort: true,
			Env: []launcher.Var{
				{Name: "RANK", Value: launcher.Of(launcher.Rank), Source: "test"},
				{Name: "HOST", Value: launcher.Of(launcher.Host), Source: "test"},
				{Name: "MASTER", Value: append(launcher.Of(launcher.Head), append(launcher.Lit(":"), launcher.Of(launcher.Port)...)...), Source: "test"},
			},
		}},
	}
}

// run launches through a host's socket and returns the outcome. It asks again, as
// sparkrun launch does, while the leadership is on its way.
func (h *host) run(spec launcher.Spec) *rendezvous.Outcome {
	h.t.Helper()
	var out *rendezvous.Outcome
	c := h.client()
	defer c.Close()
	launch := func() error {
		return wire.Launch.Call(h.t.Context(), c, wire.LaunchRequest{Spec: spec}, func(p rendezvous.Progress) error {
			if p.Step == rendezvous.StepEnded {
				out = p.Outcome
			}
			return nil
		})
	}
	err := launch()
	for end := time.Now().Add(30 * time.Second); errors.Is(err, wire.ErrRetry) && time.Now().Before(end); err = launch() {
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil || out == nil {
		h.t.Fatalf("launch on %s: %v (outcome %v)", h.cfg.Host, err, out)
	}
	return out
}

// output reads a job's stdout through a host's socket, by rank.
func (h *host) output(job launcher.JobID) map[int]string {
	h.t.Helper()
	out := map[int]string{}
	c := h.client()
	defer c.Close()
	err := wire.Logs.Call(h.t.Context(), c, wire.LogsRequest{Job: string(job)}, func(ch wire.LogChunk) error {
		if ch.Note != "" {
			h.t.Errorf("note: %s", ch.Note)
		}
		if ch.Stream == wire.Stdout {
			out[ch.Rank] += string(ch.Data)
		}
		return nil
	})
	if err != nil {
		h.t.Fatalf("logs on %s: %v", h.cfg.Host, err)
	}
	return out
}

// waitVoters waits until so many vote. It asks: a change of votes alone is told to nobody.
func (h *host) waitVoters(n int) {
	h.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		votes := 0
		for _, m := range h.wait(n).Nodes {
			if m.Role == "leader" || m.Role == "voter" {
				votes++
			}
		}
		if votes == n {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%d of %d vote", votes, n)
		}
	}
}
