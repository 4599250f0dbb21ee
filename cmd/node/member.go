package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"os/user"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// nodeCalls answers other members.
func (n *node) nodeCalls() wire.Node {
	return wire.Node{
		Control: n.control, NodeLogs: n.nodeLogs, Prepared: n.prepared, Reach: n.nodeReach, InputAt: n.nodeInputAt, KeepCA: n.keepCA, Renew: n.renew, Seen: n.seen,
		Succeed: n.succeed, Objection: n.objection, Reunite: n.reunite, NodeRaft: n.nodeRaft, BeginAnew: n.beginAnew,
		NodeCounters: n.nodeCounters, NodeReport: n.nodeReport,
		NodeExec: n.nodeExec, NodeExecReach: n.nodeExecReach,
		NodeStaged: n.nodeStaged, NodeStageRead: n.nodeStageRead,
		NetplanRead: n.netplan.read, NetplanCheck: n.netplan.check, NetplanTry: n.netplan.try, NetplanDecide: n.netplan.decide,
	}
}

// control serves a leader's control stream, until it ends or another takes its
// place: a stream whose network has died would hold on to old orders.
func (n *node) control(ctx context.Context, c wire.Caller, s wire.ControlStream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return n.nodeSide(&stream{end: cancel}).Serve(ctx, c, s)
}

// stream is a leader's control stream at the node.
type stream struct{ end context.CancelCauseFunc }

var errReplaced = errors.New("another control stream took its place")

// nodeSide is this node's end of a leader's control stream.
func (n *node) nodeSide(own *stream) wire.NodeSide {
	return wire.NodeSide{
		Attach: func(ctx context.Context, h wire.Hello, c wire.Caller, emit func(wire.Up)) (wire.UpHello, error) {
			return n.attach(ctx, own, h, c, emit)
		},
		Order: func(o launcher.Order) {
			if err := n.agent.Order(o); err != nil {
				n.log.Warn("refuse order", "error", err)
			}
		},
		Uptime: agent.Uptime, Renew: n.agent.Renew,
		Logger: n.log,
	}
}

// attach lets a leader in: the fence rises first, then the ledger is told.
func (n *node) attach(ctx context.Context, own *stream, h wire.Hello, c wire.Caller, emit func(wire.Up)) (wire.UpHello, error) {
	if c.Node != h.Leader {
		return wire.UpHello{}, fmt.Errorf("%w: node %s speaks for leader %s", wire.ErrDenied, c.Node, h.Leader)
	}
	if err := rendezvous.Together(n.cfg.speaks(), h.Protocol); err != nil {
		return wire.UpHello{}, fmt.Errorf("%s to the leader %s: %w", n.m.Host, h.Host, err)
	}
	if err := n.agent.Raise(h.Fence); err != nil {
		return wire.UpHello{}, err
	}
	if h.Fence.Epoch.Compare(n.opened) > 0 { // from the Raise on our own leadership is obeyed nowhere, if it is one
		n.giveWay(h)
		return wire.UpHello{}, fmt.Errorf("%s enters epoch %d: %w", n.m.Host, h.Fence.N, wire.ErrRetry)
	}
	n.hears(h.Leader)
	n.update(func() {
		if old := n.hint.stream; old != nil {
			old.end(errReplaced)
		}
		n.hint = hint{leader: h.Leader, host: h.Host, stream: own}
	})
	next, cancel := n.agent.Events()
	inv, changed := n.view()
	var told sync.WaitGroup
	told.Go(func() {
		for {
			ev, err := next(ctx)
			if err != nil {
				return
			}
			emit(wire.Up{Event: &ev})
		}
	})
	told.Go(func() { n.tellInventory(ctx, inv, changed, emit) })
	go func() { // ends with the stream
		<-ctx.Done()
		told.Wait()
		cancel()
		n.update(func() {
			if n.hint.stream == own {
				n.hint.stream = nil
			}
		})
	}()
	return wire.UpHello{Boot: n.boot, Version: n.cfg.Version, Protocol: n.cfg.speaks(), Inventory: inv, Ledger: n.agent.Ledger(), GPUs: gpus("/proc"), Blank: n.blank.Load()}, nil
}

