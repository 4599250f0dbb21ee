package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// sparkView is the n-th machine: two ports with their twins, each cabled as
// cables say ("0" to "2/1": port 0 to port 1 of machine 2).
func sparkView(t *testing.T, n int, cables map[int]string) envgen.NodeView {
	t.Helper()
	mac := func(n, port, twin int) string { return fmt.Sprintf("4c:bb:47:2e:%02x:%d%d", n, twin, port) }
	name := func(port, twin int) string {
		return fmt.Sprintf("%[2]sf%[1]dnp%[1]d", port, []string{"enp1s0", "enP2p1s0"}[twin])
	}
	inv := envgen.Inventory{Host: fmt.Sprintf("spark%d", n), Cabling: &envgen.Cabling{}}
	inv.NICs = append(inv.NICs, envgen.NIC{Name: "enP7s7", Kind: "device", Physical: true, Up: true, Carrier: new(true),
		MAC: mac(n, 9, 0), Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/24", n))}})
	for port := range 2 {
		peer, live := cables[port]
		state := envgen.StateDown
		if live {
			state = envgen.StateActive
		}
		for twin := range 2 {
			pci, err := envgen.ParsePCIAddress(fmt.Sprintf("000%d:01:00.%d", 2*twin, port))
			if err != nil {
				t.Fatal(err)
			}
			nic := name(port, twin)
			inv.NICs = append(inv.NICs, envgen.NIC{Name: nic, Kind: "device", PCI: &pci, PCIVendor: envgen.VendorMellanox,
				Physical: true, Up: true, Carrier: &live, MAC: mac(n, port, twin)})
			inv.Devices = append(inv.Devices, envgen.HCA{Name: fmt.Sprintf("roce%d%d", twin, port), PCI: &pci, Netdev: nic,
				LinkLayer: envgen.LayerEthernet, State: state})
			inv.Cabling.Probed = append(inv.Cabling.Probed, nic)
			if far, farPort, ok := strings.Cut(peer, "/"); ok {
				p := int(farPort[0] - '0')
				inv.Cabling.Sightings = append(inv.Cabling.Sightings, envgen.Sighting{NIC: nic, Slot: fmt.Sprintf("01:00.%d", port),
					Peer: envgen.Neighbour{Node: "id-" + far, Host: "spark" + far, NIC: name(p, twin),
						Slot: fmt.Sprintf("01:00.%d", p), MAC: mac(int(far[0]-'0'), p, twin)}})
			}
		}
	}
	return envgen.NodeView{ID: fmt.Sprintf("id-%d", n), Host: inv.Host, Mgmt: netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", n)), Inventory: inv}
}

// ringViews are n machines in a ring, port 0 of each to port 1 of the next.
func ringViews(t *testing.T, n int) []envgen.NodeView {
	var views []envgen.NodeView
	for i := range n {
		views = append(views, sparkView(t, i+1, map[int]string{0: fmt.Sprintf("%d/1", (i+1)%n+1), 1: fmt.Sprintf("%d/0", (i+n-1)%n+1)}))
	}
	return views
}

// observed is input of what these machines' probes see.
func observed(views, away []envgen.NodeView) (netplan.Input, envgen.Topology, error) {
	topo, err := topology.Derive(topology.Observed(views))
	if err != nil {
		return netplan.Input{}, topo, err
	}
	in, err := input(topo, views, away)
	return in, topo, err
}

func planOf(t *testing.T, views, away []envgen.NodeView, previous *netplan.Allocation, held map[string][]netplan.Held) netplan.Plan {
	t.Helper()
	in, _, err := observed(views, away)
	if err != nil {
		t.Fatal(err)
	}
	in.Previous = previous
	plan, err := addresses(in, held)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func givenBy(plan netplan.Plan) map[string]string {
	out := map[string]string{}
	for _, f := range plan.Files {
		for _, i := range f.Interfaces {
			out[f.Host+" "+i.NIC] = i.Address.String()
		}
	}
	return out
}

// What the probe sees becomes the plan that owners' guides have for a ring, and
// the record's copy of it moves nobody: not when a machine is off, not when one
// joins at the end of a chain, not when a cable is out.
func TestNetplanFollowsTheCabling(t *testing.T) {
	ring := ringViews(t, 3)
	in, _, err := observed(ring, nil)
	if err != nil || in.Kind != netplan.KindRing {
		t.Fatalf("%s, %v", in.Kind, err)
	}
	first := planOf(t, ring, nil, nil, nil)
	was := givenBy(first)
	guide := map[string]string{
		"spark1 enp1s0f0np0": "192.168.177.11/24", "spark1 enP2p1s0f0np0": "192.168.178.11/24",
		"spark1 enp1s0f1np1": "192.168.187.11/24", "spark1 enP2p1s0f1np1": "192.168.188.11/24",
		"spark2 enp1s0f0np0": "192.168.197.12/24", "spark2 enP2p1s0f0np0": "192.168.198.12/24",
		"spark2 enp1s0f1np1": "192.168.177.12/24", "spark2 enP2p1s0f1np1": "192.168.178.12/24",
		"spark3 enp1s0f0np0": "192.168.187.13/24", "spark3 enP2p1s0f0np0": "192.168.188.13/24",
		"spark3 enp1s0f1np1": "192.168.197.13/24", "spark3 enP2p1s0f1np1": "192.168.198.13/24",
	}
	if diff := cmp.Diff(guide, was); diff != "" {
		t.Error(diff)
	}
	data, err := json.Marshal(first.Allocation)
	if err != nil {
		t.Fatal(err)
	}
	kept := func(members ...string) *netplan.Allocation {
		a, err := remembered(data, members)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	all := []string{"id-1", "id-2", "id-3"}
	same := func(what string, plan netplan.Plan, only string) {
		t.Helper()
		for nic, addr := range givenBy(plan) {
			if was[nic] != "" && was[nic] != addr {
				t.Errorf("%s: %s had %s, gets %s", what, nic, was[nic], addr)
			}
		}
		if givenBy(plan)[only] == "" {
			t.Errorf("%s: %s has no address", what, only)
		}
	}
	off := []envgen.NodeView{sparkView(t, 1, map[int]string{0: "2/1"}), sparkView(t, 2, map[int]string{1: "1/0"})}
	if in, topo, err := observed(append(off, sparkView(t, 4, nil)), nil); err != nil || len(unanswered(topo, in.Links)) != 0 {
		t.Errorf("ports that are all linked or dead: %v, %q", err, unanswered(topo, in.Links))
	}
	alone := sparkView(t, 2, map[int]string{0: "9/0", 1: "1/0"})
	if in, topo, err := observed([]envgen.NodeView{off[0], alone}, nil); err != nil || len(unanswered(topo, in.Links)) != 1 ||
		!strings.HasPrefix(unanswered(topo, in.Links)[0], "spark2 port 0 has a link") {
		t.Errorf("a port that leads to nobody: %v, %q", err, unanswered(topo, in.Links))
	}
	same("spark3 is off", planOf(t, off, ring[2:], kept(all...), nil), "spark1 enp1s0f1np1")
	pulled := slices.Clone(ring)
	pulled[2], pulled[0] = sparkView(t, 3, map[int]string{1: "2/0"}), sparkView(t, 1, map[int]string{0: "2/1"})
	same("a cable is out", planOf(t, pulled, nil, kept(all...), nil), "spark3 enp1s0f0np0")
	same("and back", planOf(t, ring, nil, kept(all...), nil), "spark3 enp1s0f0np0")

	longer := ringViews(t, 4)
	moved := 0
	for nic, addr := range givenBy(planOf(t, longer, nil, kept(all...), nil)) {
		if was[nic] != "" && was[nic] != addr {
			moved++
		}
	}
	if moved != 2 { // the cable from 3 to 1 is cut in two: one end, of two twins
		t.Errorf("a fourth machine in the ring moves %d interfaces", moved)
	}
	// Who has left is forgotten: the newcomer gets its number.
	without := planOf(t, off, nil, kept("id-1", "id-2"), nil)
	if _, there := without.Allocation.Numbers["id-3"]; there {
		t.Error("a machine that left is remembered")
	}
}

func TestNetplanTakesOverWhatWorks(t *testing.T) {
	pair := []envgen.NodeView{sparkView(t, 1, map[int]string{0: "2/0"}), sparkView(t, 2, map[int]string{0: "1/0"})}
	held := map[string][]netplan.Held{}
	for i, v := range pair {
		for twin, nic := range []string{"enp1s0f0np0", "enP2p1s0f0np0"} {
			held[v.ID] = append(held[v.ID], netplan.Held{NIC: nic, Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.10.%d.%d/24", twin+1, 21+i))}})
		}
	}
	want := map[string]string{
		"spark1 enp1s0f0np0": "10.10.1.21/24", "spark1 enP2p1s0f0np0": "10.10.2.21/24",
		"spark2 enp1s0f0np0": "10.10.1.22/24", "spark2 enP2p1s0f0np0": "10.10.2.22/24",
	}
	if diff := cmp.Diff(want, givenBy(planOf(t, pair, nil, nil, held))); diff != "" {
		t.Error(diff)
	}
	// A network of somebody else's keeps out of the plan.
	docker := envgen.NIC{Name: "docker0", Kind: "bridge", Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.177.1/24")}}
	pair[1].Inventory.NICs = append(pair[1].Inventory.NICs, docker)
	if got := givenBy(planOf(t, pair, nil, nil, nil))["spark1 enp1s0f0np0"]; got != "192.168.187.11/24" {
		t.Errorf("beside docker0 spark1 gets %s", got)
	}
}

func TestNetplanKeepsItsHandsOff(t *testing.T) {
	pair := func() []envgen.NodeView {
		return []envgen.NodeView{sparkView(t, 1, map[int]string{0: "2/0", 1: "lan"}), sparkView(t, 2, map[int]string{0: "1/0", 1: "lan"})}
	}
	views := pair()
	for i := range views { // as owners have it: the way out is port 1
		at := slices.IndexFunc(views[i].Inventory.NICs, func(n envgen.NIC) bool { return n.Name == "enp1s0f1np1" })
		views[i].Inventory.NICs[at].DefaultRoute = true
		views[i].Inventory.NICs[at].Addresses = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.168.177.%d/24", 100+i))}
	}
	for _, f := range planOf(t, views, nil, nil, nil).Files {
		if strings.Contains(f.Text, "f1np1") || !strings.Contains(f.Text, "192.168.187.1") {
			t.Errorf("%s, with a LAN on port 1:\n%s", f.Host, f.Text)
		}
	}
	views = pair()
	views[0].Mgmt = netip.MustParseAddr("10.9.0.1")
	views[0].Inventory.NICs[1].Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}
	in, _, err := observed(views, nil)
	if err == nil {
		_, err = addresses(in, nil)
	}
	if !errors.Is(err, netplan.ErrManagement) || !strings.Contains(err.Error(), "--management") {
		t.Errorf("management over the fabric: %v", err)
	}
	if _, _, err := observed([]envgen.NodeView{sparkView(t, 1, nil), sparkView(t, 2, nil)}, nil); !errors.Is(err, ErrNoCabling) {
		t.Errorf("no cables: %v", err)
	}
	// Addresses alone do not show how the cables go.
	views = pair()
	for i := range views {
		views[i].Inventory.Cabling = nil
		views[i].Inventory.NICs[1].Addresses = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.9.0.%d/24", 1+i))}
		views[i].Inventory.Devices[0].GIDs = []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Netdev: "enp1s0f0np0",
			Addr: netip.MustParseAddr(fmt.Sprintf("::ffff:10.9.0.%d", 1+i))}}
	}
	if _, _, err := observed(views, nil); err == nil || !strings.Contains(err.Error(), "spark1 port 0 and spark2 port 0") {
		t.Errorf("without a probe: %v", err)
	}
}

// sparkDisk is what a node's applier works on: files that outlive it, and what is
// in force.
type sparkDisk struct {
	host string
	net  *fakeNet

	mu      sync.Mutex
	files   map[string]string
	inForce string
	dead    bool
	busy    string
	apply   func() error // before it takes force
	node    *Node
}

var errPower = errors.New("the power is off")

func (m *sparkDisk) Read(p string) ([]byte, fs.FileMode, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text, ok := m.files[p]
	switch {
	case m.dead:
		return nil, 0, errPower
	case !ok:
		return nil, 0, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
	}
	return []byte(text), 0o600, nil
}

func (m *sparkDisk) Write(p string, data []byte, _ fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errPower
	}
	m.files[p] = string(data)
	return nil
}

func (m *sparkDisk) Remove(p string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errPower
	}
	delete(m.files, p)
	return nil
}

func (m *sparkDisk) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for p := range m.files {
		if path.Dir(p) == dir {
			names = append(names, path.Base(p))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (m *sparkDisk) takeForce() error {
	if m.apply != nil {
		if err := m.apply(); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errPower
	}
	m.inForce = m.files[netplan.Path]
	return nil
}

// fakeNet is the fabric: who has an address in force answers, but for deaf ones.
type fakeNet struct {
	machines []*sparkDisk
	deaf     map[string]bool // addresses that do not answer
}

func (n *fakeNet) reach(_ context.Context, p netplan.Peer) error {
	for _, m := range n.machines {
		m.mu.Lock()
		there := !m.dead && strings.Contains(m.inForce, p.Addr.String()+"/")
		m.mu.Unlock()
		if there && !n.deaf[p.Addr.String()] {
			return nil
		}
	}
	return errors.New("no echo")
}

// boot makes the node's part anew, as its agent does at its start.
func (m *sparkDisk) boot(t *testing.T, view envgen.NodeView) {
	t.Helper()
	m.mu.Lock()
	m.dead, m.apply = false, nil
	m.mu.Unlock()
	cfg := netplan.Config{
		Files: m, State: "/state", Log: slog.New(slog.DiscardHandler), Reachable: m.net.reach,
		Check: func(context.Context, []netplan.Source) error { return nil },
		Apply: func(context.Context) error { return m.takeForce() },
	}
	if err := Recover(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	var err error
	m.node, err = Open(Config{
		Self: launcher.NodeID(view.ID), Host: m.host, Netplan: cfg, Lock: &Lock{}, Ledger: m, Record: rendezvous.NewRecord(), Management: "enP7s7",
		Inventory: func() envgen.Inventory { return view.Inventory },
		Leader:    func() launcher.NodeID { return "id-1" },
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Ledger has a job of which no plan is known.
func (m *sparkDisk) Ledger() []launcher.LedgerEntry {
	if m.busy == "" {
		return nil
	}
	return []launcher.LedgerEntry{{Key: launcher.Key{Job: launcher.JobID(m.busy)}, Phase: launcher.PhaseStarted}}
}

// mortal is the way to a node that may go silent.
func mortal(side *Node, die <-chan struct{}) *wire.Client {
	try := func(ctx context.Context, c wire.Caller, r wire.NetplanOrder, send func(wire.NetplanStep) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			ended <- side.Try(ctx, c, r, func(s wire.NetplanStep) error {
				select {
				case <-die:
					return wire.ErrUnreachable
				default:
					return send(s)
				}
			})
		}()
		select {
		case err := <-ended:
			return err
		case <-die:
			cancel()
			<-ended
			return fmt.Errorf("the connection was cut: %w", wire.ErrUnreachable)
		}
	}
	return wire.NewServer(wire.ServerConfig{}, wire.NetplanRead.Serve(side.Read), wire.NetplanCheck.Serve(side.Check),
		wire.NetplanTry.Serve(try), wire.NetplanDecide.Serve(side.Decide)).As(wire.Caller{Node: "id-1", Host: "spark1"})
}

// threeSparks are a ring of three, and the members of a change of them.
type threeSparks struct {
	*fakeNet
	views   []envgen.NodeView
	members []member
	lines   []string
	die     []chan struct{}
}

const oldFile = "network: {version: 2}\n"

func newThreeSparks(t *testing.T) *threeSparks {
	t.Helper()
	s := &threeSparks{fakeNet: &fakeNet{deaf: map[string]bool{}}, views: ringViews(t, 3)}
	plan := planOf(t, s.views, nil, nil, nil)
	for i, f := range plan.Files {
		m := &sparkDisk{host: f.Host, net: s.fakeNet, files: map[string]string{}}
		if i != 1 { // spark2 has had none
			m.files[netplan.Path], m.inForce = oldFile, oldFile
		}
		m.boot(t, s.views[i])
		s.machines = append(s.machines, m)
		s.die = append(s.die, make(chan struct{}))
		o := orderOf(f)
		o.Change = "c1"
		s.members = append(s.members, member{host: f.Host, order: o,
			calls: mortal(m.node, s.die[i])})
	}
	return s
}

func (s *threeSparks) run(ctx context.Context) error {
	r := change{members: s.members, tell: func(p wire.NetplanProgress) {
		s.lines = append(s.lines, strings.TrimSpace(p.Host+" "+p.State+" "+p.Error))
	}}
	return r.run(ctx)
}

func (s *threeSparks) assertBefore(t *testing.T) {
	t.Helper()
	for i, m := range s.machines {
		want := oldFile
		if i == 1 {
			want = ""
		}
		if m.files[netplan.Path] != want || m.inForce != want {
			t.Errorf("%s is left with\n%s\nin force\n%s\nwant %q", m.host, m.files[netplan.Path], m.inForce, want)
		}
		if _, left := m.files["/state/pending.json"]; left {
			t.Errorf("%s keeps a marker", m.host)
		}
	}
}

func TestNetplanStaysOnAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newThreeSparks(t)
		if err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, m := range s.machines {
			if m.inForce != *s.members[i].order.Text {
				t.Errorf("%s has in force\n%s", m.host, m.inForce)
			}
			if !slices.Contains(s.lines, m.host+" committed") || !slices.Contains(s.lines, m.host+" reached") {
				t.Errorf("nothing was told of %s: %q", m.host, s.lines)
			}
		}
		// Again: nobody has anything to do. Then back, on all.
		if err := s.run(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		facts := map[string]wire.NetplanFacts{}
		for i, v := range s.views {
			f, err := wire.NetplanRead.Call(t.Context(), s.members[i].calls, wire.Empty{})
			if err != nil {
				t.Fatal(err)
			}
			facts[v.ID] = f
			s.members[i].order = wire.NetplanOrder{Change: "c2", Undo: true}
		}
		if change, ids := lastChange(facts); change != "c1" || !slices.Equal(ids, []string{"id-1", "id-2", "id-3"}) {
			t.Errorf("the last change is %s on %v", change, ids)
		}
		if err := s.run(t.Context()); err != nil {
			t.Errorf("back: %v", err)
		}
		s.assertBefore(t)
	})
}

// Whatever goes wrong on one node, all have what they had, and the error names
// who could not reach whom over what.
func TestNetplanGoesBackOnAllNodes(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*testing.T, *threeSparks, context.CancelFunc)
		want  []string
		not   string
		after time.Duration
	}{
		"a peer does not answer": {
			spoil: func(_ *testing.T, s *threeSparks, _ context.CancelFunc) { s.deaf["192.168.198.13"] = true },
			want:  []string{"spark2: spark3 (192.168.198.13 over enP2p1s0f0np0) did not answer within 30s", "as it was, on all nodes"},
			not:   "spark1:", after: 30 * time.Second,
		},
		"a node that applies late is waited for": {
			spoil: func(_ *testing.T, s *threeSparks, _ context.CancelFunc) {
				s.machines[2].apply = func() error { time.Sleep(50 * time.Second); return nil }
				s.deaf["192.168.177.12"] = true
			},
			want: []string{"spark1: spark2 (192.168.177.12 over enp1s0f0np0) did not answer within 30s"},
			not:  "spark3", after: 130 * time.Second, // back over the slow one, too
		},
		"netplan apply fails on one": {
			spoil: func(_ *testing.T, s *threeSparks, _ context.CancelFunc) {
				s.machines[0].apply = func() error { s.machines[0].apply = nil; return errors.New("networkd is not running") }
			},
			want: []string{"spark1: netplan apply: networkd is not running"},
		},
		"a job has begun on one": {
			spoil: func(_ *testing.T, s *threeSparks, _ context.CancelFunc) { s.machines[1].busy = "train7" },
			want:  []string{"spark2: job train7 uses ", "sparkrun stop train7"},
		},
		"another change is under way on one": {
			spoil: func(_ *testing.T, s *threeSparks, _ context.CancelFunc) {
				s.machines[2].node.cfg.Lock.take(&trial{change: "other"})
			},
			want: []string{"spark3: another change is under way here"},
		},
		"a node dies while it asks its peers": {
			spoil: func(_ *testing.T, s *threeSparks, _ context.CancelFunc) {
				s.deaf["192.168.177.12"] = true
				time.AfterFunc(5*time.Second, func() {
					s.machines[2].mu.Lock()
					s.machines[2].dead = true
					s.machines[2].mu.Unlock()
					close(s.die[2])
				})
			},
			want: []string{"spark3: the connection was cut", "spark3 went silent and goes back by itself"}, after: 5 * time.Second,
		},
		"who asked gives up": {
			spoil: func(_ *testing.T, s *threeSparks, cancel context.CancelFunc) {
				s.deaf["192.168.177.12"] = true
				time.AfterFunc(5*time.Second, cancel)
			},
			want: []string{"it was called off", "as it was, on all nodes"}, after: 5 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newThreeSparks(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				tc.spoil(t, s, cancel)
				began := time.Now()
				err := s.run(ctx)
				took := time.Since(began)
				if err == nil {
					t.Fatal("it stays")
				}
				for _, want := range tc.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q lacks %q", err, want)
					}
				}
				if tc.not != "" && strings.Contains(err.Error(), tc.not) {
					t.Errorf("%q has %q", err, tc.not)
				}
				if took.Round(time.Second) != tc.after {
					t.Errorf("took %s, want %s", took, tc.after)
				}
				for i, m := range s.machines {
					if m.dead { // and comes back
						m.boot(t, s.views[i])
					}
				}
				s.assertBefore(t)
			})
		})
	}
}

