package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/launcher/policy"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// gateAge is how long a test of the links stands for them. Cables are moved, and cards
// degrade, without anybody saying so.
const gateAge = 24 * time.Hour

// gateAhead is how far ahead of this node's clock a test may be: of one that was kept before the clock was
// set right nobody knows the age, and it would stand until that time has come.
const gateAhead = time.Hour

// gatesKept bounds the file: a node is in so many sets of nodes at most, of which only the latest
// test counts.
const gatesKept = 64

// gate is what a test of the links between some nodes has reached.
type gate struct {
	At    time.Time         `json:"at"`    // by this node's clock
	Nodes []launcher.NodeID `json:"nodes"` // sorted
	Part  float64           `json:"part"`
}

// gates are the tests that this node took part in, the latest last. Each node of a test
// keeps its own copy, so that each can judge a job without asking.
type gates struct {
	path string
	now  func() time.Time
	mu   sync.Mutex
}

func (g *gates) read() ([]gate, error) {
	b, err := os.ReadFile(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []gate
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the tests of the links: %w: remove %s, and test again", err, g.path)
	}
	return all, nil
}

// add keeps a test, in the place of the last one of the same nodes.
func (g *gates) add(nodes []launcher.NodeID, part float64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	all, err := g.read()
	if err != nil {
		all = nil // the new one is what counts
	}
	nodes = slices.Sorted(slices.Values(nodes))
	all = slices.DeleteFunc(all, func(o gate) bool {
		return slices.Equal(o.Nodes, nodes) || g.now().Sub(o.At) > gateAge || g.now().Sub(o.At) < -gateAhead
	})
	all = append(all, gate{At: g.now().UTC(), Nodes: nodes, Part: part})
	b, err := json.Marshal(all[max(0, len(all)-gatesKept):])
	if err == nil {
		err = durable.Swap(g.path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the test of the links: %w", err)
	}
	return nil
}

// open judges by the latest test that all of these nodes took part in, and by what later ones of some of
// them have found; the error says why it is not enough.
func (g *gates) open(nodes []launcher.NodeID, least float64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	all, err := g.read()
	if err != nil {
		return err
	}
	within := func(some, of []launcher.NodeID) bool {
		return !slices.ContainsFunc(some, func(id launcher.NodeID) bool { return !slices.Contains(of, id) })
	}
	var passed []gate // later ones
	for _, o := range slices.Backward(all) {
		every := within(nodes, o.Nodes)
		err := g.judge(o, least)
		switch {
		case every:
			return err
		case err == nil:
			passed = append(passed, o)
		case o.Part < least && within(o.Nodes, nodes) && !slices.ContainsFunc(passed, func(p gate) bool { return within(o.Nodes, p.Nodes) }):
			return fmt.Errorf("of %d of these machines: %w", len(o.Nodes), err)
		}
	}
	return errors.New("no nccl-test of these machines has been judged within a day")
}

// judge says why a test is not enough.
func (g *gates) judge(o gate, least float64) error {
	age := g.now().Sub(o.At)
	ago := max(0, age).Round(time.Second)
	switch {
	case age < -gateAhead:
		return fmt.Errorf("the last nccl-test of these machines is of %s, by this machine's clock still to come", o.At.Format(time.RFC3339))
	case age > gateAge:
		return fmt.Errorf("the last nccl-test of these machines is older than a day")
	case o.Part == 0:
		return fmt.Errorf("the last nccl-test of these machines, %s ago, failed", ago)
	case o.Part < least:
		return fmt.Errorf("the last nccl-test of these machines, %s ago, reached %.2f of what is expected", ago, math.Floor(o.Part*100)/100)
	}
	return nil
}

// gated refuses a job that requires a test of its links, or of whose kind this node's
// policy does. Later tries are not asked: a day may have passed.
func (n *node) gated(as launcher.Assignment) error {
	p, err := policy.Read(n.cfg.Paths.Policy)
	if err != nil {
		return err
	}
	least, by := as.Spec.RequireGate, fmt.Sprintf("--require-gate %g", as.Spec.RequireGate)
	if part, rule := p.Gate(as.Spec); part > least {
		least, by = part, rule
	}
	later := as.Restarts > 0 || as.Spec.Service != nil && as.Generation > 1 // a stage before is a generation, too
	if least == 0 || as.NodeCount < 2 || later {
		return nil
	}
	if len(as.Nodes) != as.NodeCount {
		return fmt.Errorf("%s: the leader does not say which machines the job has: upgrade it", by)
	}
	if err := n.gates.open(as.Nodes, least); err != nil {
		return fmt.Errorf("%s: %w: sparkrun launch nccl-test --on %s", by, err, n.hostsOf(as.Nodes))
	}
	return nil
}

// hostsOf are nodes' hosts, as --on takes them.
func (n *node) hostsOf(ids []launcher.NodeID) string {
	var hosts []string
	for _, id := range ids {
		hosts = append(hosts, n.hostOf(id))
	}
	return strings.Join(hosts, ",")
}

// keepTest brings a test's result to each of its nodes.
func (n *node) keepTest(ctx context.Context, _ wire.Caller, r wire.GateRequest) (wire.GateResponse, error) {
	if err := n.validGate(r); err != nil {
		return wire.GateResponse{}, err
	}
	failed := make([]error, len(r.Nodes))
	each(len(r.Nodes), func(i int) {
		if r.Nodes[i] == n.m.Node {
			failed[i] = n.gates.add(r.Nodes, r.Part)
			return
		}
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		failed[i] = n.peers.client(r.Nodes[i]).NodeGate(ctx, r)
	})
	var res wire.GateResponse
	for i, err := range failed {
		if err != nil {
			res.Missed = append(res.Missed, n.hostOf(r.Nodes[i]))
		}
	}
	return res, nil
}

func (n *node) nodeKeepTest(_ context.Context, _ wire.Caller, r wire.GateRequest) (wire.Empty, error) {
	if err := n.validGate(r); err != nil {
		return wire.Empty{}, err
	}
	return wire.Empty{}, n.gates.add(r.Nodes, r.Part)
}

func (n *node) validGate(r wire.GateRequest) error {
	seen := map[launcher.NodeID]bool{}
	for _, id := range r.Nodes {
		if _, known := n.record.Node(id); !known || seen[id] {
			return fmt.Errorf("keep the test of the links: %w: %.64q is no machine of this cluster, or there twice", launcher.ErrInvalid, string(id))
		}
		seen[id] = true
	}
	if len(r.Nodes) < 2 || len(r.Nodes) > 1024 || !(r.Part >= 0 && r.Part < 1000) {
		return fmt.Errorf("keep the test of the links: %w: of %d nodes, %g of what is expected", launcher.ErrInvalid, len(r.Nodes), r.Part)
	}
	return nil
}
