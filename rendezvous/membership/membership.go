package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's Membership. All of it is needed except Management.
type Config struct {
	Self       rendezvous.Self
	Management string // as the user gave it
	List       *List
	Keyring    *Keyring
	Record     *rendezvous.Record
	Dial       *dial.Dialer
	Failover   *failover.Failover
	Agent      *agent.Agent
	// Present are the members that gossip, Inventory is this machine's hardware.
	Present   *rendezvous.Latest[[]gossip.Peer]
	Inventory *rendezvous.Latest[envgen.Inventory]
	Audit     audit.Trail
	Logger    *slog.Logger
}

// Membership is a node's part in who is a member.
type Membership struct {
	List *List
	// Listener accepts connections of listed peers, for calls and for raft.
	Listener *trust.Listener

	cfg  Config
	keys *Keyring
	log  *slog.Logger

	shunned   atomic.Bool                // every member that answered this node's question refused it
	removed   atomic.Bool                // one of them said that this node was removed; for good
	cleared   atomic.Bool                // one of them said that this node is a member
	leads     rendezvous.Latest[*Leader] // nil while this node does not lead
	left      chan struct{}              // closed when this node has left the cluster
	leaveOnce sync.Once
}

// Open makes the listener. Run keeps the list, the keys and the certificate.
func Open(cfg Config) (*Membership, error) {
	m := &Membership{cfg: cfg, List: cfg.List, keys: cfg.Keyring, log: cfg.Logger, left: make(chan struct{})}
	var err error
	m.Listener, err = trust.NewListener(trust.ListenerConfig{
		Gate: m.List.Gate, Refused: m.refused,
		Protos: []trust.Proto{{Name: dial.Calls, Open: true}, {Name: cfg.Failover.Proto()}, {Name: dial.Bulk}},
	})
	return m, err
}

// refused records a connection that the listener has refused.
func (m *Membership) refused(from netip.AddrPort, err error) {
	m.log.Debug("refuse a connection", "from", from, "error", err)
	m.cfg.Audit.Unauthenticated(audit.Line{What: "handshake", From: from.String(), Outcome: audit.Refused,
		Why: err.Error()})
}

// ErrLeft ends Run: this node has left its cluster.
var ErrLeft = errors.New("this node has left the cluster")

