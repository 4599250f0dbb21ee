// Package ibtest decides which links perftest measures and when, what its output means, and
// whether the links give what they should. All but node.go is pure: that is the program of
// the ranks, which carry out a Plan on the nodes; a command evaluates what they print.
//
// The ranks are PMI clients of their shims. A step: the server's rank starts perftest, waits in /proc/net/tcp until it
// listens (to connect would be to be its client), puts its port, and enters the barrier; the client's rank gets the
// port behind it, runs, and writes a Line; at the second barrier the server is ended. GID indices move, so each is
// looked up just before its start, and figures by another GID are a failure. A bandwidth of 0 with exit code 0 is
// perftest's word for nothing that gets through.
//
// It must not launch a test.
package ibtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

// NodeCommand is the command of sparkrun that a rank of the test is. It is not for people.
const NodeCommand = "ib-test-node"

// planVersion is of a Plan's meaning: a node that runs another sparkrun refuses.
const planVersion = 1

// Options are how links are measured. The zero value means the defaults.
type Options struct {
	// Kinds are Bandwidth and Latency, in the order in which they are measured; none
	// means both.
	Kinds []string
	// Verb is one of Verbs; empty means the first.
	Verb string
	// Seconds is how long bandwidth is measured, a direction; 0 means 3. At most 60.
	Seconds int
	// Bytes is the message size of bandwidth; 0 means 64 KiB, perftest's own. 1 B to 1 GiB.
	Bytes int64
	// Iters are the exchanges that latency is measured by; 0 means 1000. 100 to 1,000,000.
	Iters int
	// QPs are the queue pairs that bandwidth is shared by; 0 means 1. At most 64.
	QPs int
}

// What is measured.
const (
	Bandwidth = "bw"
	Latency   = "lat"
)

// Verbs are the RDMA operations that perftest knows a test of each kind for. Figures of a
// Spark are known for the first alone.
func Verbs() []string { return []string{"write", "send", "read"} }

const (
	defaultSeconds = 3
	defaultBytes   = 64 << 10
	defaultIters   = 1000
	latencyBytes   = 2 // perftest's own
	maxSeconds     = 60
	maxBytes       = 1 << 30
	minIters       = 100
	maxIters       = 1_000_000
	maxQPs         = 64
)

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	if len(o.Kinds) == 0 {
		o.Kinds = []string{Bandwidth, Latency}
	}
	if o.Verb == "" {
		o.Verb = Verbs()[0]
	}
	if o.Seconds == 0 {
		o.Seconds = defaultSeconds
	}
	if o.Bytes == 0 {
		o.Bytes = defaultBytes
	}
	if o.Iters == 0 {
		o.Iters = defaultIters
	}
	if o.QPs == 0 {
		o.QPs = 1
	}
	return o
}

// Validate says by the names of flags what is out of range.
func (o Options) Validate() error {
	for _, k := range o.Kinds {
		if k != Bandwidth && k != Latency {
			return fmt.Errorf("no test %q: want %s or %s, or none for both", k, Bandwidth, Latency)
		}
	}
	switch {
	case !slices.Contains(Verbs(), o.Verb):
		return fmt.Errorf("--verb %s: want %s", o.Verb, strings.Join(Verbs(), " or "))
	case o.Seconds < 1 || o.Seconds > maxSeconds:
		return fmt.Errorf("--seconds %d: want 1 to %d", o.Seconds, maxSeconds)
	case o.Bytes < 1 || o.Bytes > maxBytes:
		return fmt.Errorf("--size %d: want 1 byte to 1 GiB", o.Bytes)
	case o.Iters < minIters || o.Iters > maxIters:
		return fmt.Errorf("--iters %d: want %d to %d", o.Iters, minIters, maxIters)
	case o.QPs < 1 || o.QPs > maxQPs:
		return fmt.Errorf("--qps %d: want 1 to %d", o.QPs, maxQPs)
	}
	return nil
}

// Plan is a whole test, the same for every rank of it.
type Plan struct {
	Version int `json:"version"`
	// Nodes are in the order of ranks.
	Nodes  []Node  `json:"nodes"`
	Cables []Cable `json:"cables"`
	Steps  []Step  `json:"steps"`
	// Seconds, Bytes, Iters and QPs are those of Options.
	Seconds int   `json:"seconds"`
	Bytes   int64 `json:"bytes"`
	Iters   int   `json:"iters"`
	QPs     int   `json:"qps"`
}

// Node is one of the machines.
type Node struct {
	Host string `json:"host"`
	Ways []Way  `json:"ways"`
}

// Way is an RDMA device by which a node is reached. Of its GID table the node itself
// looks for Addr when its turn comes: indices move.
type Way struct {
	Device string     `json:"dev"`
	Addr   netip.Addr `json:"addr"`
}

