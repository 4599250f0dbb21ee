package membership

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Leader admits and removes members and clients, signs certificates and tells members whom to trust, while this
// node leads.
type Leader struct {
	m     *Membership
	brain *lead.Leader
	told  map[launcher.NodeID]string    // what each has acknowledged, and since when it has been up
	said  map[launcher.NodeID]string    // why each could not be told
	noCA  map[launcher.NodeID]time.Time // since when each that was told to forget the CA's key has been up
}

// Lead begins the leader's part; Close ends it.
func (m *Membership) Lead(brain *lead.Leader) *Leader {
	l := &Leader{
		m: m, brain: brain,
		told: map[launcher.NodeID]string{}, said: map[launcher.NodeID]string{}, noCA: map[launcher.NodeID]time.Time{},
	}
	m.leads.Store(l)
	return l
}

// Close ends it: this node no longer leads.
func (l *Leader) Close() { l.m.leads.Store(nil) }

// Calls are the procedures that only a leader answers.
func (l *Leader) Calls() []wire.Call {
	return []wire.Call{
		wire.Token.Serve(l.token), wire.Join.Serve(l.join), wire.Login.Serve(l.login), wire.Renew.Serve(l.renew),
		wire.RemoveNode.Serve(l.removeNode), wire.DrainNode.Serve(l.drainNode), wire.Clients.Serve(l.clients), wire.RemoveClients.Serve(l.removeClients),
	}
}

const (
	tellTrustWithin = 3 * time.Second
	tellTrustAgain  = time.Second // after a member could not be told
)

