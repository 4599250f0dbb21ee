package metrics

import (
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

var update = flag.Bool("update", false, "write the golden files")

// fake is the rest of a node.
type fake struct {
	leader              launcher.NodeID
	record              bool
	devices, interfaces map[string]map[string]uint64
	held                map[launcher.Key]int64
	machine             usage.Machine
}

func (f fake) Leader() launcher.NodeID              { return f.leader }
func (f fake) HasRecord() bool                      { return f.record }
func (f fake) Scrape(context.Context) usage.Machine { return f.machine }
func (f fake) Totals() (devices, interfaces map[string]map[string]uint64) {
	return f.devices, f.interfaces
}
func (f fake) Held() map[launcher.Key]int64 { return f.held }
func (f fake) Guarded() int64               { return 3 }

func files(t *testing.T, all map[string]string) proc.FS {
	t.Helper()
	dir := t.TempDir()
	for name, text := range all {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return proc.FS(dir)
}

// node is a member of three on which everything tells something.
func node(t *testing.T) *Metrics {
	f := fake{
		leader: "id1", record: true,
		devices: map[string]map[string]uint64{"rocep1s0f0": {"port_rcv_data": 100, "port_xmit_data": 7, "out_of_sequence": 2}},
		interfaces: map[string]map[string]uint64{"eth0": {"rx_bytes": 5, "tx_bytes": 6},
			"veth12": {"rx_bytes": 1, "tx_bytes": 1}},
		held: map[launcher.Key]int64{{Job: "jjjj", Generation: 1}: 1 << 30, {Job: "jjjj", Generation: 2}: 1 << 20},
		machine: usage.Machine{
			Memory: &usage.Memory{Total: 128 << 10, Swap: 16 << 10, SwapUsed: 4 << 10, CMA: new(int64(8 << 10)),
				CMAFree: new(int64(4 << 10)), LargeFree: new(int64(0))},
			GPUs: []usage.GPU{
				{Name: "NVIDIA GB10", Busy: new(0.96), MHz: new(507.), MaxMHz: new(3003.), Watts: new(12.), Celsius: new(88.),
					Throttle: []string{"sw_thermal_slowdown"}},
				{Index: 1, Name: "NVIDIA H200", Used: new(int64(1 << 30)), Total: new(int64(140 << 30))},
			},
			Ranks: []usage.Rank{
				{Job: "jjjj", Generation: 2, Rank: 3, CPUTime: 1500 * time.Millisecond, Memory: 1 << 20, GPUMemory: new(int64(5 << 20))},
				{Job: "jjjj", Generation: 2, Rank: 4, Memory: 1 << 10},
			},
		},
	}
	present, inventory := &rendezvous.Latest[[]gossip.Peer]{}, &rendezvous.Latest[envgen.Inventory]{}
	present.Store([]gossip.Peer{{ID: "id1", Alive: true}, {ID: "id2", Alive: true}, {ID: "id3"}})
	inventory.Store(envgen.Inventory{NICs: []envgen.NIC{{Name: "eth0", Physical: true}, {Name: "veth12"}},
		Devices: []envgen.HCA{{Name: "rocep1s0f0", State: envgen.StateActive}, {Name: "rocep1s0f1", State: "DOWN"}}})
	members := []wire.Member{
		{ID: "id1", Host: "spark1", Addr: netip.MustParseAddrPort("10.0.0.11:7940")},
		{ID: "id2", Host: "spark2", Addr: netip.MustParseAddrPort("10.0.0.12:7940")},
		{ID: "id3", Host: "spark3", Addr: netip.MustParseAddrPort("[fd00::13]:7940")},
	}
	m := New(Config{
		Self: "id1", Host: "spark1", Version: "1.2.3", Port: 7942, MemoryFloor: 2 << 30, Record: rendezvous.NewRecord(),
		Members: func() []wire.Member { return members }, Present: present, Inventory: inventory, Raft: f, Sampler: f,
		Ranks: f, Proc: files(t, map[string]string{
			"pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n" +
				"full avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
		}),
	})
	t.Cleanup(m.Close)
	return m
}

func count(model, key string, n int64) wire.GatewayCount {
	upTo := make([]int64, len(wire.GatewayTimes))
	upTo[len(upTo)-1] = n
	return wire.GatewayCount{Model: model, Key: key, Requests: n, Errors: 1, UnderWay: 2, Waiting: 1, TokensIn: 10,
		TokensOut: 20, FirstByte: wire.GatewayFirstByte{Count: n, Sum: 90 * time.Second, UpTo: upTo}}
}

func toldOf(backends ...rendezvous.Backend) gateway.Told {
	return gateway.Told{
		View: gateway.View{GatewayMap: rendezvous.GatewayMap{Backends: backends}, Since: time.Now()},
		Counts: func() []wire.GatewayCount {
			return []wire.GatewayCount{count("m", "ada", 4), count("m", "b\"o\\b\n\xff", 6), count("n", "", 1)}
		},
	}
}

// led are jobs in several states.
func led() Cluster {
	now := time.Now()
	service := func(id launcher.JobID, name string, state rendezvous.State, seen launcher.ServiceState) rendezvous.JobStatus {
		j := rendezvous.JobStatus{State: state, Service: &launcher.ServiceSeen{State: seen}}
		j.Spec = launcher.Spec{ID: id, Name: name, Service: &launcher.Service{Model: "m"}}
		j.Plan.Restarts, j.Plan.Generation = 2, 3
		return j
	}
	failed := service("ffff", "", rendezvous.State(rendezvous.Failed), launcher.ServiceReady)
	failed.Outcome = &rendezvous.Outcome{End: rendezvous.Failed, At: now, Started: &now}
	done := rendezvous.JobStatus{State: rendezvous.State(rendezvous.Completed)}
	done.Outcome = &rendezvous.Outcome{End: rendezvous.Completed}
	all := []rendezvous.JobStatus{{State: rendezvous.StateRuns}, {State: rendezvous.StateRuns}, done, failed,
		service("rrrr", "llm", rendezvous.StateRuns, launcher.ServiceReady),
		service("wwww", "", rendezvous.StateRuns, launcher.ServiceWedged),
		service("ssss", "sleepy", rendezvous.StateAsleep, ""),
	}
	return Cluster{
		Jobs: func() []rendezvous.JobStatus { return all },
		Counts: func() lead.Counts {
			return lead.Counts{Ended: map[rendezvous.End]int64{rendezvous.Completed: 7, rendezvous.Failed: 1}, Again: 4}
		},
		Status: func() (wire.Status, <-chan struct{}) {
			return wire.Status{Nodes: []wire.NodeStatus{{Host: "spark1", State: "ready"}, {Host: "spark2", State: "drained"},
				{Host: "spark3", State: "away"}}}, nil
		},
	}
}

func get(m *Metrics, told gateway.Told, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	m.Serve(w, httptest.NewRequest(http.MethodGet, path, nil), told)
	return w
}

// stable leaves out what differs from one run to the next.
func stable(page string) string {
	var out []string
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "process_") && !strings.HasPrefix(line, "sparkrun_build_info{") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// What a member tells, while it leads, in Prometheus' own words: its parser reads the page, and its rules have nothing
// against names, units and types.
func TestPage(t *testing.T) {
	m := node(t)
	defer m.Lead(led())()
	w := get(m, toldOf(), "/metrics")
	if got := w.Header().Get("Content-Type"); got != contentType {
		t.Errorf("Content-Type %q", got)
	}
	problems, err := promlint.New(strings.NewReader(w.Body.String())).Lint()
	if err != nil {
		t.Fatalf("%v\n%s", err, w.Body)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	file := filepath.Join("testdata", "page.txt")
	if *update {
		if err := os.WriteFile(file, []byte(stable(w.Body.String())), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), stable(w.Body.String())); d != "" {
		t.Error(d)
	}
}

// What is not known is absent: a zero would be taken for a fact.
func TestUnknownIsAbsent(t *testing.T) {
	m := node(t)
	m.cfg.Proc, m.cfg.Raft, m.cfg.Sampler, m.cfg.Ranks = files(t, nil), fake{}, fake{}, fake{}
	m.cfg.MemoryFloor, m.cfg.Inventory = 0, &rendezvous.Latest[envgen.Inventory]{}
	told := toldOf()
	told.Counts = func() []wire.GatewayCount { return nil }
	page := get(m, told, "/metrics").Body.String()
	for _, name := range []string{"sparkrun_memory_", "sparkrun_node_", "sparkrun_service", "sparkrun_jobs", "sparkrun_record",
		"sparkrun_rdma", "sparkrun_interface", "sparkrun_gateway_requests", "sparkrun_job_memory", "sparkrun_gpu", "sparkrun_rank"} {
		if strings.Contains(page, name) {
			t.Errorf("%s is told of", name)
		}
	}
	for _, line := range []string{"sparkrun_is_leader 0\n", "sparkrun_has_leader 0\n", "sparkrun_members 3\n"} {
		if !strings.Contains(page, line) {
			t.Errorf("it lacks %q", line)
		}
	}
}

// Who leads no more tells of the cluster no more, and of two that ask at once the second gets what the first has.
func TestPageIsOfThisMoment(t *testing.T) {
	m := node(t)
	end := m.Lead(led())
	first := get(m, toldOf(), "/metrics").Body.String()
	end()
	if again := get(m, toldOf(), "/metrics").Body.String(); again != first {
		t.Error("a second question within a second was a second reading")
	}
	m.at = m.at.Add(-fresh)
	if page := get(m, toldOf(), "/metrics").Body.String(); strings.Contains(page, "sparkrun_node_ready") ||
		!strings.Contains(page, "sparkrun_is_leader 0\n") {
		t.Errorf("it leads no more: %s", page)
	}
}

func backend(job, host, addr string) rendezvous.Backend {
	b := rendezvous.Backend{Job: launcher.JobID(job), Name: job + "-name", Models: []string{"m"}, Host: host,
		State: "ready", Metrics: "/metrics"}
	if addr != "" {
		b.Addr = netip.MustParseAddrPort(addr)
	}
	return b
}

func TestTargets(t *testing.T) {
	m := node(t)
	asleep := backend("ssss", "", "")
	asleep.OnDemand, asleep.State = true, string(rendezvous.StateAsleep)
	none := backend("nnnn", "spark2", "10.0.0.12:8000")
	none.Metrics = ""
	told := toldOf(backend("aaaa", "spark2", "10.0.0.12:8000"), asleep, none)
	for _, tt := range []struct {
		name            string
		admits, secured bool
		want            string
	}{
		{"on loopback alone", false, true, `[{"targets":["127.0.0.1:7942"],"labels":{"__metrics_path__":"/metrics",` +
			`"__scheme__":"http","sparkrun_host":"spark1"}},` +
			`{"targets":["127.0.0.1:7942"],"labels":{"__metrics_path__":"/metrics/services/aaaa","__scheme__":"http",` +
			`"model":"m","sparkrun_host":"spark2","sparkrun_job":"aaaa","sparkrun_name":"aaaa-name"}}]`},
		{"by keys", true, false, `[{"targets":["10.0.0.11:7942"],"labels":{"__metrics_path__":"/metrics",` +
			`"__scheme__":"http","sparkrun_host":"spark1"}},` +
			`{"targets":["10.0.0.12:7942"],"labels":{"__metrics_path__":"/metrics","__scheme__":"http","sparkrun_host":"spark2"}},` +
			`{"targets":["[fd00::13]:7942"],"labels":{"__metrics_path__":"/metrics","__scheme__":"http","sparkrun_host":"spark3"}},` +
			`{"targets":["10.0.0.12:7942"],"labels":{"__metrics_path__":"/metrics/services/aaaa","__scheme__":"http",` +
			`"model":"m","sparkrun_host":"spark2","sparkrun_job":"aaaa","sparkrun_name":"aaaa-name"}}]`},
	} {
		told.Admits, told.Secured = tt.admits, tt.secured
		w := get(m, told, "/metrics/targets")
		if d := cmp.Diff(tt.want, strings.TrimSpace(w.Body.String())); d != "" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %v %s", tt.name, w.Header(), d)
		}
	}
	told.Secured = true
	if w := get(m, told, "/metrics/targets"); strings.Count(w.Body.String(), `"https"`) != 4 {
		t.Errorf("by TLS: %s", w.Body)
	}
}

// What an engine says goes through unchanged; nothing that was meant for the gateway goes to it; and an engine, which
// any user may have written, leads no client elsewhere.
func TestRelay(t *testing.T) {
	m := node(t)
	var seen http.Header
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header
		switch r.URL.String() {
		case "/elsewhere":
			http.Redirect(w, r, "http://10.0.0.1/", http.StatusFound)
		case "/metrics":
			w.Header().Set("Content-Type", "application/openmetrics-text")
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Set-Cookie", "session=engine")
			w.Write([]byte("\x1f\x8b of the engine"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer engine.Close()
	at := engine.Listener.Addr().String()
	leads, local, down := backend("rrrr", "spark2", at), backend("llll", "spark2", at), backend("dddd", "spark2", "")
	leads.Metrics, local.Local, down.State = "/elsewhere", true, "unhealthy"
	none, gone := backend("nnnn", "spark2", at), backend("gggg", "spark2", "127.0.0.1:1")
	none.Metrics = ""
	told := toldOf(backend("aaaa", "spark2", at), leads, local, down, none, gone)
	for _, tt := range []struct {
		path   string
		status int
		want   string
	}{
		{"/metrics/services/aaaa?x=y", 200, "\x1f\x8b of the engine"},
		{"/metrics/services/rrrr", 502, "it answers 302 Found"},
		{"/metrics/services/llll", 503, "listens on loopback: ask spark2"},
		{"/metrics/services/dddd", 503, "it is unhealthy"},
		{"/metrics/services/nnnn", 404, "has no metrics"},
		{"/metrics/services/gggg", 502, "connection refused"},
		{"/metrics/services/aaaa/x", 404, "no service is job"},
		{"/metrics/x", 404, "/metrics/targets"},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, tt.path, strings.NewReader("body"))
		r.Header = http.Header{"Accept-Encoding": {"gzip"}, "Authorization": {"Bearer x"}, "Cookie": {"y"}, "X-Api-Key": {"z"}}
		m.Serve(w, r, told)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) || w.Header().Get("Location") != "" {
			t.Errorf("%s: %d %s", tt.path, w.Code, w.Body)
		}
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics/services/aaaa", nil)
	r.Header = http.Header{"Accept-Encoding": {"gzip"}, "Authorization": {"Bearer x"}, "Cookie": {"y"}, "X-Api-Key": {"z"}}
	m.Serve(w, r, told)
	for name := range seen {
		if !slices.Contains(passedOn, name) {
			t.Errorf("the engine got %s", name)
		}
	}
	if h := w.Header(); h.Get("Content-Encoding") != "gzip" || h.Get("Content-Type") != "application/openmetrics-text" ||
		h.Get("Set-Cookie") != "" || h.Get("Content-Security-Policy") != "sandbox" {
		t.Errorf("its headers became %v", h)
	}
}

// What a question costs with as many counters as there may be, so that nobody has to guess.
func BenchmarkPage(b *testing.B) {
	counts := make([]wire.GatewayCount, 4096)
	for i := range counts {
		counts[i] = count("model", string(rune('a'+i%26))+strings.Repeat("k", i/26%8), 3)
	}
	b.ReportAllocs()
	for b.Loop() {
		p := &page{}
		requests(p, counts)
		b.SetBytes(int64(len(p.bytes())))
	}
}