// Cable joins a port of node A to one of node B: a cable, or a way through a switch.
type Cable struct {
	A     int    `json:"a"`
	B     int    `json:"b"`
	Link  int    `json:"link"` // of the topology
	SlotA string `json:"slot_a"`
	SlotB string `json:"slot_b"`
	// Lanes are the pairs of devices that reach each other over it, each a Way of A and
	// one of B: both twins, where all is well.
	Lanes [][2]int `json:"lanes"`
}

// Step is what goes on at one time. No node has a part in two cables of a step: both
// ports of a Spark share the PCIe links of one ConnectX.
type Step struct {
	Test string `json:"test"` // perftest's: write_bw
	Runs []Run  `json:"runs"`
}

// Run is one perftest over one lane, from A to B or back.
type Run struct {
	Cable int  `json:"c"`
	Lane  int  `json:"l"`
	Back  bool `json:"b,omitempty"`
}

// End is one side of a Run.
type End struct {
	Node int
	Way  Way
}

// ErrNoLink: no two of the machines have RDMA devices that reach each other.
var ErrNoLink = errors.New("no RDMA link joins any two of these machines")

// NewPlan works out what to measure between nodes, given by id in the order of ranks.
func NewPlan(t envgen.Topology, nodes []string, o Options) (Plan, error) {
	o = o.WithDefaults()
	if err := o.Validate(); err != nil {
		return Plan{}, err
	}
	p := Plan{Version: planVersion, Seconds: o.Seconds, Bytes: o.Bytes, Iters: o.Iters, QPs: o.QPs}
	for _, id := range nodes {
		n, ok := t.Node(id)
		if !ok {
			return Plan{}, fmt.Errorf("plan node %s: nothing is known of its fabric", id)
		}
		p.Nodes = append(p.Nodes, Node{Host: n.Host})
	}
	p.cables(t, nodes)
	if len(p.Cables) == 0 {
		return Plan{}, ErrNoLink
	}
	for _, kind := range o.Kinds {
		p.steps(o.Verb+"_"+kind, kind == Bandwidth)
	}
	return p, nil
}

// steps adds those of one test. Bandwidth goes each way in turn, with all lanes of a cable at
// once, for each twin is half of it; latency goes there and back anyhow, a lane at a time.
func (p *Plan) steps(test string, bandwidth bool) {
	for _, round := range rounds(len(p.Nodes), p.Cables) {
		lanes := 0
		for _, c := range round {
			lanes = max(lanes, len(p.Cables[c].Lanes))
		}
		var steps [][]Run
		for _, c := range round {
			for l := range p.Cables[c].Lanes {
				ways := []Run{{Cable: c, Lane: l}, {Cable: c, Lane: l, Back: true}}
				if steps == nil {
					steps = make([][]Run, max(2, lanes))
				}
				if bandwidth {
					steps[0], steps[1] = append(steps[0], ways[0]), append(steps[1], ways[1])
				} else {
					steps[l] = append(steps[l], ways[0])
				}
			}
		}
		for _, runs := range steps {
			if len(runs) > 0 {
				p.Steps = append(p.Steps, Step{Test: test, Runs: runs})
			}
		}
	}
}

// rounds shares cables out so that a node has one in each. In the order of a round-robin
// tournament, where pairs with an equal key meet no node twice, the first round that is free
// makes as few as there can be for all pairs of n nodes: n-1, or n for an odd n.
func rounds(n int, cables []Cable) [][]int {
	if n%2 == 1 {
		n++
	}
	key := func(c Cable) int {
		a, b := min(c.A, c.B), max(c.A, c.B)
		if b == n-1 {
			return 2 * a % max(1, n-1)
		}
		return (a + b) % max(1, n-1)
	}
	order := make([]int, len(cables))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return key(cables[i]) - key(cables[j]) })
	var all [][]int
	var busy []map[int]bool
	for _, i := range order {
		c := cables[i]
		r := slices.IndexFunc(busy, func(b map[int]bool) bool { return !b[c.A] && !b[c.B] })
		if r < 0 {
			r = len(all)
			all, busy = append(all, nil), append(busy, map[int]bool{})
		}
		all[r], busy[r][c.A], busy[r][c.B] = append(all[r], i), true, true
	}
	return all
}

// Ends are both sides of a run: the bytes of a bandwidth test go from the first, its
// client, to the second, its server. Of a read they come.
func (p Plan) Ends(r Run) (from, to End) {
	c := p.Cables[r.Cable]
	a := End{c.A, p.Nodes[c.A].Ways[c.Lanes[r.Lane][0]]}
	b := End{c.B, p.Nodes[c.B].Ways[c.Lanes[r.Lane][1]]}
	if r.Back {
		return b, a
	}
	return a, b
}

