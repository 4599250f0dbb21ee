package web

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// hostile is what ranks and users write who mean harm.
const hostile = `</li><script>document.title="pwned"</script><img src=x onerror="document.title='pwned'">` + "\x1b[31m\u202eevil"

// cluster is one that is made up: machines, jobs, and what was done to them.
type cluster struct {
	mu    sync.Mutex
	n     int
	asked int // how often for what machines use

	askedAll int // how often for all jobs
	stopped  []string
	whys     []string // who asked, of what
	by       []wire.User
	problem  string
	more     chan string // lines of output
	late     bool        // jobs are not known yet
	anew     bool        // jobs run again
	fails    error       // output is not to be had
}

func (c *cluster) inventory(i int) envgen.Inventory {
	inv := envgen.Inventory{Host: fmt.Sprintf("spark%d", i+1)}
	for port := range 2 {
		state, phys := envgen.StateActive, "LinkUp"
		if i == 2 && port == 1 {
			state, phys = envgen.StateDown, "Disabled"
		}
		for twin := range 2 {
			name := fmt.Sprintf("enp%ds0f%dnp%d", 1+twin, port, port)
			pci := &envgen.PCIAddress{Domain: uint32(2 * twin), Bus: 1, Function: uint8(port)}
			inv.NICs = append(inv.NICs, envgen.NIC{Name: name, PCI: pci, PCIVendor: envgen.VendorMellanox, PortName: fmt.Sprintf("p%d", port),
				MTU: 9000, Up: true, Carrier: new(state == envgen.StateActive), SpeedMbps: new(200000), OperState: "up", Physical: true,
				Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.%d/24", port, twin, i+1))}})
			inv.Devices = append(inv.Devices, envgen.HCA{Name: "roce" + name, PCI: pci, Type: "MT4129", State: state, PhysState: phys,
				RateMbps: new(200000), LinkLayer: envgen.LayerEthernet, Netdev: name, GIDs: []envgen.GID{{Index: 3, Type: "RoCE v2",
					Addr: netip.AddrFrom16(netip.AddrFrom4([4]byte{10, byte(port), byte(twin), byte(i + 1)}).As16())}}})
		}
	}
	return inv
}

func (c *cluster) status() wire.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := wire.Status{Cluster: "c", Self: "spark1", Leader: "spark1", Problem: c.problem}
	for i := range c.n {
		n := wire.NodeStatus{ID: launcher.NodeID(fmt.Sprintf("n%d", i)), Host: fmt.Sprintf("spark%d", i+1), State: "ready",
			Addr: netip.AddrFrom4([4]byte{192, 168, 1, byte(i + 1)}), Version: "test", Inventory: c.inventory(i)}
		switch {
		case i == 0:
			n.Role = "leader"
		case i == 1 && c.n > 2:
			n.State, n.Why = "drained", "a new fan"
		case i == 3:
			n.State = "away"
		}
		st.Nodes = append(st.Nodes, n)
	}
	return st
}

// usage is what a machine uses, another time more.
func (c *cluster) usage(i int) (n wire.NodeUsage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	load := float64((c.asked*7+i*13)%100) / 100
	n.CPU = &usage.CPU{Cores: 20, Used: new(3.5), Load1: new(4.2)}
	n.Memory = &usage.Memory{Total: 128 << 30, Available: int64(float64(int64(128)<<30) * (1 - 0.97*load)), Cache: 9 << 30}
	n.GPUs = []usage.GPU{{Name: "NVIDIA GB10", Busy: &load, MHz: new(2400.0), MaxMHz: new(3003.0), Watts: new(30 + 70*load),
		Celsius: new(45 + 30*load)}}
	n.Disks = []usage.Disk{{Mount: "/", Total: 4 << 40, Free: 1 << 40}}
	n.Ports = []usage.Port{{Name: "p0", RDMAIn: new(1.2e10), RDMAOut: new(1.1e10), EtherIn: new(900.0), EtherOut: new(800.0)}}
	n.Ranks = []usage.Rank{{Job: "11111111-aaaa-4aaa-8aaa-000000000001", Generation: 1, Rank: i, CPU: new(1.5), Memory: 3 << 30,
		GPUMemory: new(int64(60 << 30))}}
	return n
}

// client makes calls of a user's, to a node that leads and asks the others.
func (c *cluster) client(of wire.Caller) *wire.Client {
	answers := func(i int) []wire.Call {
		return wire.Usage.Serve(func(context.Context, wire.Caller, wire.Empty) (wire.NodeUsage, error) { return c.usage(i), nil })
	}
	led, here := c.calls()
	to := wire.NewToLeader(wire.ToLeaderConfig{})
	to.Lead(led...)
	return wire.NewServer(wire.ServerConfig{Leader: to, Everyone: wire.Everyone{Self: "n0",
		Status: func(context.Context, wire.Caller, wire.StatusRequest) (wire.Status, error) { return c.status(), nil },
		Client: func(id launcher.NodeID) *wire.Client {
			i := 0
			fmt.Sscanf(string(id), "n%d", &i) //nolint:errcheck // it is ours
			return wire.Alone(wire.Caller{Node: "n0"}, answers(i)...)
		}}}, append(here, answers(0)...)...).As(of)
}

func (c *cluster) jobs() (res wire.JobsResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now().Add(-90 * time.Minute)
	job := func(i int, name, user string, nodes int) rendezvous.JobStatus {
		j := rendezvous.JobStatus{State: rendezvous.StateRuns, Started: &began}
		j.Spec = launcher.Spec{ID: launcher.JobID(fmt.Sprintf("11111111-aaaa-4aaa-8aaa-%012d", i)), Name: name, User: user, Workload: "torchrun",
			Stages: []launcher.Stage{{}}}
		j.Plan = rendezvous.Plan{Generation: 1, World: nodes, Network: "fabric", Why: "all of them share a subnet"}
		if c.anew {
			j.Plan.Generation = 2
		}
		j.Planned = began
		for k := range nodes {
			j.Plan.Nodes = append(j.Plan.Nodes, rendezvous.Place{Node: launcher.NodeID(fmt.Sprintf("n%d", k)), Host: fmt.Sprintf("spark%d", k+1),
				FirstRank: k, Ranks: 1})
		}
		if slices.Contains(c.stopped, string(j.Spec.ID)) {
			j.Outcome = &rendezvous.Outcome{End: rendezvous.Stopped, At: time.Now(), Cause: "stopped"}
			j.State = rendezvous.State(j.Outcome.End)
		}
		return j
	}
	failed := job(3, "finetune", "bob", 2)
	exit := launcher.RankExit{Rank: 1, Host: "spark2", Exit: launcher.Exit{Code: 1, Words: "RuntimeError: CUDA out of memory",
		Last: "step 41 loss 2.31\nTraceback (most recent call last):\n" + hostile}}
	failed.Outcome = &rendezvous.Outcome{End: "failed", At: time.Now().Add(-time.Hour), ExitCode: 1,
		Cause: "rank 1 on spark2: exit 1: RuntimeError: CUDA out of memory", Root: &exit, Exits: []launcher.RankExit{exit}}
	failed.State = "failed"
	serves := job(4, "llama", "alice", 1)
	serves.Spec.Workload, serves.Spec.Service = "vllm", &launcher.Service{Model: "meta-llama/Llama-3.1-8B"}
	serves.Service = &launcher.ServiceSeen{State: launcher.ServiceReady, Since: began, Addr: "192.168.1.1:8000", Rate: new(412.7), Running: new(3)}
	if c.late {
		return res
	}
	res.Jobs = []rendezvous.JobStatus{failed, serves, job(2, hostile, "mallory", min(2, c.n)), job(1, "pretrain", "alice", min(4, c.n))}
	return res
}

func (c *cluster) calls() (led, here []wire.Call) {
	acts := func(what string) func(ctx context.Context, who wire.Caller, id string) error {
		return func(_ context.Context, who wire.Caller, id string) error {
			if id == "11111111-aaaa-4aaa-8aaa-000000000002" && who.User.Name != "mallory" {
				return fmt.Errorf("%s job: %w: it is mallory's, who may", what, wire.ErrDenied)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.stopped, c.by = append(c.stopped, id), append(c.by, *who.User)
			return nil
		}
	}
	stop, restart := acts("stop"), acts("restart")
	led = []wire.Call{
		wire.Follow.Serve(func(ctx context.Context, _ wire.Caller, _ wire.Empty, send func(wire.Status) error) error {
			if err := send(c.status()); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}),
		wire.Jobs.Serve(func(_ context.Context, _ wire.Caller, r wire.JobsRequest) (wire.JobsResponse, error) {
			res := c.jobs()
			res.Jobs = slices.DeleteFunc(res.Jobs, func(j rendezvous.JobStatus) bool { return !r.Wants(j) })
			c.mu.Lock()
			defer c.mu.Unlock()
			if !r.Open {
				c.askedAll++
			}
			return res, nil
		}),
		wire.Stop.Serve(func(ctx context.Context, who wire.Caller, r wire.StopRequest) (wire.StopResponse, error) {
			return wire.StopResponse{}, stop(ctx, who, r.Job)
		}),
		wire.Restart.Serve(func(ctx context.Context, who wire.Caller, r wire.JobRequest) (wire.ServiceResponse, error) {
			return wire.ServiceResponse{}, restart(ctx, who, r.Job)
		}),
	}
	here = []wire.Call{
		wire.Logs.Serve(c.logs),
		wire.Why.Serve(func(_ context.Context, who wire.Caller, r wire.WhyRequest) (wire.WhyResponse, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.whys = append(c.whys, who.User.Name+" "+r.Of)
			return wire.WhyResponse{Findings: []wire.WhyFinding{{Text: "rank 1 is behind: " + hostile, Evidence: []string{"0.1 of 1 cores"},
				Remedy: "sparkrun ps"}}, Unasked: []string{"spark3: it is away"}}, nil
		}),
		wire.Doctor.Serve(func(context.Context, wire.Caller, wire.DoctorRequest) (wire.DoctorResponse, error) {
			return wire.DoctorResponse{Findings: []envgen.Finding{
				{Code: "twins-one-subnet", Severity: envgen.SeverityError, Host: "spark3", Text: "Both twins of a port are in 10.0.0.0/24.",
					Evidence: "enp1s0f0np0 10.0.0.3/24", Remedy: "sudo sparkrun netplan apply"},
				{Code: "twins-one-subnet", Severity: envgen.SeverityError, Host: "spark4", Text: "Both twins of a port are in 10.0.0.0/24.",
					Evidence: "enp1s0f0np0 10.0.0.3/24", Remedy: "sudo sparkrun netplan apply"},
				{Code: "memory-fragmented", Severity: envgen.SeverityWarning, Host: "spark1", Text: hostile, Remedy: "sudo reboot"}}}, nil
		}),
	}
	return led, append(here, wire.Models.Serve(func(context.Context, wire.Caller, wire.ModelsRequest) (wire.NodeModels, error) {
		return wire.NodeModels{Held: []wire.HeldModel{
			{Held: modelcache.Held{Repo: modelcache.Repo{Type: "model", Name: "meta-llama/Llama-3.1-8B"}, Bytes: 16 << 30,
				Commits: []modelcache.Commit{{Bytes: 16 << 30, Have: 16 << 30}}}},
			{Held: modelcache.Held{Repo: modelcache.Repo{Type: "model", Name: "Qwen/Qwen3-32B"}, Bytes: 20 << 30,
				Commits: []modelcache.Commit{{Bytes: 64 << 30, Have: 20 << 30, Missing: []string{"a"}}}}, Pulling: "p"},
		}}, nil
	})...)
}

// logs has what was written, and then what comes by more.
func (c *cluster) logs(ctx context.Context, _ wire.Caller, r wire.LogsRequest, send func(wire.LogChunk) error) error {
	c.mu.Lock()
	fails := c.fails
	c.mu.Unlock()
	if fails != nil {
		return fails
	}
	at := int64(0)
	for _, cur := range r.Cursors {
		at = cur.Offset
	}
	all := "step 1 loss 9.1\n\x1b[32mstep 2\x1b[0m loss 8.7\n" + hostile + "\nstep 3 loss 8.2\n"
	if at < int64(len(all)) {
		if err := send(wire.LogChunk{Rank: 0, Stream: launcher.Stdout, Offset: at, Data: launcher.Bytes(all[at:])}); err != nil {
			return err
		}
		at = int64(len(all))
	}
	if !r.Follow {
		return send(wire.LogChunk{Host: "spark2", Note: "spark2 does not answer; its ranks' output is missing", Away: true})
	}
	for {
		select {
		case line := <-c.more:
			if err := send(wire.LogChunk{Rank: 0, Stream: launcher.Stdout, Offset: at, Data: launcher.Bytes(line)}); err != nil {
				return err
			}
			at += int64(len(line))
		case <-time.After(50 * time.Millisecond):
			c.mu.Lock()
			over := c.anew && r.Generation == 1
			c.mu.Unlock()
			if over {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// site is a page of a made-up cluster, served on loopback.
type site struct {
	*Web
	*cluster
	t    testing.TB
	srv  *httptest.Server
	stop func()
}

var (
	alice   = wire.Caller{User: &wire.User{Name: "alice", UID: 1001}}
	mallory = wire.Caller{User: &wire.User{Name: "mallory", UID: 1002}}
)

func newSite(t testing.TB, machines int) *site {
	t.Helper()
	s := &site{cluster: &cluster{n: machines, more: make(chan string)}, t: t}
	v := OpenVisitors(VisitorsConfig{Host: "spark1", Port: 7943, Path: filepath.Join(t.TempDir(), "web.json"),
		Listed: func(id string) bool { return id != "gone" }, Logger: slog.New(slog.DiscardHandler)})
	s.open(v, "127.0.0.1:0")
	t.Cleanup(func() { s.stop() })
	return s
}

// again is the next agent at an address.
func (s *site) again(addr string) { s.open(OpenVisitors(s.Visitors.cfg), addr) }

func (s *site) open(v *Visitors, addr string) {
	s.t.Helper()
	s.Web = New(Config{Host: "spark1", Version: "test", Visitors: v, Logger: slog.New(slog.DiscardHandler),
		As: s.client})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.seen.run(ctx) }) // the test's server listens
	l, err := net.Listen("tcp", addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.srv = &httptest.Server{Listener: l, Config: &http.Server{Handler: s.Web}}
	s.srv.Start()
	s.stop = func() {
		cancel()
		s.srv.CloseClientConnections()
		s.srv.Close()
		running.Wait()
		s.end()
		s.tasks.Wait()
	}
}

// link makes one for a user.
func (s *site) link(c wire.Caller) string {
	s.t.Helper()
	res, err := s.invite(s.t.Context(), c, wire.Empty{})
	if err != nil {
		s.t.Fatal(err)
	}
	_, token, _ := strings.Cut(res.URLs[0], "/in/")
	return s.srv.URL + "/in/" + token
}

// browser keeps cookies and goes where it is sent.
type browser struct {
	t      testing.TB
	site   *site
	folder string // the address of its pages
	cookie *http.Cookie
}

// enter opens the page by a link.
func (s *site) enter(c wire.Caller) *browser {
	s.t.Helper()
	res, err := http.Get(s.link(c))
	if err != nil {
		s.t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != 200 || len(res.Cookies()) != 1 {
		s.t.Fatalf("the link: %s, cookies %v: %s", res.Status, res.Cookies(), body)
	}
	b := &browser{t: s.t, site: s, cookie: res.Cookies()[0]}
	b.folder = s.srv.URL + b.cookie.Path
	return b
}

// do makes a request with its cookie.
func (b *browser) do(method, url string, form string, edit func(*http.Request)) (int, http.Header, string) {
	b.t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(form))
	if err != nil {
		b.t.Fatal(err)
	}
	r.AddCookie(b.cookie)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if edit != nil {
		edit(r)
	}
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := c.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(body)
}

func (b *browser) get(path string) string {
	b.t.Helper()
	status, _, body := b.do("GET", b.folder+path, "", nil)
	if status != 200 {
		b.t.Fatalf("%s: %d: %s", path, status, body)
	}
	return body
}
