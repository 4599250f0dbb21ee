package node

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

var (
	manyAgents  = flag.Int("many-agents", 200, "how many agents TestNobodyDiesAmongMany makes")
	manyFor     = flag.Duration("many-for", 0, "for how long TestNobodyDiesAmongMany watches them")
	manyProgram = flag.String("many-program", "", "the sparkrun that is the leader of TestNobodyDiesAmongMany")
)

// Many agents make a cluster, with an address on loopback each, and nothing is wrong: nobody may be taken for dead and
// nobody be elected. The first leads and is a process of its own, so that what it takes can be told; the others share
// this process. What is real: all of an agent, its connections, gossip, raft. What is simulated: machines and
// network; none has a fabric.
func TestNobodyDiesAmongMany(t *testing.T) {
	if *manyFor == 0 {
		t.Skip("takes minutes: ./scripts/soak_many")
	}
	base := t.TempDir()
	at := netip.AddrFrom4([4]byte{127, byte(1 + os.Getpid()%250), 200, 10})
	said := &deathsTold{}
	lead := &host{t: t, addr: at.String()}
	lead.cfg = Config{Host: "leader", Paths: Paths{Socket: base + "/leader/run/agent.sock"}}
	run := func(args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), *manyProgram, args...)
		c.Env = append(os.Environ(), "SPARKRUN_STATE="+base+"/leader/state", "SPARKRUN_RUN="+base+"/leader/run")
		c.Stdout, c.Stderr = said, said
		return c
	}
	if err := run("init", "--management", at.String()).Run(); err != nil {
		t.Fatalf("init: %v\n%s", err, said.text.String())
	}
	agent := run("agent", "--management", at.String(), "--memory-floor", "0", "--no-packet-filter", "--no-mdns")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = agent.Process.Signal(syscall.SIGTERM)
		_ = agent.Wait()
	}()
	lead.wait(1)

	client := lead.client()
	defer client.Close()
	token, err := wire.Token.Call(t.Context(), client, wire.TokenRequest{Uses: *manyAgents, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for i := 1; i < *manyAgents; i++ {
		at = at.Next()
		name := fmt.Sprintf("agent%d", i)
		dir := filepath.Join(base, name)
		h := &host{t: t, addr: at.String(), cfg: Config{
			MemoryFloor: new(int64(0)), Host: name, Management: at.String(), Version: "test",
			Paths:  Paths{State: dir + "/state", Run: dir + "/run", Sysfs: "/sys", Socket: dir + "/agent.sock"},
			Logger: slog.New(slog.NewTextHandler(said, nil)).With("on", name),
		}}
		if _, err := Join(t.Context(), h.cfg, lead.addr, token.Token); err != nil {
			t.Fatalf("join %s: %v", name, err)
		}
		h.start()
		defer h.halt()
	}
	first := lead.wait(*manyAgents)
	fmt.Printf("%d agents joined after %s\n", *manyAgents, time.Since(began).Round(time.Second))
	time.Sleep(30 * time.Second) // what joining has left to do

	said.forget()
	before, others := spent(t, agent.Process.Pid), spent(t, os.Getpid())
	for began = time.Now(); time.Since(began) < *manyFor; {
		time.Sleep(min(time.Minute, time.Until(began.Add(*manyFor))))
		took, s := time.Since(began), spent(t, agent.Process.Pid)
		st, err := readyNow(t.Context(), client)
		if err != nil || len(st.Nodes) != *manyAgents || st.Leader != first.Leader || st.Term != first.Term {
			t.Errorf("nobody died, and %d are ready, %q leads in term %d (%d before): %v", len(st.Nodes), st.Leader, st.Term, first.Term, err)
		}
		fmt.Printf("%s: %d ready, %d told to be dead; leader: %.2f %% of a core, %.0f switches/s, %d MB; each other: %.2f %% of a core\n",
			time.Now().Format(time.TimeOnly), len(st.Nodes), len(said.lines()), s.share(before, took), s.switches(before, took), s.rss>>10,
			spent(t, os.Getpid()).share(others, took)/float64(*manyAgents-1))
	}
	for _, line := range said.lines() {
		t.Errorf("nobody died, and it is said: %s", line)
	}
}

func readyNow(ctx context.Context, c *wire.Client) (wire.Status, error) {
	st, err := wire.ShowStatus.Call(ctx, c, wire.StatusRequest{})
	st.Nodes = slices.DeleteFunc(st.Nodes, func(n wire.NodeStatus) bool { return n.State != "ready" })
	return st, err
}

// deathsTold is a log of which only the lines are kept that take somebody for dead.
type deathsTold struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (d *deathsTold) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := string(b); strings.Contains(s, "kind=dead") || strings.Contains(s, `"node down"`) || !strings.HasPrefix(s, "time=") {
		d.text.Write(b)
	}
	return len(b), nil
}

func (d *deathsTold) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.text.Reset()
}

func (d *deathsTold) lines() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(strings.Lines(d.text.String()))
}

// use is what a process has taken so far.
type use struct {
	ns, woken float64
	rss       int // KiB
}

func (u use) share(since use, took time.Duration) float64 {
	return (u.ns - since.ns) / float64(took) * 100
}
func (u use) switches(since use, took time.Duration) float64 {
	return (u.woken - since.woken) / took.Seconds()
}

func spent(t *testing.T, pid int) (u use) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("process %d: %v", pid, err)
	}
	for _, task := range tasks {
		sched, _ := os.ReadFile(task + "/schedstat")
		status, _ := os.ReadFile(task + "/status") // none of a thread that has just ended
		if f := strings.Fields(string(sched)); len(f) > 0 {
			ns, _ := strconv.ParseFloat(f[0], 64)
			u.ns += ns
		}
		for line := range strings.Lines(string(status)) {
			f := strings.Fields(line)
			switch n, _ := strconv.Atoi(f[min(1, len(f)-1)]); f[0] {
			case "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:":
				u.woken += float64(n)
			case "VmRSS:":
				u.rss = n
			}
		}
	}
	return u
}