// MostServers is how many runs a node is the server of at one time.
func (p Plan) MostServers() int {
	most := 0
	for _, s := range p.Steps {
		count := map[int]int{}
		for _, r := range s.Runs {
			_, to := p.Ends(r)
			count[to.Node]++
			most = max(most, count[to.Node])
		}
	}
	return most
}

// Times that a test takes beside measuring, as seen with perftest 4.5: start, exchange of
// addresses, end.
const (
	aroundStep = 1500 * time.Millisecond
	aroundTest = 3 * time.Second
)

// Estimate is about how long the test takes.
func (p Plan) Estimate() time.Duration {
	sum := aroundTest
	for _, s := range p.Steps {
		sum += aroundStep
		if IsBandwidth(s.Test) {
			sum += time.Duration(p.Seconds) * time.Second
		}
	}
	return sum
}

// Patience is how long one run may take before it is ended.
func (p Plan) Patience() time.Duration { return time.Duration(p.Seconds)*time.Second + 30*time.Second }

// IsBandwidth tells a test of bandwidth from one of latency.
func IsBandwidth(test string) bool { return strings.HasSuffix(test, "_"+Bandwidth) }

// Program is perftest's for a test: ib_write_bw.
func Program(test string) string { return "ib_" + test }

// Package is Debian's and Ubuntu's that has the programs.
const Package = "perftest"

// Command is a run's command line on one side. An invalid server makes it the server, which
// waits for one client; file is where JSON goes, empty for none.
func (p Plan) Command(test string, way Way, gid, port int, server netip.Addr, file string) []string {
	argv := []string{Program(test), "-d", way.Device, "-i", "1", "-x", strconv.Itoa(gid), "-p", strconv.Itoa(port), "-F"}
	if IsBandwidth(test) {
		argv = append(argv, "--report_gbits", "-s", strconv.FormatInt(p.Bytes, 10), "-q", strconv.Itoa(p.QPs), "-D",
			strconv.Itoa(p.Seconds))
	} else {
		argv = append(argv, "-s", strconv.Itoa(latencyBytes), "-n", strconv.Itoa(p.Iters))
	}
	if file != "" {
		argv = append(argv, "--out_json", "--out_json_file="+file)
	}
	if server.IsValid() {
		argv = append(argv, server.String())
	}
	return argv
}

// Text is the plan as a rank gets it.
func (p Plan) Text() (string, error) {
	text, err := json.Marshal(p)
	return string(text), err
}

// ParsePlan reads that, and refuses what no NewPlan makes.
func ParsePlan(text string) (Plan, error) {
	var p Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return Plan{}, fmt.Errorf("read plan: %w", err)
	}
	if p.Version != planVersion {
		return Plan{}, fmt.Errorf("read plan: version %d, want %d: run the same sparkrun on all machines", p.Version,
			planVersion)
	}
	o := Options{Verb: Verbs()[0], Seconds: p.Seconds, Bytes: p.Bytes, Iters: p.Iters, QPs: p.QPs}
	if err := o.Validate(); err != nil {
		return Plan{}, fmt.Errorf("read plan: %w", err)
	}
	if err := p.validate(); err != nil {
		return Plan{}, fmt.Errorf("read plan: %w", err)
	}
	return p, nil
}

func (p Plan) validate() error {
	for _, n := range p.Nodes {
		for _, w := range n.Ways {
			if !w.Addr.Is4() || w.Device == "" || strings.HasPrefix(w.Device, "-") {
				return fmt.Errorf("%s: device %q with address %s", n.Host, w.Device, w.Addr)
			}
		}
	}
	in := func(i int, n int) bool { return i >= 0 && i < n }
	for i, c := range p.Cables {
		if !in(c.A, len(p.Nodes)) || !in(c.B, len(p.Nodes)) || c.A == c.B {
			return fmt.Errorf("cable %d: nodes %d and %d", i, c.A, c.B)
		}
		for _, l := range c.Lanes {
			if !in(l[0], len(p.Nodes[c.A].Ways)) || !in(l[1], len(p.Nodes[c.B].Ways)) {
				return fmt.Errorf("cable %d: lane %v", i, l)
			}
		}
	}
	for i, s := range p.Steps {
		verb, kind, _ := strings.Cut(s.Test, "_")
		if !slices.Contains(Verbs(), verb) || kind != Bandwidth && kind != Latency {
			return fmt.Errorf("step %d: test %q", i, s.Test)
		}
		for _, r := range s.Runs {
			if !in(r.Cable, len(p.Cables)) || !in(r.Lane, len(p.Cables[r.Cable].Lanes)) {
				return fmt.Errorf("step %d: lane %d of cable %d", i, r.Lane, r.Cable)
			}
		}
	}
	return nil
}