// Orders come from the leader alone, and a decision concerns one change.
func TestNetplanObeysTheLeader(t *testing.T) {
	s := newThreeSparks(t)
	node, ctx := s.machines[1].node, t.Context()
	stranger := wire.Caller{Node: "id-3", Host: "spark3"}
	_, errCheck := node.Check(ctx, stranger, wire.NetplanOrder{})
	errTry := node.Try(ctx, stranger, wire.NetplanOrder{}, func(wire.NetplanStep) error { return nil })
	_, errDecide := node.Decide(ctx, stranger, wire.NetplanDecision{})
	for _, err := range []error{errCheck, errTry, errDecide} {
		if !errors.Is(err, wire.ErrDenied) {
			t.Errorf("from who does not lead: %v", err)
		}
	}
	if _, err := node.Decide(ctx, wire.Caller{Node: "id-1"}, wire.NetplanDecision{Change: "c9", All: "reached"}); err == nil {
		t.Error("a decision on a change nobody tries was taken")
	}
	meeting, err := json.Marshal(envgen.Entry{NIC: "enp1s0f0np0"})
	if err != nil {
		t.Fatal(err)
	}
	lock, inv := node.cfg.Lock, s.views[1].Inventory
	job := launcher.Assignment{Meeting: meeting}
	if err := lock.Refuse(job, inv); err != nil {
		t.Errorf("while nothing is tried: %v", err)
	}
	lock.take(&trial{change: "c1"})
	if err := lock.Refuse(job, inv); err == nil {
		t.Error("a job may begin on NICs that are being changed")
	}
	if err := lock.Refuse(launcher.Assignment{Meeting: []byte(`{"nic":"enP7s7"}`)}, inv); err != nil {
		t.Errorf("a job on the management network: %v", err)
	}
}