// Run keeps every member informed about who is a member, and rotates the gossip key so
// that former members do not know it. See rendezvous/trust/DESIGN.md.
func (l *Leader) Run(ctx context.Context) error {
	for {
		recordChanged := l.m.cfg.Record.Changed()
		roster, rosterChanged := l.brain.Roster()
		all, err := l.tellTrust(ctx, roster)
		if err == nil && all {
			var stepped bool
			if stepped, err = l.m.keys.step(); stepped { // here first
				continue
			}
		}
		if err != nil {
			l.m.log.Warn("tell members whom to trust", "error", err)
		}
		var again <-chan time.Time
		if err != nil || !all {
			again = time.After(tellTrustAgain)
		}
		select {
		case <-recordChanged:
		case <-rosterChanged:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tellTrust tells all members that are up, in parallel. all: each of them has
// acknowledged it.
func (l *Leader) tellTrust(ctx context.Context, roster rendezvous.Roster) (all bool, err error) {
	m := l.m
	settled, err := m.keys.settle()
	if err != nil {
		return false, err
	}
	now, err := m.trusted()
	if err != nil {
		return false, err
	}
	now.Settled = settled
	// A list that has not changed is not told again just because the record's index has.
	text, err := json.Marshal([]any{now.Members.Members, now.Members.Clients, now.Keyring, now.Retired, now.Settled})
	if err != nil {
		return false, fmt.Errorf("tell members whom to trust: %w", err)
	}
	same := fmt.Sprintf("%x", sha256.Sum256(text))
	roster = slices.DeleteFunc(slices.Clone(roster), func(o rendezvous.Member) bool {
		return !o.Ready || o.ID == m.cfg.Self.ID || l.told[o.ID] == o.Since.String()+same
	})
	if err := m.List.take(now.Members); err != nil { // this node itself begins with it after a restart
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, tellTrustWithin)
	defer cancel()
	answers, errs := make([]wire.Trusted, len(roster)), make([]error, len(roster))
	var calls sync.WaitGroup
	for i, o := range roster {
		calls.Go(func() { answers[i], errs[i] = wire.KeepTrusted.Call(ctx, m.cfg.Dial.Client(o.ID), now) })
	}
	calls.Wait()
	missing := false
	for i, err := range errs {
		o := roster[i]
		if err == nil {
			delete(l.said, o.ID)
			continue
		}
		missing = true
		if l.said[o.ID] != err.Error() {
			l.said[o.ID] = err.Error()
			m.log.Warn("a member cannot be told whom to trust; the gossip key is not changed until it can",
				"node", o.Host, "error", err)
		}
	}
	acknowledged := make([]wire.Trusted, 0, len(roster))
	for i, res := range answers {
		if errs[i] != nil {
			continue
		}
		acknowledged = append(acknowledged, res)
		if keysOf(res.Keyring).Equal(keysOf(now.Keyring)) {
			l.told[roster[i].ID] = roster[i].Since.String() + same
		} else {
			missing = true
		}
	}
	learned, err := l.learn(now, acknowledged)
	return !missing && !learned, err
}

// learn adopts keys that members have from an earlier leader, which had begun a rotation or had retired a key.
func (l *Leader) learn(now wire.Trusted, answers []wire.Trusted) (learned bool, err error) {
	want := keysOf(now.Keyring)
	ring, before := want, trust.Retired(keysOf(now.Retired))
	for _, res := range answers {
		if merged, newer := ring.Merge(keysOf(res.Keyring)); newer {
			ring = merged
		}
		more := keysOf(res.Retired).Without(want)
		if before.Add(more).Equal(before) {
			continue
		}
		learned = true
		if err := l.m.keys.takeRetired(wire.Trusted{Retired: wireKeys(more)}, false); err != nil {
			return false, err
		}
	}
	if !ring.Equal(want) {
		learned = true
		_, err = l.m.keys.take(ring, true)
	}
	return learned, err
}

// HandOverCA gives the CA's key to a node that becomes a voter or standby: it may have to
// sign certificates when this node is gone.
func (l *Leader) HandOverCA(ctx context.Context, id launcher.NodeID) error {
	ca, err := trust.LoadCA(l.m.List.cfg.Trust)
	if err != nil {
		return err
	}
	pem, err := ca.MarshalPEM()
	if err != nil {
		return err
	}
	return wire.KeepCA.Call(ctx, l.m.cfg.Dial.Client(id), wire.CAKey{PEM: pem})
}

// TakeBackCA makes members that are neither voter nor standby forget the CA's key.
// Whoever changes roles calls it between changes.
func (l *Leader) TakeBackCA(ctx context.Context, roster rendezvous.Roster) {
	for _, o := range roster {
		if !o.Ready || o.ID == l.m.cfg.Self.ID || l.m.cfg.Failover.HasPart(o.ID) {
			delete(l.noCA, o.ID)
			continue
		}
		if l.noCA[o.ID].Equal(o.Since) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, tellTrustWithin)
		err := wire.DropCA.Call(ctx, l.m.cfg.Dial.Client(o.ID), wire.Empty{})
		cancel()
		if err != nil {
			l.m.log.Warn("take the CA key back", "node", o.Host, "error", err)
			continue
		}
		l.noCA[o.ID] = o.Since
	}
}

// NoteChanges records members' new addresses, so that they are found even when nobody
// gossips, and the protocol that they speak, so that it is known while they are off.
func (l *Leader) NoteChanges(ctx context.Context, roster rendezvous.Roster) {
	for _, o := range roster {
		known, _ := l.m.cfg.Record.Node(o.ID)
		now := o.Node
		if at, err := l.m.where(o.ID); err == nil && at.Addr().IsValid() {
			now.Addr = at
		}
		if now.Addr == known.Addr && now.Protocol == known.Protocol {
			continue
		}
		err := l.m.record(ctx, rendezvous.Entry{Kind: rendezvous.KindNode, Node: &now}, func() bool {
			x, _ := l.m.cfg.Record.Node(o.ID)
			return x.Addr == now.Addr && x.Protocol == now.Protocol
		})
		if err != nil {
			l.m.log.Warn("record a member's address and protocol", "node", o.Host, "error", err)
		}
	}
}

// renew signs a member's new certificate, for the node that the connection proves,
// whatever the request says.
func (l *Leader) renew(_ context.Context, c wire.Caller, r wire.RenewRequest) (wire.RenewResponse, error) {
	return l.m.sign(c.Node, r.CSR)
}

// Found records a new cluster's first entry; at gives the address at which this node
// listens.
func (m *Membership) Found(ctx context.Context, at func(context.Context) (netip.Addr, error)) error {
	founded := func() bool { c, _, _ := m.cfg.Record.Cluster(); return c != "" }
	if founded() {
		return nil
	}
	addr, err := at(ctx)
	if err != nil {
		return err
	}
	self := m.cfg.Self
	return m.record(ctx, rendezvous.Entry{Kind: rendezvous.KindFound, Found: &rendezvous.Found{
		Cluster: self.Cluster, Epoch: m.cfg.Failover.Epoch().N,
		First: rendezvous.Node{
			ID: self.ID, Host: self.Host, Addr: netip.AddrPortFrom(addr, self.RPCPort),
			Key: trust.KeyOf(m.List.Gate.Identity().Cert).String(), Protocol: self.Protocol,
		},
	}}, founded)
}
