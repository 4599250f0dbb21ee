package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/cmd/node/rollout"
	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// leadership is what a node has while it leads, and only then.
type leadership struct {
	*lead.Leader
	n       *node
	links   *wire.Links
	fence   launcher.Fence
	rollout *rollout.Leader
}

// lead is one leadership of this node: what it opens here it closes here.
func (n *node) lead(ctx context.Context, term uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-n.yielded: // to the leader of a later epoch
		<-ctx.Done()
		return ctx.Err()
	default:
	}
	if err := n.found(ctx); err != nil {
		return err
	}
	if err := n.raiseEpoch(ctx); err != nil {
		return err
	}
	fence := launcher.Fence{Epoch: n.record.Epoch(), Term: term}
	n.audit.Add(audit.Line{What: "lead", Who: n.m.Host, On: fence.String(), Outcome: audit.OK})

	var brain *lead.Leader
	links, err := wire.NewLinks(wire.LinksConfig{
		Hello: wire.Hello{Fence: fence, Leader: n.m.Node, Host: n.m.Host, Protocol: n.cfg.speaks()},
		Dial:  n.dialControl,
		OnUp: func(id launcher.NodeID, up wire.UpHello) {
			n.hears(id)
			brain.NodeUp(id, lead.Up{
				Boot: up.Boot, Version: up.Version, Protocol: up.Protocol, Inventory: up.Inventory, GPUs: up.GPUs, Ledger: up.Ledger,
				Leases: up.Stamp != 0, Blank: up.Blank,
			})
		},
		OnDown: func(id launcher.NodeID, why error) {
			if ctx.Err() == nil { // else it is we who hang up
				n.log.Warn("node down", "node", n.hostOf(id), "error", why)
			}
			brain.NodeDown(id)
		},
		OnEvent:     func(ev launcher.Event) { brain.Event(ev) },
		OnInventory: func(id launcher.NodeID, inv envgen.Inventory) { brain.Inventory(id, inv) },
		OnClock:     func(id launcher.NodeID, ahead time.Duration) { brain.Clock(id, ahead) },
		Prove:       func(ctx context.Context) error { return n.prove(ctx, brain) },
		OnEcho:      func(id launcher.NodeID, boot string, stamp launcher.Uptime) { brain.Echo(id, boot, stamp) },
		Logger:      n.log,
	})
	if err != nil {
		return err
	}
	brain = lead.Open(ctx, lead.Config{Fence: fence, Record: n.record, Recorder: recorder{n, term}, Send: links.Send, Fabric: survey.Rules{}, Hold: n.rollout.Holds, OnlyHere: n.onlyHere, Unheard: n.unheard, Logger: n.log,
		Answers: func(ctx context.Context, p rendezvous.Place) bool {
			roster, _ := brain.Roster()
			return n.answers(ctx, roster, p)
		}})
	defer brain.Close()
	defer cancel() // before Close, which waits for what ctx ends

	addresses := rollout.Lead(rollout.LeaderConfig{Node: n.rollout, Brain: brain, Client: n.dial.Client, Allocate: n.allocate, Logger: n.log})
	l := &leadership{Leader: brain, n: n, links: links, fence: fence, rollout: addresses}
	defer n.server().Lead(slices.Concat(l.Calls(), addresses.Calls())...)()
	n.leading.Store(l)
	defer n.leading.Store(nil)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return links.Run(ctx) })
	g.Go(func() error { return n.tendMembers(ctx, brain, links) })
	g.Go(func() error { return n.tendTrust(ctx, brain) })
	g.Go(func() error {
		select {
		case <-n.yielded:
			return errReopen
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return g.Wait()
}

// reopens opens the leader's control streams anew where a better route carries again.
func (n *node) reopens(ctx context.Context) error {
	for {
		select {
		case id := <-n.dial.Better():
			if l := n.leading.Load(); l != nil {
				l.links.Reopen(id)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errNoProof: nobody needs one, or this node must not give one.
var errNoProof = errors.New("no lease is renewed")

// prove lets the leases of a leadership go on. It costs an entry of the log, and is
// made for a job with a lease only. Who may have been taken over while it was
// off gives none: the newer leader counts on that.
func (n *node) prove(ctx context.Context, brain *lead.Leader) error {
	if !brain.Leased() || len(n.unheard()) > 0 {
		return errNoProof
	}
	return n.raft.Verify(ctx)
}

// found writes a new cluster's first entry.
func (n *node) found(ctx context.Context) error {
	if cluster, _, _ := n.record.Cluster(); cluster != "" {
		return nil
	}
	addr, err := n.managementAddr(ctx)
	if err != nil {
		return err
	}
	return recorder{n: n}.apply(ctx, rendezvous.Entry{Kind: rendezvous.KindFound, Found: &rendezvous.Found{
		Cluster: n.m.Cluster, Epoch: n.opened.N,
		First: rendezvous.Node{ID: n.m.Node, Host: n.m.Host, Addr: netip.AddrPortFrom(addr, uint16(n.m.RPCPort)),
			Key: trust.KeyOf(n.gate.Identity().Cert).String(), Protocol: n.cfg.speaks()},
	}}, func() bool { c, _, _ := n.record.Cluster(); return c != "" })
}

// dialControl opens a control stream; the leader's own node needs no network.
func (n *node) dialControl(ctx context.Context, id launcher.NodeID) (wire.Link, error) {
	if id != n.m.Node {
		return wire.Control.Open(ctx, n.dial.Client(id)), nil
	}
	link, stream := wire.Pipe(ctx)
	go func() { // ends with the pipe
		err := n.control(ctx, wire.Caller{Node: id, Host: n.m.Host}, stream)
		if err != nil && ctx.Err() == nil {
			n.log.Warn("own control stream", "error", err)
		}
		link.Close()
	}()
	return link, nil
}

// passOnEvery is how often a leader that is to leave looks whether somebody can take its place.
const passOnEvery = 50 * time.Millisecond

// tendMembers keeps a control stream to every member, and raft's roles as they
// should be: one change a pass, on raft's own evidence.
func (n *node) tendMembers(ctx context.Context, brain *lead.Leader, links *wire.Links) error {
	retry := time.NewTicker(5 * time.Second) // for silences, which nothing tells of
	defer retry.Stop()
	droppedCA := map[launcher.NodeID]time.Time{}
	for {
		recordChanged := n.record.Changed()
		raftChanged := n.raft.LeaderChanged()
		_, inventoryChanged := n.inventory.Watch() // this node's own address
		_, presentChanged := n.present.Watch()     // and the others'
		leaving, leavingChanged := n.leaving.Watch()
		var passOn <-chan time.Time
		if leaving { // nothing tells of the end of a silence
			passOn = time.After(passOnEvery)
		}
		roster, rosterChanged := brain.Roster()

		var ids []launcher.NodeID
		var members []consensus.Member
		for _, m := range roster {
			ids = append(ids, m.ID)
			if m.ID == n.m.Node && leaving {
				continue
			}
			members = append(members, consensus.Member{ID: string(m.ID), Joined: m.Joined, Healthy: m.Ready, Blank: m.Blank})
		}
		links.Want(ids)
		n.noteChanges(ctx, roster)
		n.noteHeard(ctx, roster)
		n.takeInAnew(ctx, links, roster)
		if again := n.changeRole(ctx, consensus.Desired(members, n.raft.Members())); again {
			continue
		}
		n.takeBackCA(ctx, roster, droppedCA)
		select {
		case <-recordChanged:
		case <-raftChanged:
		case <-rosterChanged:
		case <-inventoryChanged:
		case <-presentChanged:
		case <-leavingChanged:
		case <-passOn:
		case <-retry.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// changeRole makes one change of raft's membership; true means look again.
func (n *node) changeRole(ctx context.Context, c consensus.Change) bool {
	if c.Zero() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if c.To > c.From && c.ID != string(n.m.Node) {
		if err := n.handOverCA(ctx, launcher.NodeID(c.ID)); err != nil {
			n.log.Warn("hand over the CA key", "node", n.hostOf(launcher.NodeID(c.ID)), "error", err)
			return false
		}
	}
	if err := n.raft.ApplyChange(ctx, c); err != nil {
		n.log.Warn("change raft membership", "node", n.hostOf(launcher.NodeID(c.ID)), "to", c.To, "error", err)
		return errors.Is(err, consensus.ErrStaleChange)
	}
	return true
}

// handOverCA gives the CA's key to a node that becomes a voter or standby: it
// may have to sign certificates when this one is gone.
func (n *node) handOverCA(ctx context.Context, id launcher.NodeID) error {
	ca, err := trust.LoadCA(n.cfg.Paths.trust())
	if err != nil {
		return err
	}
	pem, err := ca.MarshalPEM()
	if err != nil {
		return err
	}
	return wire.KeepCA.Call(ctx, n.dial.Client(id), wire.CAKey{PEM: pem})
}

// noteChanges records where members have moved to, so that they are found even when
// nobody gossips, and which protocol they speak, so that it is known while they are off.
func (n *node) noteChanges(ctx context.Context, roster rendezvous.Roster) {
	for _, m := range roster {
		known, _ := n.record.Node(m.ID)
		now := m.Node
		if at, err := n.whereIs(m.ID); err == nil && at.Addr().IsValid() {
			now.Addr = at
		}
		if now.Addr == known.Addr && now.Protocol == known.Protocol {
			continue
		}
		err := recorder{n: n}.apply(ctx, rendezvous.Entry{Kind: rendezvous.KindNode, Node: &now}, func() bool {
			x, _ := n.record.Node(m.ID)
			return x.Addr == now.Addr && x.Protocol == now.Protocol
		})
		if err != nil {
			n.log.Warn("record a member's address and protocol", "node", m.Host, "error", err)
		}
	}
}

// whereIs gives a member's present address: our own by the hardware, another's
// by gossip.
func (n *node) whereIs(id launcher.NodeID) (netip.AddrPort, error) {
	if id != n.m.Node {
		return n.dial.Locate(id)
	}
	inv := n.inventory.Load()
	mgmt, err := envgen.Management(inv, n.cfg.Management)
	return netip.AddrPortFrom(mgmt.Addr, uint16(n.m.RPCPort)), err
}

func (n *node) hostOf(id launcher.NodeID) string {
	if m, ok := n.record.Node(id); ok {
		return m.Host
	}
	for _, p := range n.present.Load() {
		if p.ID == string(id) {
			return p.Host
		}
	}
	return string(id)
}

// copyWithin is how long an acknowledgement waits for a second copy. A standby
// that is there has it in milliseconds.
const copyWithin = 300 * time.Millisecond

// onlyHere names this host where no other machine has what was just recorded,
// though it should: a pair's one vote records without the standby.
func (n *node) onlyHere(ctx context.Context) string {
	if !n.soleVoter() || len(n.record.Nodes()) < 2 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, copyWithin)
	defer cancel()
	if n.raft.Copied(ctx) || n.leading.Load() == nil {
		return ""
	}
	return n.m.Host
}

// recorder writes the record through raft.
type recorder struct {
	n    *node
	term uint64 // of the leadership that decides; 0 for what any leader may write
}

func (r recorder) Plan(ctx context.Context, job rendezvous.Job) error {
	return r.apply(ctx, job.Entry(), func() bool {
		j, ok := r.n.record.Job(job.Spec.ID)
		return ok && j.Plan.Generation == job.Plan.Generation && j.Planned.Equal(job.Planned)
	})
}

func (r recorder) Stop(ctx context.Context, stop rendezvous.JobStop) error {
	return r.apply(ctx, stop.Entry(), func() bool {
		j, ok := r.n.record.Job(stop.Job)
		return ok && j.Stop != nil && j.Stop.Grace <= stop.Stop.Grace
	})
}

func (r recorder) Verdict(ctx context.Context, end rendezvous.JobEnd) error {
	return r.apply(ctx, end.Verdict(), func() bool {
		j, ok := r.n.record.Job(end.Job)
		return ok && j.Plan.Generation == end.Generation && j.Verdict != nil
	})
}

func (r recorder) End(ctx context.Context, end rendezvous.JobEnd) error {
	return r.apply(ctx, rendezvous.Entry{Kind: rendezvous.KindEnd, End: &end}, func() bool {
		j, ok := r.n.record.Job(end.Job)
		return ok && j.Outcome != nil
	})
}

// commit binds what a leader decides to its leadership: one that notices late that it
// has lost it, and has another by now, knows nothing of what went on between the two.
func (r recorder) commit(ctx context.Context, entry []byte) (any, error) {
	if r.term == 0 {
		return r.n.raft.Apply(ctx, entry)
	}
	return r.n.raft.ApplyIn(ctx, r.term, entry)
}

// everyReplicaKnows refuses what would stop a node of an older release that has the record.
func (n *node) everyReplicaKnows(protocol int) error {
	var ids []launcher.NodeID
	for id := range n.roles() {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return n.record.Knows(protocol, ids)
}

// apply commits one entry, or learns that it cannot. An unknown outcome is
// settled by looking at the record, and by trying again while we lead: done
// tells whether the record has it.
func (r recorder) apply(ctx context.Context, e rendezvous.Entry, done func() bool) error {
	if err := r.n.everyReplicaKnows(e.Kind.Since()); err != nil {
		return fmt.Errorf("record %s: %w", e.Kind, err)
	}
	e.At = time.Now()
	data, err := e.Encode()
	if err != nil {
		return err
	}
	r.n.recording.RLock()
	defer r.n.recording.RUnlock()
	for {
		select {
		case <-r.n.yielded:
			return fmt.Errorf("record entry: %w: this side gives way to a later epoch", lead.ErrOver)
		default:
		}
		res, err := r.commit(ctx, data)
		switch {
		case err == nil:
			refused, _ := res.(error)
			if refused != nil && done() {
				return nil // an earlier try of ours had been committed
			}
			return refused
		case errors.Is(err, consensus.ErrNotLeader), errors.Is(err, consensus.ErrStopped), ctx.Err() != nil:
			return fmt.Errorf("%w: %w", lead.ErrOver, err)
		case errors.Is(err, consensus.ErrTooLarge):
			return err
		}
		r.n.log.Warn("record entry", "kind", e.Kind, "error", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", lead.ErrOver, err)
		}
		if done() {
			return nil
		}
	}
}