// Run keeps this node's certificate, list and keys up to date, and closes connections of those that are no longer
// listed.
func (m *Membership) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.keepCertificate(ctx) })
	g.Go(func() error { return m.keepList(ctx) })
	g.Go(func() error { return m.enforce(ctx) })
	g.Go(func() error {
		select {
		case <-m.left:
			return ErrLeft
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return g.Wait()
}

// Left is closed once this node has left its cluster.
func (m *Membership) Left() <-chan struct{} { return m.left }

// Calls are the procedures that this node answers whether it leads or not.
func (m *Membership) Calls() []wire.Call {
	return []wire.Call{
		wire.Token.Around(m.tokenFrom), wire.Leave.Serve(m.leave), wire.Refresh.Serve(m.refresh),
		wire.KeepTrusted.Serve(m.keepTrusted), wire.AskTrusted.Serve(m.askTrusted), wire.BeRemoved.Serve(m.beRemoved),
		wire.KeepCA.Serve(m.keepCA), wire.DropCA.Serve(m.dropCA), wire.RenewExpired.Serve(m.renewExpired),
	}
}

// enforce closes the connections of former members and clients.
func (m *Membership) enforce(ctx context.Context) error {
	for {
		recordChanged := m.cfg.Record.Changed()
		_, toldChanged := m.List.told.Watch()
		m.Listener.Sweep(m.List.isGone)
		m.cfg.Dial.Drop(m.List.isGone)
		select {
		case <-recordChanged:
		case <-toldChanged:
		case <-m.List.parted:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// trusted is what this node knows about members and keys, for another node.
func (m *Membership) trusted() (wire.Trusted, error) {
	ring, retired, err := m.keys.now()
	if err != nil {
		return wire.Trusted{}, err
	}
	return wire.Trusted{Members: m.List.now(), Keyring: wireKeys(ring), Retired: wireKeys(trust.Keyring(retired))}, nil
}

// mustLead refuses calls that only the leader may make.
func (m *Membership) mustLead(c wire.Caller) error {
	if c.Node != m.cfg.Failover.Leader() {
		return fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	return nil
}

// keepTrusted takes the leader's list of whom to trust.
func (m *Membership) keepTrusted(_ context.Context, c wire.Caller, t wire.Trusted) (wire.Trusted, error) {
	if err := m.mustLead(c); err != nil {
		return wire.Trusted{}, err
	}
	if err := m.List.take(t.Members); err != nil {
		return wire.Trusted{}, err
	}
	ring, err := m.keys.take(keysOf(t.Keyring), true)
	if err != nil {
		return wire.Trusted{Keyring: wireKeys(ring)}, err
	}
	if err := m.keys.takeRetired(t, true); err != nil {
		return wire.Trusted{}, err
	}
	now, err := m.trusted()
	now.Members = wire.MemberList{} // not asked for
	return now, err
}

func (m *Membership) askTrusted(context.Context, wire.Caller, wire.Empty) (wire.Trusted, error) {
	return m.trusted()
}

// keepCA takes the CA's key from the leader.
func (m *Membership) keepCA(_ context.Context, c wire.Caller, k wire.CAKey) (wire.Empty, error) {
	if err := m.mustLead(c); err != nil {
		return wire.Empty{}, err
	}
	ca, err := trust.ParseCA(k.PEM)
	if err != nil {
		return wire.Empty{}, err
	}
	if trust.PinOf(ca.Cert) != trust.PinOf(m.List.Gate.Identity().CA) {
		return wire.Empty{}, fmt.Errorf("%w: the CA key belongs to another cluster", wire.ErrDenied)
	}
	return wire.Empty{}, trust.SaveCA(m.List.cfg.Trust, ca)
}

// dropCA forgets the CA's key when the leader says so.
func (m *Membership) dropCA(_ context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if err := m.mustLead(c); err != nil {
		return wire.Empty{}, err
	}
	return wire.Empty{}, trust.ForgetCA(m.List.cfg.Trust)
}

const (
	// askAgain is the pause between two rounds of asking members for their list and keys.
	askAgain = time.Second
	// lonelyAfter is how often a node that hears nobody by gossip asks: its keys or its list may be old.
	lonelyAfter   = 5 * time.Second
	askListWithin = 3 * time.Second
)

// keepList asks members for their list and keys when a peer came that is not on this
// node's own list, and when it hears nobody.
func (m *Membership) keepList(ctx context.Context) error {
	lonely := time.NewTicker(lonelyAfter)
	defer lonely.Stop()
	for {
		select {
		case <-m.List.ask:
		case <-lonely.C:
			if m.leads.Load() != nil || m.hearsOthers() {
				m.shunned.Store(false)
				continue
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		m.askForList(ctx)
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *Membership) hearsOthers() bool {
	return slices.ContainsFunc(m.cfg.Present.Load(), func(p gossip.Peer) bool {
		return p.Alive && launcher.NodeID(p.ID) != m.cfg.Self.ID
	})
}

// removedText says what to do on a machine that was removed while it did not hear of it.
const removedText = "`sudo sparkrun leave` here removes its keys; after that, a new token (`sparkrun token create` on " +
	"a member) and `sudo sparkrun join` bring it in again"

// shunnedText says what to do when all members that answer refuse this node.
const shunnedText = "if it was removed from the cluster while it was off (`sparkrun status` on another machine), " +
	"`sudo sparkrun leave --force` here removes its keys; else check the clocks, and audit.log there"

// NoLeader says in one line what is wrong and what helps: ErrNoLeader if waiting does not
// help, ErrRetry if an election is under way.
func (m *Membership) NoLeader() error {
	if m.removed.Load() {
		return fmt.Errorf("%w: this machine %w: %s", wire.ErrNoLeader, rendezvous.ErrRemoved, removedText)
	}
	if m.shunned.Load() {
		return fmt.Errorf("%w: the other members refuse this machine: %s", wire.ErrNoLeader, shunnedText)
	}
	return m.cfg.Failover.NoLeader()
}

// askForList asks the members on this node's own list, all in parallel, and adopts
// whatever is newer.
func (m *Membership) askForList(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askListWithin)
	defer cancel()
	var answered atomic.Int32
	var refused []launcher.NodeID
	var mu sync.Mutex // over refused
	var all sync.WaitGroup
	for _, other := range m.List.now().Members {
		if other.ID == m.cfg.Self.ID {
			continue
		}
		all.Go(func() {
			t, err := wire.AskTrusted.Call(ctx, m.cfg.Dial.Client(other.ID), wire.Empty{})
			switch {
			case err == nil:
				answered.Add(1)
				err = m.takeTold(t)
			case strings.Contains(err.Error(), "tls: bad certificate"): // all that the refused end learns; the error has no type
				mu.Lock()
				refused = append(refused, other.ID)
				mu.Unlock()
			}
			if err != nil {
				m.log.Debug("ask who is a member", "node", other.Host, "error", err)
			}
		})
	}
	all.Wait()
	shunned := len(refused) > 0 && answered.Load() == 0
	if was := m.shunned.Swap(shunned); shunned && !was {
		m.log.Warn("other members refuse this machine", "remedy", shunnedText)
	}
	switch {
	case !shunned:
		m.cleared.Store(false)
	case !m.cleared.Load() && !m.removed.Load():
		m.askWhy(ctx, refused)
	}
}

// askWhy asks members that refuse this node, without its certificate, whether it was removed. Their answer is
// proven by the CA that this node knows.
func (m *Membership) askWhy(ctx context.Context, refused []launcher.NodeID) {
	id := m.List.Gate.Identity()
	csr, err := id.CSR()
	if err == nil {
		var addrs []netip.AddrPort
		for _, other := range refused {
			if at, err := m.cfg.Dial.Locate(other); err == nil {
				addrs = append(addrs, at)
			}
		}
		_, err = RenewExpired(ctx, m.List.cfg.Now, id, csr, addrs)
	}
	m.cleared.Store(err == nil)
	if errors.Is(err, rendezvous.ErrRemoved) && !m.removed.Swap(true) {
		m.log.Warn("this machine was removed from its cluster", "remedy", removedText)
	}
}

// takeTold adopts what a member that does not lead has told.
func (m *Membership) takeTold(t wire.Trusted) error {
	if err := m.List.take(t.Members); err != nil {
		return err
	}
	if _, err := m.keys.take(keysOf(t.Keyring), false); err != nil {
		return err
	}
	return m.keys.takeRetired(t, false)
}

// where gives a member's current address: our own from the hardware, another's from
// gossip.
func (m *Membership) where(id launcher.NodeID) (netip.AddrPort, error) {
	if id != m.cfg.Self.ID {
		return m.cfg.Dial.Locate(id)
	}
	mgmt, err := envgen.Management(m.cfg.Inventory.Load(), m.cfg.Management)
	return netip.AddrPortFrom(mgmt.Addr, m.cfg.Self.RPCPort), err
}

// record writes an entry unless it is there.
func (m *Membership) record(ctx context.Context, e rendezvous.Entry, there func() bool) error {
	return m.cfg.Failover.Recorder(0).Apply(ctx, e, there)
}
