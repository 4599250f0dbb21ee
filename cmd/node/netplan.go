package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// netplanSide is a node's part in changes of the fabric's addresses: it tells
// what its files say, and tries what a leader orders.
type netplanSide struct {
	host    string
	applier *netplan.Applier
	// view gives the hardware as it is now, management the interface the
	// cluster talks over.
	view       func() envgen.Inventory
	management func(envgen.Inventory) netplan.Twin
	leader     func() launcher.NodeID

	mu      sync.Mutex
	current *netplanTrial // nil while nothing is tried
}

// netplanTrial is one change on its way.
type netplanTrial struct {
	change string
	// applied and reached are closed when all nodes have got there.
	applied, reached chan struct{}
	once             [2]sync.Once
	cancel           context.CancelCauseFunc
}

// agree is for the applier.
func (t *netplanTrial) agree(ctx context.Context, got netplan.State) error {
	all := t.applied
	if got == netplan.StateReached {
		all = t.reached
	}
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// newNetplanSide makes the node's part, of the machine's own netplan.
func (n *node) newNetplanSide() (*netplanSide, error) {
	disk := netplan.Disk{Root: "/"}
	program := netplan.Command{}
	cfg := netplan.Config{
		Files: disk, State: filepath.Join(n.cfg.Paths.State, "netplan"),
		Check: program.Check, Apply: program.Apply, Reachable: netplan.Echo, Busy: n.netplanBusy,
		Log: n.log,
	}
	if stand := n.cfg.NetplanApply; stand != "" {
		n.log.Warn("netplan apply is replaced, as for tests", "by", stand)
		cfg.Apply = func(ctx context.Context) error {
			if out, err := exec.CommandContext(ctx, stand).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", stand, err, strings.TrimSpace(string(out)))
			}
			return nil
		}
	}
	applier, err := netplan.New(cfg)
	if err != nil {
		return nil, err
	}
	return &netplanSide{
		host: n.m.Host, applier: applier, leader: n.leaderID,
		view: func() envgen.Inventory { inv, _ := n.view(); return inv },
		management: func(inv envgen.Inventory) netplan.Twin {
			mgmt, err := envgen.Management(inv, n.cfg.Management)
			if err != nil {
				return netplan.Twin{} // which the applier refuses
			}
			nic, _ := inv.NIC(mgmt.NIC)
			return netplan.Twin{NIC: mgmt.NIC, MAC: nic.MAC}
		},
	}, nil
}

// recover undoes what a crash cut short. A node whose files cannot be put right
// is better in its cluster than out of it: the applier goes on refusing.
func (s *netplanSide) recover(ctx context.Context, log *slog.Logger) {
	if _, err := s.applier.Recover(ctx); err != nil {
		log.Error("undo a netplan change that was cut short", "error", err)
	}
}

// netplanBusy names a job of this node that uses one of these interfaces. One
// whose plan is not known here counts: nobody can say that it does not.
func (n *node) netplanBusy(_ context.Context, nics []string) (string, error) {
	for _, e := range n.agent.Ledger() {
		if e.Phase == launcher.PhaseEnded {
			continue
		}
		job, known := n.record.Job(e.Job)
		at := slices.IndexFunc(job.Plan.Nodes, func(p rendezvous.Place) bool { return p.Node == n.m.Node })
		if !known || at < 0 || uses(job.Plan.Nodes[at].Entry, nics) {
			return string(e.Job), nil
		}
	}
	return "", nil
}

// uses tells whether a job's way to its peers goes over one of the interfaces.
func uses(e envgen.Entry, nics []string) bool {
	return slices.Contains(nics, e.NIC) || slices.ContainsFunc(e.Paths, func(p envgen.Path) bool { return slices.Contains(nics, p.NIC) })
}

// idle refuses a job that would use interfaces which are being changed.
func (s *netplanSide) idle(a launcher.Assignment) error {
	s.mu.Lock()
	trying := s.current != nil
	s.mu.Unlock()
	if !trying {
		return nil
	}
	var e envgen.Entry
	if err := json.Unmarshal(a.Meeting, &e); err != nil {
		return fmt.Errorf("read the plan's meeting: %w", err)
	}
	if !uses(e, twinNames(cableTwins(s.view()))) {
		return nil
	}
	return fmt.Errorf("the netplan files of %s are being changed: launch it again in a minute", s.host)
}

// cableTwins are the node's interfaces for which a plan can have addresses.
func cableTwins(inv envgen.Inventory) []netplan.Twin {
	var out []netplan.Twin
	for _, c := range envgen.CableNICs(inv) {
		out = append(out, twinOf(c.NIC))
	}
	return out
}

func twinOf(nic envgen.NIC) netplan.Twin {
	t := netplan.Twin{NIC: nic.Name, MAC: nic.MAC}
	if nic.PCI != nil {
		t.PCI = nic.PCI.String()
	}
	return t
}

func twinNames(twins []netplan.Twin) []string {
	names := make([]string, len(twins))
	for i, t := range twins {
		names[i] = t.NIC
	}
	return names
}