// tellInventory passes on what changes on this node's hardware.
func (n *node) tellInventory(ctx context.Context, told envgen.Inventory, changed <-chan struct{}, emit func(wire.Up)) {
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		var inv envgen.Inventory
		inv, changed = n.view()
		if !reflect.DeepEqual(inv, told) {
			told = inv
			emit(wire.Up{Inventory: &inv})
		}
	}
}

// prepared answers a dry run: what this node would start, and why not.
func (n *node) prepared(ctx context.Context, _ wire.Caller, a launcher.Assignment) (wire.NodePlan, error) {
	ranks, err := n.agent.Explain(ctx, a)
	p := wire.NodePlan{Host: n.m.Host, Ranks: ranks}
	if err != nil {
		p.Error = err.Error()
	}
	return p, nil
}

func (n *node) nodeLogs(ctx context.Context, _ wire.Caller, r wire.NodeLogsRequest, send func(wire.LogChunk) error) error {
	return n.agent.Logs(ctx, logsOf(r), send)
}

// keepCA takes the CA's key from the leader.
func (n *node) keepCA(_ context.Context, c wire.Caller, k wire.CAKey) (wire.Empty, error) {
	if c.Node != n.leaderID() {
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	ca, err := trust.ParseCA(k.PEM)
	if err != nil {
		return wire.Empty{}, err
	}
	if trust.PinOf(ca.Cert) != trust.PinOf(n.gate.Identity().CA) {
		return wire.Empty{}, fmt.Errorf("%w: the CA key is another cluster's", wire.ErrDenied)
	}
	return wire.Empty{}, trust.SaveCA(n.cfg.Paths.trust(), ca)
}

// join makes a newcomer a member: by this node where it leads, else by the
// leader.
func (n *node) join(ctx context.Context, c wire.Caller, r wire.JoinRequest) (wire.JoinResponse, error) {
	if n.leading.Load() == nil {
		id := n.leaderID()
		if c.Node != "" || id == "" || id == n.m.Node {
			return wire.JoinResponse{}, n.noLeader()
		}
		res, err := n.peers.client(id).Join(ctx, r)
		if errors.Is(err, wire.ErrUnreachable) {
			err = fmt.Errorf("the leader %s does not answer: %w", n.hostOf(id), wire.ErrRetry)
		}
		return res, err
	}
	res, err := n.admit(ctx, r)
	n.log.Info("join", "host", r.Host, "node", r.Node, "addr", r.Addr, "from", c.Addr, "via", c.Host, "error", err)
	return res, led(err)
}

func (n *node) admit(ctx context.Context, r wire.JoinRequest) (wire.JoinResponse, error) {
	now := time.Now()
	token, err := n.record.TokenByHash([]byte(trust.HashSecret(trust.NewSecret(r.Secret))))
	if err != nil {
		return wire.JoinResponse{}, fmt.Errorf("%w: make one with `sparkrun token create` on a member", err)
	}
	if err := token.Check(now); err != nil {
		return wire.JoinResponse{}, fmt.Errorf("%w: make another with `sparkrun token create` on a member", err)
	}
	if err := rendezvous.Together(n.cfg.speaks(), r.Protocol); err != nil {
		return wire.JoinResponse{}, fmt.Errorf("%s to the leader %s: %w", r.Host, n.m.Host, err)
	}
	if _, taken := n.record.Node(r.Node); taken {
		return wire.JoinResponse{}, fmt.Errorf("%w: node id %s is a member", wire.ErrDenied, r.Node)
	}
	if !r.Addr.IsValid() || r.Addr.Addr().IsUnspecified() {
		return wire.JoinResponse{}, fmt.Errorf("management address %s: %w", r.Addr, launcher.ErrInvalid)
	}
	if err := n.addrTaken(r.Addr.Addr()); err != nil {
		return wire.JoinResponse{}, err
	}
	ca, err := trust.LoadCA(n.cfg.Paths.trust())
	if err != nil {
		return wire.JoinResponse{}, err
	}
	// Signed before it is recorded: a request that cannot be signed costs no
	// token. The certificate is worth nothing without the record's entry.
	cert, err := ca.Issue(r.CSR, string(r.Node), r.Host, trust.RoleNode, now)
	if err != nil {
		return wire.JoinResponse{}, err
	}
	keys, err := trust.LoadGossipKeys(n.cfg.Paths.trust())
	if err != nil {
		return wire.JoinResponse{}, err
	}
	entry := rendezvous.Entry{Kind: rendezvous.KindJoin, Join: &rendezvous.Join{
		TokenID: token.ID, Node: rendezvous.Node{ID: r.Node, Host: r.Host, Addr: r.Addr, Witness: r.Witness}}}
	err = recorder{n}.apply(ctx, entry, func() bool { _, in := n.record.Node(r.Node); return in })
	if err != nil {
		return wire.JoinResponse{}, err
	}
	cluster, _, _ := n.record.Cluster()
	epoch := n.record.Epoch()
	res := wire.JoinResponse{Cluster: cluster, Epoch: epoch.N, EpochBy: epoch.By, Cert: cert.Raw, CACert: ca.Cert.Raw, Peers: n.gossipAddrs(), Leader: n.m.Host}
	if len(n.record.Nodes()) > 2 { // the second of all is to become the second copy
		res.OnlyOn = n.onlyHere(ctx)
	}
	for _, k := range keys {
		res.GossipKeys = append(res.GossipKeys, k.Reveal())
	}
	return res, nil
}

// addrTaken refuses a newcomer the address of a member that is there: two
// machines with one address harm each other. One that is away may have lost it.
func (n *node) addrTaken(a netip.Addr) error {
	l := n.leading.Load()
	if l == nil {
		return nil
	}
	roster, _ := l.Roster()
	for _, m := range roster {
		if now, err := n.whereIs(m.ID); err == nil && m.Ready && now.Addr() == a {
			return fmt.Errorf("management address %s: %w: it is %s's, which is a member and answers: give this machine an address of its own (`ip addr`), or name another with --management", a, wire.ErrDenied, m.Host)
		}
	}
	return nil
}

// gossipAddrs lists where members gossip, this one first.
func (n *node) gossipAddrs() []netip.AddrPort {
	g := n.gossip.Load()
	if g == nil {
		return nil
	}
	out := []netip.AddrPort{g.Addr()}
	for _, p := range g.Peers() {
		if p.Alive {
			out = append(out, p.Gossip())
		}
	}
	return out
}

// mustBeRoot guards what gives power over every node.
func mustBeRoot(c wire.Caller, what string) error {
	if c.User.UID != 0 {
		return fmt.Errorf("%s: %w: run it as root (sudo)", what, wire.ErrDenied)
	}
	return nil
}

func (n *node) token(ctx context.Context, c wire.Caller, r wire.TokenRequest) (wire.TokenResponse, error) {
	if err := mustBeRoot(c, "create token"); err != nil {
		return wire.TokenResponse{}, err
	}
	to, done, err := n.leader(ctx, c)
	defer done()
	if err != nil {
		return wire.TokenResponse{}, err
	}
	if to.leadership == nil {
		res, err := to.remote.Token(to.ctx, r)
		return res, to.passed(err)
	}
	token, rec, err := trust.NewToken(n.gate.Identity().CA, trust.RoleNode, r.Uses, r.TTL, time.Now())
	if err != nil {
		return wire.TokenResponse{}, fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
	}
	t := rendezvous.Token{ID: rec.ID, Hash: []byte(rec.Hash), Role: string(rec.Role), Uses: rec.Uses, Expires: rec.Expires}
	err = recorder{n}.apply(ctx, rendezvous.Entry{Kind: rendezvous.KindToken, Token: &t}, func() bool {
		_, err := n.record.TokenByHash(t.Hash)
		return err == nil
	})
	if err != nil {
		return wire.TokenResponse{}, led(err)
	}
	n.log.Info("token created", "token", token.ID(), "uses", r.Uses, "expires", rec.Expires, "user", c.User.Name)
	res := wire.TokenResponse{Token: token.Reveal(), Expires: rec.Expires, OnlyOn: n.onlyHere(ctx)}
	for _, m := range n.record.Nodes() {
		res.Join = append(res.Join, m.Addr)
	}
	return res, nil
}

// leave takes this node out of the cluster. The member that is asked is the one
// that goes: a call that was passed on asks the leader to strike its sender.
func (n *node) leave(ctx context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if err := mustBeRoot(c, "leave the cluster"); err != nil {
		return wire.Empty{}, err
	}
	if c.Forwarded() {
		return wire.Empty{}, n.strike(ctx, c.Node)
	}
	for _, e := range n.agent.Ledger() {
		if e.Phase == launcher.PhaseStarted || e.Phase == launcher.PhasePrepared {
			return wire.Empty{}, fmt.Errorf("leave the cluster: job %s has ranks here: stop it first (`sparkrun stop %s`)", e.Job, e.Job)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	defer n.leaving.Store(false)
	for {
		err := n.askToLeave(ctx, c)
		if err == nil {
			break
		}
		if !errors.Is(err, wire.ErrRetry) || ctx.Err() != nil {
			return wire.Empty{}, fmt.Errorf("leave the cluster: %w", err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if g := n.gossip.Load(); g != nil {
		if err := g.Leave(2 * time.Second); err != nil {
			n.log.Warn("say good-bye by gossip", "error", err)
		}
	}
	n.leaveOnce.Do(func() { time.AfterFunc(100*time.Millisecond, func() { close(n.left) }) }) // after the answer is out
	return wire.Empty{}, nil
}

// askToLeave has this node struck from the record by another: a leader passes
// the leadership on first, and stays until raft no longer needs its vote.
func (n *node) askToLeave(ctx context.Context, c wire.Caller) error {
	to, done, err := n.leader(ctx, c)
	defer done()
	switch {
	case err != nil:
		return err
	case to.leadership == nil:
		return to.passed(to.remote.Leave(to.ctx))
	case len(n.record.Nodes()) <= 1:
		return to.Retire(n.m.Node) // the last one takes the cluster with it
	}
	n.update(func() { n.leaving.Store(true) })
	return fmt.Errorf("%s passes the leadership on: %w", n.m.Host, wire.ErrRetry)
}

// strike removes a member other than this one, which leads.
func (n *node) strike(ctx context.Context, id launcher.NodeID) error {
	l := n.leading.Load()
	if l == nil {
		return fmt.Errorf("%s does not lead: %w", n.m.Host, wire.ErrRetry)
	}
	if _, in := n.record.Node(id); in {
		if err := l.Retire(id); err != nil {
			return err
		}
		err := recorder{n}.apply(ctx, rendezvous.Entry{Kind: rendezvous.KindRemove, Remove: &id}, func() bool {
			_, in := n.record.Node(id)
			return !in
		})
		if err != nil {
			l.Unretire(id)
			return led(err)
		}
	}
	return n.waitOutOfRaft(ctx, id)
}

// waitOutOfRaft waits until a member that was struck has no part in raft.
func (n *node) waitOutOfRaft(ctx context.Context, id launcher.NodeID) error {
	for {
		if _, in := n.roles()[id]; !in {
			return nil
		}
		if n.leading.Load() == nil {
			return fmt.Errorf("the leadership moved: %w", wire.ErrRetry)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("take %s out of raft: %w", n.hostOf(id), ctx.Err())
		}
	}
}

// loginName gives a uid's login on this node.
func loginName(uid uint32) (string, error) {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username, nil
	}
	// Built without cgo, os/user reads /etc/passwd only: LDAP and SSSD users
	// are known to the C library.
	out, err := exec.Command("getent", "passwd", id).Output()
	name, _, found := strings.Cut(string(out), ":")
	if err != nil || !found || name == "" {
		return "", fmt.Errorf("uid %d has no login on this node", uid)
	}
	return name, nil
}

// each runs fn for 0..k-1 side by side and waits for all.
func each(k int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}
