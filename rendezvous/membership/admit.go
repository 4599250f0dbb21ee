package membership

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// mayCreate checks a request for a token and completes it.
func (m *Membership) mayCreate(
	ctx context.Context, c wire.Caller, r wire.TokenRequest,
) (_ wire.TokenRequest, err error) {
	if r.Role == string(trust.RoleClient) {
		r.User, err = m.mayInvite(ctx, c, r)
	} else if err = c.MustBeRoot("create token"); err == nil && r.User != "" {
		err = fmt.Errorf("create token: a user is for --role client: %w", launcher.ErrInvalid)
	}
	return r, err
}

// tokenFrom runs on the node where the user asked for a token, because it knows that
// machine's users.
func (m *Membership) tokenFrom(ctx context.Context, c wire.Caller, r wire.TokenRequest,
	ask wire.Ask[wire.TokenRequest, wire.TokenResponse]) (res wire.TokenResponse, err error) {
	r, err = m.mayCreate(ctx, c, r)
	if err == nil {
		res, err = ask(ctx, r)
	}
	if err != nil || m.leads.Load() == nil { // if we lead, token has recorded it already
		m.cfg.Audit.User("token create", c, "", err)
	}
	return res, err
}

func (l *Leader) token(ctx context.Context, c wire.Caller, r wire.TokenRequest) (res wire.TokenResponse, err error) {
	m, id := l.m, ""
	defer func() {
		if err == nil || c.Forwarded() {
			m.cfg.Audit.User("token create", c, id, err)
		}
	}()
	if r, err = m.mayCreate(ctx, c, r); err != nil {
		return res, err
	}
	role := trust.Role(cmp.Or(r.Role, string(trust.RoleNode)))
	token, rec, err := trust.NewToken(m.List.Gate.Identity().CA, role, r.Uses, r.TTL, time.Now())
	if err != nil {
		return wire.TokenResponse{}, fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
	}
	id = token.ID()
	t := rendezvous.Token{
		ID: rec.ID, Hash: []byte(rec.Hash), Role: string(rec.Role), Uses: rec.Uses, Expires: rec.Expires, User: r.User,
	}
	err = m.record(ctx, rendezvous.Entry{Kind: rendezvous.KindToken, Token: &t}, func() bool {
		_, err := m.cfg.Record.TokenByHash(t.Hash)
		return err == nil
	})
	if err != nil {
		return wire.TokenResponse{}, err
	}
	m.log.Info("token created", "token", id, "role", role, "uses", r.Uses, "expires", rec.Expires, "user", c.User.Name)
	res = wire.TokenResponse{
		Token: token.Reveal(), Expires: rec.Expires, User: r.User, OnlyOn: m.cfg.Failover.OnlyHere(ctx),
	}
	for _, o := range m.cfg.Record.Nodes() {
		res.Join = append(res.Join, o.Addr)
	}
	return res, nil
}

// roleOf is what a newcomer wants to be.
func roleOf(r wire.JoinRequest) string {
	if r.Witness {
		return string(trust.RoleWitness)
	}
	return string(trust.RoleNode)
}

// join makes a newcomer a member.
func (l *Leader) join(ctx context.Context, c wire.Caller, r wire.JoinRequest) (wire.JoinResponse, error) {
	res, err := l.admit(ctx, r)
	l.m.cfg.Audit.Newcomer(audit.Line{What: "join", Who: r.Host, On: string(r.Node)}, c, err)
	l.m.log.Info("join", "host", r.Host, "node", r.Node, "addr", r.Addr, "from", c.Addr, "via", c.Host, "error", err)
	return res, err
}

func (l *Leader) admit(ctx context.Context, r wire.JoinRequest) (wire.JoinResponse, error) {
	m, record, now := l.m, l.m.cfg.Record, l.m.List.cfg.Now()
	token, err := record.TokenByHash([]byte(trust.HashSecret(trust.NewSecret(r.Secret))))
	if err != nil {
		return wire.JoinResponse{}, fmt.Errorf("%w: make one with `sparkrun token create` on a member", err)
	}
	if err := token.Check(now, roleOf(r)); err != nil {
		return wire.JoinResponse{}, fmt.Errorf("%w: make another with `sparkrun token create --role %s` on a member",
			err, roleOf(r))
	}
	if err := rendezvous.Together(m.cfg.Self.Protocol, r.Protocol); err != nil {
		return wire.JoinResponse{}, fmt.Errorf("%s to the leader %s: %w", r.Host, m.cfg.Self.Host, err)
	}
	_, client := record.Client(string(r.Node))
	if _, taken := record.Node(r.Node); taken || client || record.WasRemoved(r.Node) {
		return wire.JoinResponse{}, fmt.Errorf("%w: node id %s is a member's or a client's, or was a member's: "+
			"a join cannot be made twice",
			wire.ErrDenied, r.Node)
	}
	if !r.Addr.IsValid() || r.Addr.Addr().IsUnspecified() {
		return wire.JoinResponse{}, fmt.Errorf("management address %s: %w", r.Addr, launcher.ErrInvalid)
	}
	if err := l.addrTaken(r.Addr.Addr()); err != nil {
		return wire.JoinResponse{}, err
	}
	ca, err := trust.LoadCA(m.List.cfg.Trust)
	if err != nil {
		return wire.JoinResponse{}, err
	}
	// Signed before it is recorded: a request that cannot be signed costs no
	// token. The certificate is worth nothing without the record's entry.
	cert, err := ca.Issue(r.CSR, string(r.Node), r.Host, trust.RoleNode, now)
	if err != nil {
		return wire.JoinResponse{}, err
	}
	entry := rendezvous.Entry{Kind: rendezvous.KindJoin, Join: &rendezvous.Join{TokenID: token.ID, Node: rendezvous.Node{
		ID: r.Node, Host: r.Host, Addr: r.Addr, Witness: r.Witness, Key: trust.KeyOf(cert).String(), Protocol: r.Protocol,
	}}}
	if err := m.record(ctx, entry, func() bool { _, in := record.Node(r.Node); return in }); err != nil {
		return wire.JoinResponse{}, err
	}
	cluster, _, _ := record.Cluster()
	epoch := record.Epoch()
	res := wire.JoinResponse{
		Cluster: cluster, Epoch: epoch.N, EpochBy: epoch.By, Cert: cert.Raw, CACert: ca.Cert.Raw,
		Peers: m.gossipAddrs(), Leader: m.cfg.Self.Host,
	}
	if len(record.Nodes()) > 2 { // the second of all is to become the second copy
		res.OnlyOn = m.cfg.Failover.OnlyHere(ctx)
	}
	res.Trusted, err = m.trusted()
	return res, err
}

// addrTaken refuses a newcomer the address of a member that is there: two
// machines with one address harm each other. One that is away may have lost it.
func (l *Leader) addrTaken(a netip.Addr) error {
	roster, _ := l.brain.Roster()
	for _, o := range roster {
		if now, err := l.m.where(o.ID); err == nil && o.Ready && now.Addr() == a {
			return fmt.Errorf("management address %s: %w: it is %s's, which is a member and answers: "+
				"give this machine an address of its own (`ip addr`), or name another with --management",
				a, wire.ErrDenied, o.Host)
		}
	}
	return nil
}

// gossipAddrs lists where members gossip, this one first.
func (m *Membership) gossipAddrs() []netip.AddrPort {
	g := m.keys.gossip.Load()
	if g == nil {
		return nil
	}
	out := []netip.AddrPort{g.Addr()}
	for _, p := range m.cfg.Present.Load() {
		if p.Alive {
			out = append(out, p.Gossip())
		}
	}
	return out
}