// read tells what addresses the interfaces have: by the files, which hold when
// a cable is out, else by the kernel.
func (s *netplanSide) read(context.Context, wire.Caller, wire.Empty) (wire.NetplanFacts, error) {
	sources, err := s.applier.Sources()
	if err != nil {
		return wire.NetplanFacts{}, err
	}
	inv := s.view()
	twins := cableTwins(inv)
	var facts wire.NetplanFacts
	byFile := netplan.HeldBy(sources, twins)
	for _, t := range twins {
		held := wire.NetplanHeld{NIC: t.NIC}
		if i := slices.IndexFunc(byFile, func(h netplan.Held) bool { return h.NIC == t.NIC }); i >= 0 {
			held.Addresses = byFile[i].Addresses
		} else {
			nic, _ := inv.NIC(t.NIC)
			held.Addresses = nic.Addresses
		}
		facts.Held = append(facts.Held, held)
	}
	facts.Change, facts.Begun, err = s.applier.Last()
	return facts, err
}

// order is a leader's order with what only this node knows.
func (s *netplanSide) order(o wire.NetplanOrder) (netplan.Order, error) {
	inv := s.view()
	out := netplan.Order{Change: o.Change, Text: o.Text, NICs: cableTwins(inv), Management: s.management(inv), Force: o.Force, Grace: o.Grace}
	for _, p := range o.Peers {
		out.Peers = append(out.Peers, netplan.Peer{Host: p.Host, NIC: p.NIC, Addr: p.Addr})
	}
	if o.Undo {
		return s.applier.Undoing(out)
	}
	return out, nil
}

// check gives the node's verdict and touches nothing.
func (s *netplanSide) check(ctx context.Context, c wire.Caller, o wire.NetplanOrder) (wire.NetplanVerdict, error) {
	if c.Node != s.leader() {
		return wire.NetplanVerdict{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	var v wire.NetplanVerdict
	order, err := s.order(o)
	if err == nil {
		var out netplan.Outcome
		out, err = s.applier.Check(ctx, order)
		v.Unchanged, v.Diff = out.State == netplan.StateUnchanged, out.Diff
		for _, change := range out.Changes {
			v.Changes = append(v.Changes, change.NIC+" "+strings.Join(change.Words, ", "))
		}
		for _, m := range out.Mentions {
			v.Mentions = append(v.Mentions, wire.NetplanMention{Text: m.String(), Blocks: m.Blocks})
		}
	}
	if err != nil {
		v.Refusal = plain(err)
	}
	return v, nil
}

// plain is an applier's error as a part of a sentence: of one line, and without
// what the sentence says anyway.
func plain(err error) string {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", "; "), "apply netplan: ")
	return strings.TrimSuffix(text, "; "+netplan.ErrRolledBack.Error())
}

// try makes this node's part of a change. It goes back when the call ends
// before the decision, and tells its last state with the reason.
func (s *netplanSide) try(ctx context.Context, c wire.Caller, o wire.NetplanOrder, tell func(wire.NetplanStep) error) error {
	if c.Node != s.leader() {
		return fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	trial := &netplanTrial{change: o.Change, applied: make(chan struct{}), reached: make(chan struct{}), cancel: cancel}
	// From here on no job begins on the interfaces: those before it the applier
	// finds by netplanBusy.
	if !s.begin(trial) {
		return tell(wire.NetplanStep{Error: "another change is under way here"})
	}
	defer s.end()
	order, err := s.order(o)
	if err != nil {
		return tell(wire.NetplanStep{Error: plain(err)})
	}
	order.Agree = trial.agree
	order.Tell = func(st netplan.State) {
		switch st {
		case netplan.StateCommitted, netplan.StateUnchanged, netplan.StateRolledBack: // the last word, below
		default:
			if err := tell(wire.NetplanStep{State: string(st)}); err != nil {
				cancel(err)
			}
		}
	}
	out, err := s.applier.Try(ctx, order)
	last := wire.NetplanStep{State: string(out.State)}
	if err != nil {
		last.Error = plain(err)
	}
	return tell(last)
}

func (s *netplanSide) begin(t *netplanTrial) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		return false
	}
	s.current = t
	return true
}

func (s *netplanSide) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = nil
}

// decide ends the wait for the other nodes.
func (s *netplanSide) decide(_ context.Context, c wire.Caller, d wire.NetplanDecision) (wire.Empty, error) {
	s.mu.Lock()
	t := s.current
	s.mu.Unlock()
	switch {
	case c.Node != s.leader():
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	case t == nil || t.change != d.Change:
		return wire.Empty{}, fmt.Errorf("decide netplan change %s: %s tries no such change", d.Change, s.host)
	case d.All == string(netplan.StateApplied):
		t.once[0].Do(func() { close(t.applied) })
	case d.All == string(netplan.StateReached):
		t.once[1].Do(func() { close(t.reached) })
	default:
		t.cancel(errors.New(d.Why))
	}
	return wire.Empty{}, nil
}