func TestNetplanReadsWhatIsHeld(t *testing.T) {
	s := newThreeSparks(t)
	m := s.machines[0]
	m.files["/etc/netplan/99-mine.yaml"] = "network: {ethernets: {enp1s0f0np0: {addresses: [10.1.0.1/24]}, enp1s0f1np1: {dhcp4: true}}}\n"
	for i, nic := range s.views[0].Inventory.NICs { // as the kernel has it
		s.views[0].Inventory.NICs[i].Addresses = append(nic.Addresses, netip.MustParsePrefix(fmt.Sprintf("10.2.%d.1/24", i)))
	}
	m.boot(t, s.views[0])
	facts, err := m.node.Read(t.Context(), wire.Caller{}, wire.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, h := range facts.Held {
		got[h.NIC] = fmt.Sprint(h.Addresses)
	}
	want := map[string]string{"enp1s0f0np0": "[10.1.0.1/24]", "enP2p1s0f0np0": "[10.2.2.1/24]", "enp1s0f1np1": "[]", "enP2p1s0f1np1": "[10.2.4.1/24]"}
	if diff := cmp.Diff(want, got); diff != "" || facts.Change != "" {
		t.Errorf("%s%s", diff, facts.Change)
	}
}

func TestNetplanDigestIsOfWhatIsShown(t *testing.T) {
	text := "a"
	nodes := []wire.NetplanNode{{Node: "id-1", Text: &text, Verdict: &wire.NetplanVerdict{Diff: "d"}}}
	seen := map[string]bool{digestOf(nodes): true}
	for _, change := range []func(){
		func() { nodes[0].Verdict = &wire.NetplanVerdict{Diff: "e"} }, func() { text = "b" },
		func() { nodes[0].Text = nil }, func() { nodes = append(nodes, wire.NetplanNode{Node: "id-2"}) },
	} {
		change()
		if d := digestOf(nodes); seen[d] {
			t.Errorf("the same digest after a change, of %v", slices.Collect(maps.Keys(seen)))
		} else {
			seen[d] = true
		}
	}
}
