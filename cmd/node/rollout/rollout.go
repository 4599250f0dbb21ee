// Package rollout changes the fabric's addresses on all nodes, or on none.
//
// It decides which node gets which order, when a change has been applied and has reached
// all peers, and whether it stays or all nodes go back; on each node it says whether a
// job may begin meanwhile.
//
// It must not decide what the addresses are (envgen/netplan does, from the
// topology), write a file itself (netplan.Applier does), or know how a member is
// reached and who leads.
package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's part.
type Config struct {
	Self launcher.NodeID
	Host string
	// Netplan reads this machine's addresses and puts others in force. Open sets its
	// Busy.
	Netplan netplan.Config
	// Lock is asked by Prepare before a job begins here.
	Lock *Lock
	// Management is an interface or address, as the user asked; see
	// envgen.Management. No change may touch it.
	Management string
	Ledger     Ledger
	Record     *rendezvous.Record
	Inventory  *rendezvous.Latest[envgen.Inventory]
	// Leader whose orders are taken; empty where none is known.
	Leader func() launcher.NodeID
}

// Ledger lists the jobs that have ranks on this node.
type Ledger interface {
	Ledger() []launcher.LedgerEntry
}

// Node is one node's part: it tells what its files say, and tries what a leader orders.
type Node struct {
	cfg     Config
	applier *netplan.Applier
	leads   atomic.Bool // this node, as the leader, coordinates a change
}

// Open makes the node's part. Recover must have been called before.
func Open(cfg Config) (*Node, error) {
	n := &Node{cfg: cfg}
	cfg.Netplan.Busy = n.busy
	var err error
	if n.applier, err = netplan.New(cfg.Netplan); err != nil {
		return nil, err
	}
	return n, nil
}

// Calls are what a node answers.
func (n *Node) Calls() []wire.Call {
	return []wire.Call{
		wire.NetplanRead.Serve(n.Read), wire.NetplanCheck.Serve(n.Check),
		wire.NetplanTry.Serve(n.Try), wire.NetplanDecide.Serve(n.Decide),
	}
}

// Machine is this machine's own netplan; state is the folder for what undoes a change.
// stand is a program to run in place of `netplan apply`, for tests; empty means the real
// one.
func Machine(state, stand string, log *slog.Logger) netplan.Config {
	program := netplan.Command{}
	cfg := netplan.Config{
		Files: netplan.Disk{Root: "/"}, State: state,
		Check: program.Check, Apply: program.Apply, Log: log,
		Reachable: func(ctx context.Context, p netplan.Peer) error { return doctor.Ping(ctx, p.NIC, p.Addr) },
	}
	if stand != "" {
		log.Warn("netplan apply is replaced, as for tests", "by", stand)
		cfg.Apply = func(ctx context.Context) error {
			if out, err := exec.CommandContext(ctx, stand).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", stand, err, strings.TrimSpace(string(out)))
			}
			return nil
		}
	}
	return cfg
}

// Recover undoes what a crash interrupted, before this node takes jobs. A node whose
// files cannot be restored stays in its cluster all the same: the applier goes on
// refusing changes.
func Recover(ctx context.Context, cfg netplan.Config) error {
	cfg.Busy = func(context.Context, []string) (string, error) { return "", nil }
	applier, err := netplan.New(cfg)
	if err != nil {
		return err
	}
	if _, err := applier.Recover(ctx); err != nil {
		cfg.Log.Error("undo a netplan change that was cut short", "error", err)
	}
	return nil
}

// busy names a job of this node that uses one of these interfaces. A job whose plan is
// not known here counts as using them.
func (n *Node) busy(_ context.Context, nics []string) (string, error) {
	for _, e := range n.cfg.Ledger.Ledger() {
		if e.Phase == launcher.PhaseEnded {
			continue
		}
		job, known := n.cfg.Record.Job(e.Job)
		at := slices.IndexFunc(job.Plan.Nodes, func(p rendezvous.Place) bool { return p.Node == n.cfg.Self })
		if !known || at < 0 || uses(job.Plan.Nodes[at].Entry, nics) {
			return string(e.Job), nil
		}
	}
	return "", nil
}

// uses tells whether a job reaches its peers over one of the interfaces.
func uses(e envgen.Entry, nics []string) bool {
	return slices.Contains(nics, e.NIC) ||
		slices.ContainsFunc(e.Paths, func(p envgen.Path) bool { return slices.Contains(nics, p.NIC) })
}

// Lock is held while a change is tried on this node. The zero value is free.
type Lock struct {
	mu    sync.Mutex
	trial *trial
}

// trial is one change in progress.
type trial struct {
	change string
	// applied and reached are closed when all nodes have got that far.
	applied, reached chan struct{}
	once             [2]sync.Once
	cancel           context.CancelCauseFunc
}

func (l *Lock) take(t *trial) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trial != nil {
		return false
	}
	l.trial = t
	return true
}

func (l *Lock) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trial = nil
}

func (l *Lock) held() *trial {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trial
}

