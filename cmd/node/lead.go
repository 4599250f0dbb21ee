package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/cmd/node/jobs"
	"github.com/sparkrun/sparkrun/cmd/node/rollout"
	"github.com/sparkrun/sparkrun/cmd/node/status"
	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// leadership is what a node has while it leads, and only then.
type leadership struct {
	*lead.Leader
	n     *node
	links *wire.Links
	fence launcher.Fence
}

// lead is one leadership of this node: what it opens here it closes here.
func (n *node) lead(ctx context.Context, term uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := n.found(ctx); err != nil {
		return err
	}
	fence := launcher.Fence{Epoch: n.record.Epoch(), Term: term}
	n.audit.Add(audit.Line{What: "lead", Who: n.self.Host, On: fence.String(), Outcome: audit.OK})

	var brain *lead.Leader
	links, err := wire.NewLinks(wire.LinksConfig{
		Hello: wire.Hello{Fence: fence, Leader: n.self.ID, Host: n.self.Host, Protocol: n.self.Protocol},
		Dial:  n.dialControl,
		OnUp: func(id launcher.NodeID, up wire.UpHello) {
			n.failover.Heard(id)
			brain.NodeUp(id, lead.Up{
				Boot: up.Boot, Version: up.Version, Protocol: up.Protocol, Inventory: up.Inventory, GPUs: up.GPUs, Ledger: up.Ledger,
				Leases: up.Stamp != 0, Blank: up.Blank,
			})
		},
		OnDown: func(id launcher.NodeID, why error) {
			if ctx.Err() == nil { // else it is we who hang up
				n.log.Warn("node down", "node", n.dial.HostOf(id), "error", why)
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
	brain = lead.Open(ctx, lead.Config{Fence: fence, Record: n.record, Recorder: n.failover.Recorder(term), Send: links.Send, Fabric: survey.Rules{}, Hold: n.rollout.Holds, OnlyHere: n.failover.OnlyHere, Unheard: n.failover.Unheard, Logger: n.log,
		Answers: func(ctx context.Context, p rendezvous.Place) bool {
			roster, _ := brain.Roster()
			return n.failover.Answers(ctx, roster, p)
		}})
	defer brain.Close()
	defer cancel() // before Close, which waits for what ctx ends

	addresses := rollout.Lead(rollout.LeaderConfig{Node: n.rollout, Brain: brain, Dial: n.dial, Failover: n.failover, Logger: n.log})
	l := &leadership{Leader: brain, n: n, links: links, fence: fence}
	st := status.Lead(ctx, status.LeaderConfig{Status: n.status, Brain: brain, Links: links, Fence: fence})
	ranks := jobs.Lead(jobs.LeaderConfig{
		Ranks: n.ranks, Brain: brain, Failover: n.failover, Term: term, Holds: n.rollout.Holds, Logger: n.log,
		FabricOnly: func() (hosts []string) {
			now, _ := st.Now()
			for _, f := range checkup.Seen(now).FabricOnly() {
				hosts = append(hosts, f.Host)
			}
			return hosts
		},
	})
	members := n.members.Lead(brain)
	defer members.Close()
	defer n.toLeader.Lead(slices.Concat(l.Calls(), st.Calls(), members.Calls(), addresses.Calls(), ranks.Calls())...)()
	n.leading.Store(l)
	defer n.leading.Store(nil)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return links.Run(ctx) })
	g.Go(func() error { return n.kick(ctx, links) })
	g.Go(func() error { return n.tendMembers(ctx, brain, links, members) })
	g.Go(func() error { return members.Run(ctx) })
	return g.Wait()
}

// Calls are what only a leader answers.
func (l *leadership) Calls() []wire.Call {
	return []wire.Call{wire.MarkDead.Serve(l.markDead), wire.Reunite.Serve(l.reunite)}
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

// kick has members dialled whom gossip hears now, rather than after the back-off.
func (n *node) kick(ctx context.Context, links *wire.Links) error {
	var before []gossip.Peer
	for {
		now, changed := n.present.Watch()
		for _, p := range now {
			if p.Alive && !slices.Contains(before, p) {
				links.Kick(launcher.NodeID(p.ID))
			}
		}
		before = now
		select {
		case <-changed:
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
	if !brain.Leased() || len(n.failover.Unheard()) > 0 {
		return errNoProof
	}
	return n.failover.Raft().Verify(ctx)
}

// found writes a new cluster's first entry.
func (n *node) found(ctx context.Context) error {
	if cluster, _, _ := n.record.Cluster(); cluster != "" {
		return nil
	}
	addr, err := n.network.Address(ctx)
	if err != nil {
		return err
	}
	return n.failover.Recorder(0).Apply(ctx, rendezvous.Entry{Kind: rendezvous.KindFound, Found: &rendezvous.Found{
		Cluster: n.self.Cluster, Epoch: n.failover.Epoch().N,
		First: rendezvous.Node{ID: n.self.ID, Host: n.self.Host, Addr: netip.AddrPortFrom(addr, n.self.RPCPort),
			Key: trust.KeyOf(n.list.Gate.Identity().Cert).String(), Protocol: n.self.Protocol},
	}}, func() bool { c, _, _ := n.record.Cluster(); return c != "" })
}

// dialControl opens a control stream; the leader's own node needs no network.
func (n *node) dialControl(ctx context.Context, id launcher.NodeID) (wire.Link, error) {
	if id != n.self.ID {
		return wire.Control.Open(ctx, n.dial.Client(id)), nil
	}
	link, stream := wire.Pipe(ctx)
	go func() { // ends with the pipe
		err := n.control.Serve(ctx, wire.Caller{Node: id, Host: n.self.Host}, stream)
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
func (n *node) tendMembers(ctx context.Context, brain *lead.Leader, links *wire.Links, trusted *membership.Leader) error {
	retry := time.NewTicker(5 * time.Second) // for silences, which nothing tells of
	defer retry.Stop()
	for {
		recordChanged := n.record.Changed()
		raftChanged := n.failover.Raft().LeaderChanged()
		_, inventoryChanged := n.inventory.Watch() // this node's own address
		_, presentChanged := n.present.Watch()     // and the others'
		leaving, leavingChanged := n.members.Leaving.Watch()
		var passOn <-chan time.Time
		if leaving { // nothing tells of the end of a silence
			passOn = time.After(passOnEvery)
		}
		roster, rosterChanged := brain.Roster()

		var ids []launcher.NodeID
		var members []consensus.Member
		for _, m := range roster {
			ids = append(ids, m.ID)
			if m.ID == n.self.ID && leaving {
				continue
			}
			members = append(members, consensus.Member{ID: string(m.ID), Joined: m.Joined, Healthy: m.Ready, Blank: m.Blank})
		}
		links.Want(ids)
		trusted.NoteChanges(ctx, roster)
		n.noteHeard(ctx, roster)
		n.takeInAnew(ctx, links, roster)
		if again := n.changeRole(ctx, trusted, consensus.Desired(members, n.failover.Raft().Members())); again {
			continue
		}
		trusted.TakeBackCA(ctx, roster)
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
func (n *node) changeRole(ctx context.Context, trusted *membership.Leader, c consensus.Change) bool {
	if c.Zero() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if c.To > c.From && c.ID != string(n.self.ID) {
		if err := trusted.HandOverCA(ctx, launcher.NodeID(c.ID)); err != nil {
			n.log.Warn("hand over the CA key", "node", n.dial.HostOf(launcher.NodeID(c.ID)), "error", err)
			return false
		}
	}
	if err := n.failover.Raft().ApplyChange(ctx, c); err != nil {
		n.log.Warn("change raft membership", "node", n.dial.HostOf(launcher.NodeID(c.ID)), "to", c.To, "error", err)
		return errors.Is(err, consensus.ErrStaleChange)
	}
	return true
}

// reunite takes a part of the record of a side that gives way.
func (l *leadership) reunite(ctx context.Context, c wire.Caller, p rendezvous.Reunited) (wire.Empty, error) {
	n := l.n
	if p.Node != c.Node {
		return wire.Empty{}, fmt.Errorf("%w: %s hands over the record of %s", wire.ErrDenied, c.Host, p.Node)
	}
	if err := n.failover.Recorder(0).Apply(ctx, p.Entry(), func() bool { return false }); err != nil {
		return wire.Empty{}, err
	}
	if p.Job != nil {
		n.log.Info("reunited", "job", p.Job.Spec.ID, "from", c.Host, "epoch", p.From.N)
		l.Adopt(p.Job.Spec.ID)
		for _, place := range p.Job.Plan.Nodes { // who is connected already tells its ledger again
			l.links.Reopen(place.Node)
		}
	}
	return wire.Empty{}, nil
}

// takeInWithin bounds telling one member that it may begin again.
const takeInWithin = 3 * time.Second

// takeInAnew lets members that have lost their copy begin again, once a majority
// has confirmed that they have no part in raft any more.
func (n *node) takeInAnew(ctx context.Context, links *wire.Links, roster rendezvous.Roster) {
	for _, m := range roster {
		if !m.Ready || !m.Blank || n.failover.HasPart(m.ID) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, takeInWithin)
		err := n.failover.Raft().Verify(ctx)
		if err == nil && !n.failover.HasPart(m.ID) {
			err = wire.BeginAnew.Call(ctx, n.dial.Client(m.ID), wire.Empty{})
		}
		cancel()
		if err == nil {
			links.Reopen(m.ID) // its next hello says so; a stream that the node ended might count as lost
		}
		n.log.Info("take a node in anew that has lost its copy of the record", "node", m.Host, "error", err)
	}
}

// heir is a member that can take this leader's place; empty where there is none,
// or nothing to hand over.
func (n *node) heir() launcher.NodeID {
	l := n.leading.Load()
	if l == nil {
		return ""
	}
	roster, _ := l.Roster()
	ready := map[string]bool{}
	for _, m := range roster {
		ready[string(m.ID)] = m.Ready && !m.Blank && m.ID != n.self.ID
	}
	sole := n.failover.SoleVoter()
	for _, s := range n.failover.Raft().Members().Servers {
		// A pair's standby that has just come back may still count as silent; it is
		// asked before anything is changed.
		if ready[s.ID] && (sole || s.Role == consensus.Voter && s.Silent == 0) {
			return launcher.NodeID(s.ID)
		}
	}
	return ""
}

// stepAside passes on what this node has before its agent ends: the leadership
// and, where it is the only one, the vote.
func (n *node) stepAside() {
	n.failover.Stopping(n.life, func() bool { return n.leading.Load() != nil })
	if heir := n.heir(); heir != "" {
		n.failover.HandOver(n.life, heir, &n.members.Leaving)
	}
}
