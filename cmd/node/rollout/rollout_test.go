package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

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
	inventory := &rendezvous.Latest[envgen.Inventory]{}
	inventory.Store(view.Inventory)
	var err error
	m.node, err = Open(Config{
		Self: launcher.NodeID(view.ID), Host: m.host, Netplan: cfg, Lock: &Lock{}, Ledger: m, Record: rendezvous.NewRecord(), Management: "enP7s7",
		Inventory: inventory,
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
	notLeader := wire.Caller{Node: "id-3", Host: "spark3"}
	_, errCheck := node.Check(ctx, notLeader, wire.NetplanOrder{})
	errTry := node.Try(ctx, notLeader, wire.NetplanOrder{}, func(wire.NetplanStep) error { return nil })
	_, errDecide := node.Decide(ctx, notLeader, wire.NetplanDecision{})
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