// Refuse refuses a job that would use interfaces which are being changed.
func (l *Lock) Refuse(a launcher.Assignment, inv envgen.Inventory) error {
	if l.held() == nil {
		return nil
	}
	var e envgen.Entry
	if err := json.Unmarshal(a.Meeting, &e); err != nil {
		return fmt.Errorf("read the plan's meeting: %w", err)
	}
	if !uses(e, twinNames(cableTwins(inv))) {
		return nil
	}
	return fmt.Errorf("the netplan files of %s are being changed: launch it again in a minute", a.Host)
}

// cableTwins are the node's interfaces that a plan can give addresses to.
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

// management is the interface over which the cluster talks.
func (n *Node) management(inv envgen.Inventory) netplan.Twin {
	mgmt, err := envgen.Management(inv, n.cfg.Management)
	if err != nil {
		return netplan.Twin{} // which the applier refuses
	}
	nic, _ := inv.NIC(mgmt.NIC)
	return netplan.Twin{NIC: mgmt.NIC, MAC: nic.MAC}
}

// Read tells which addresses the interfaces have: by the files, which also hold when a
// cable is out, or else by the kernel.
func (n *Node) Read(context.Context, wire.Caller, wire.Empty) (wire.NetplanFacts, error) {
	sources, err := n.applier.Sources()
	if err != nil {
		return wire.NetplanFacts{}, err
	}
	inv := n.cfg.Inventory.Load()
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
	facts.Change, facts.Begun, err = n.applier.Last()
	return facts, err
}

// order adds to a leader's order what only this node knows.
func (n *Node) order(o wire.NetplanOrder) (netplan.Order, error) {
	inv := n.cfg.Inventory.Load()
	out := netplan.Order{
		Change: o.Change, Text: o.Text, NICs: cableTwins(inv), Management: n.management(inv), Force: o.Force, Grace: o.Grace,
	}
	for _, p := range o.Peers {
		out.Peers = append(out.Peers, netplan.Peer{Host: p.Host, NIC: p.NIC, Addr: p.Addr})
	}
	if o.Undo {
		return n.applier.Undoing(out)
	}
	return out, nil
}

// obeys refuses orders of a member that does not lead.
func (n *Node) obeys(c wire.Caller) error {
	if c.Node != n.cfg.Leader() {
		return fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	return nil
}

// Check gives the node's verdict and touches nothing.
func (n *Node) Check(ctx context.Context, c wire.Caller, o wire.NetplanOrder) (wire.NetplanVerdict, error) {
	if err := n.obeys(c); err != nil {
		return wire.NetplanVerdict{}, err
	}
	var v wire.NetplanVerdict
	order, err := n.order(o)
	if err == nil {
		var out netplan.Outcome
		out, err = n.applier.Check(ctx, order)
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

// plain makes an applier's error fit into a sentence: one line, without what the sentence
// says anyway.
func plain(err error) string {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", "; "), "apply netplan: ")
	return strings.TrimSuffix(text, "; "+netplan.ErrRolledBack.Error())
}

// Try makes this node's part of a change. It goes back when the call ends before the
// decision; the last state that it tells has the reason.
func (n *Node) Try(ctx context.Context, c wire.Caller, o wire.NetplanOrder, tell func(wire.NetplanStep) error) error {
	if err := n.obeys(c); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &trial{change: o.Change, applied: make(chan struct{}), reached: make(chan struct{}), cancel: cancel}
	// From here on no job begins on the interfaces; jobs that began before are found by
	// busy.
	if !n.cfg.Lock.take(t) {
		return tell(wire.NetplanStep{Error: "another change is under way here"})
	}
	defer n.cfg.Lock.release()
	order, err := n.order(o)
	if err != nil {
		return tell(wire.NetplanStep{Error: plain(err)})
	}
	order.Agree = t.agree
	order.Tell = func(st netplan.State) {
		switch st {
		case netplan.StateCommitted, netplan.StateUnchanged, netplan.StateRolledBack: // told below, as the last state
		default:
			if err := tell(wire.NetplanStep{State: string(st)}); err != nil {
				cancel(err)
			}
		}
	}
	out, err := n.applier.Try(ctx, order)
	last := wire.NetplanStep{State: string(out.State)}
	if err != nil {
		last.Error = plain(err)
	}
	return tell(last)
}

// agree waits until all nodes have got as far; the applier calls it.
func (t *trial) agree(ctx context.Context, got netplan.State) error {
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

// Decide ends the wait for the other nodes.
func (n *Node) Decide(_ context.Context, c wire.Caller, d wire.NetplanDecision) (wire.Empty, error) {
	if err := n.obeys(c); err != nil {
		return wire.Empty{}, err
	}
	t := n.cfg.Lock.held()
	switch {
	case t == nil || t.change != d.Change:
		return wire.Empty{}, fmt.Errorf("decide netplan change %s: %s tries no such change", d.Change, n.cfg.Host)
	case d.All == string(netplan.StateApplied):
		t.once[0].Do(func() { close(t.applied) })
	case d.All == string(netplan.StateReached):
		t.once[1].Do(func() { close(t.reached) })
	default:
		t.cancel(errors.New(d.Why))
	}
	return wire.Empty{}, nil
}
