package node

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Clients are users' machines that are no members. What they may do, and how that
// is taken back, is in rendezvous/trust/DESIGN.md, "Clients".

// What one user, root excepted, can have the cluster hold for clients. The list of
// them and the record are everybody's; the connections of each client are counted by
// the door.
const (
	clientsOfUser     = 100
	tokensOfUser      = 100 // which the record still has: it forgets them a day after their end
	longestInvitation = 24 * time.Hour
	clientCalls       = 1024 // of all of a user's clients at one member, at once
)

// clientOnRoll finds a client on the newest list that this node has.
func (n *node) clientOnRoll(id string) (rendezvous.Client, bool) {
	if t := n.toldRoll(); t != nil {
		for _, c := range t.Clients {
			if c.ID == id {
				return c, true
			}
		}
		return rendezvous.Client{}, false
	}
	return n.record.Client(id)
}

func sameClient(a, b rendezvous.Client) bool {
	return a.ID == b.ID && a.User == b.User && a.Host == b.Host && a.Key == b.Key
}

// admitsClient asks the list of clients. Unlike a member, one is never let in on its
// certificate's word alone.
func (n *node) admitsClient(p trust.Peer, key trust.Pin) error {
	switch c, listed := n.clientOnRoll(p.NodeID); {
	case !listed:
		n.wantRoll() // it may have logged in while this node was away
		return rendezvous.ErrNoClient
	case c.Key != key.String():
		return fmt.Errorf("%s@%s has another key", c.User, c.Host)
	}
	return nil
}

// clientCaller is who calls over a client's connection: its user, as the list says.
func (n *node) clientCaller(id, addr string) (wire.Caller, error) {
	c, listed := n.clientOnRoll(id)
	if !listed { // since Gate.Peer has asked
		return wire.Caller{}, rendezvous.ErrNoClient
	}
	u := wire.User{Name: c.User, UID: wire.NoUID}
	if c.User == rootName {
		u.UID = 0
	}
	return wire.Caller{User: &u, Addr: addr, Client: &wire.Laptop{ID: c.ID, Host: c.Host, Addr: addr}}, nil
}

const rootName = "root"

// serveClient serves a client's request where it is a users' call, and has each of
// them written down.
func (n *node) serveClient(p trust.Peer, w http.ResponseWriter, r *http.Request) {
	c, err := n.clientCaller(p.NodeID, r.RemoteAddr)
	if err != nil {
		n.audit.Unauthenticated(audit.Line{What: "client call", From: r.RemoteAddr, Client: p.NodeID, Outcome: audit.Refused, Why: err.Error()})
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	row := wire.Find(r.URL.Path)
	if row == nil || !row.ForUsers() {
		call := "" // one of ours, and not whatever it has thought of
		if row != nil {
			call = row.Path()
		}
		err = fmt.Errorf("%w: this call is not for clients", wire.ErrDenied)
		n.audit.often("client call", c, call, err)
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	user := holder{name: c.User.Name, root: c.User.UID == 0}
	if err := n.visitors.enter(user); err != nil {
		n.audit.often("client call", c, "", err)
		wire.Refuse(w, err)
		return
	}
	defer n.visitors.leave(user)
	own := row.Own || row.Audit != ""
	ctx := wire.WithEnd(wire.WithCaller(r.Context(), c), func(reached bool, err error) {
		if reached && (own || errors.Is(err, context.Canceled)) {
			err = nil // told elsewhere, or read for as long as its reader liked
		}
		if !reached || !own {
			n.audit.often("client call", c, row.Name, err)
		}
	})
	r = r.WithContext(ctx)
	defer n.visitors.meter(user, r)()
	n.server().ServeHTTP(w, r)
}

// mayInvite says for which user a caller may have a client's token made.
func (n *node) mayInvite(ctx context.Context, c wire.Caller, r wire.TokenRequest) (string, error) {
	switch {
	case r.Uses != 1:
		return "", fmt.Errorf("create token: one for a client lets in one machine: %w", launcher.ErrInvalid)
	case c.User.UID != 0 && r.TTL > longestInvitation:
		return "", fmt.Errorf("create token: %w: --ttl %s: it may be good for %s at most", launcher.ErrInvalid, r.TTL, longestInvitation)
	case c.User.UID != 0 && n.record.TokensOf(c.User.Name) >= tokensOfUser:
		return "", fmt.Errorf("create token: %w: you have made %d, which are forgotten a day after their end", wire.ErrDenied, tokensOfUser)
	case c.User.UID != 0 && r.User != "" && r.User != c.User.Name:
		return "", fmt.Errorf("create token for %s: %w: only root may invite another user's machine", r.User, wire.ErrDenied)
	case c.User.UID != 0:
		return c.User.Name, nil
	case r.User == "":
		return "", fmt.Errorf("create token: say whose machine it is to let in: --user NAME (--user root for one that may do all that root may): %w", launcher.ErrInvalid)
	case c.Forwarded():
		return r.User, nil // looked up where it was typed: a witness may lead, and have no accounts
	}
	within, cancel := context.WithTimeout(ctx, directoryTimeout)
	defer cancel()
	a, err := agent.FindAccount(within, r.User)
	switch {
	case err != nil:
		return "", fmt.Errorf("create token: %w: %w", launcher.ErrInvalid, err)
	case a.UID == 0 && r.User != rootName:
		return "", fmt.Errorf("create token: %s is root by another name: say --user root: %w", r.User, launcher.ErrInvalid)
	}
	return r.User, nil
}

// login makes a machine a client.
func (l *leadership) login(ctx context.Context, c wire.Caller, r wire.LoginRequest) (wire.LoginResponse, error) {
	n := l.n
	res, err := n.admitClient(ctx, r)
	n.audit.newcomer(audit.Line{What: "login", Who: res.User, On: r.Host, Client: r.Client}, c, err)
	n.log.Info("login", "host", r.Host, "client", r.Client, "user", res.User, "from", c.Addr, "via", c.Host, "error", err)
	return res, err
}

func (n *node) admitClient(ctx context.Context, r wire.LoginRequest) (wire.LoginResponse, error) {
	const another = "make another with `sparkrun token create --role client` on a member"
	l := n.leading.Load()
	token, err := n.record.TokenByHash([]byte(trust.HashSecret(trust.NewSecret(r.Secret))))
	if err != nil {
		return wire.LoginResponse{}, fmt.Errorf("%w: %s", err, another)
	}
	if c, in := n.record.Client(r.Client); in && token.Role == rendezvous.RoleClient && token.User == c.User {
		return n.welcome(ctx, c, r.CSR) // the answer to an earlier try was lost
	}
	if err := token.Check(n.cfg.Now(), rendezvous.RoleClient); err != nil {
		return wire.LoginResponse{}, fmt.Errorf("%w: %s", err, another)
	}
	if token.User == "" {
		return wire.LoginResponse{}, fmt.Errorf("%w: it names no user: %s", rendezvous.ErrTokenRole, another)
	}
	if l == nil {
		return wire.LoginResponse{}, n.noLeader()
	}
	id := launcher.NodeID(r.Client)
	if _, member := n.record.Node(id); member || n.record.WasRemoved(id) {
		return wire.LoginResponse{}, fmt.Errorf("%w: id %s is a member's, or was one's", wire.ErrDenied, r.Client)
	}
	if mine := slices.DeleteFunc(n.record.Clients(), func(c rendezvous.Client) bool { return c.User != token.User }); token.User != rootName && len(mine) >= clientsOfUser {
		return wire.LoginResponse{}, fmt.Errorf("%w: %s has %d clients: `sparkrun client list`, `sparkrun client remove`", wire.ErrDenied, token.User, len(mine))
	}
	client := rendezvous.Client{ID: r.Client, User: token.User, Host: plainName(r.Host)}
	// Signed before it is recorded: a request that cannot be signed costs no token.
	cert, err := n.issueClient(client, r.CSR)
	if err != nil {
		return wire.LoginResponse{}, err
	}
	client.Key = trust.KeyOf(cert).String()
	entry := rendezvous.Entry{Kind: rendezvous.KindLogin, Login: &rendezvous.Login{TokenID: token.ID, Client: client}}
	err = n.failover.Recorder(0).Apply(ctx, entry, func() bool {
		c, in := n.record.Client(client.ID)
		return in && c.Key == client.Key
	})
	if err != nil {
		return wire.LoginResponse{}, err
	}
	return n.welcome(ctx, client, r.CSR)
}

// welcome answers a login of a client that the record has.
func (n *node) welcome(ctx context.Context, client rendezvous.Client, csr []byte) (wire.LoginResponse, error) {
	signed, err := n.signClient(client.ID, csr)
	if err != nil {
		return wire.LoginResponse{}, err
	}
	cluster, _, _ := n.record.Cluster()
	return wire.LoginResponse{Cluster: cluster, User: client.User, Cert: signed.Cert, CACert: n.gate.Identity().CA.Raw,
		Members: n.membersNow(), OnlyOn: n.failover.OnlyHere(ctx)}, nil
}

// membersNow lists the members where they are now, as far as is known.
func (n *node) membersNow() []wire.Member {
	members := slices.Clone(n.rollNow().Members)
	for i, m := range members {
		if now, err := n.whereIs(m.ID); err == nil && now.IsValid() {
			members[i].Addr = now
		}
	}
	return members
}

// issueClient signs a certificate that names the user and the machine.
func (n *node) issueClient(c rendezvous.Client, csr []byte) (*x509.Certificate, error) {
	ca, err := trust.LoadCA(n.cfg.Paths.trust())
	if err != nil {
		return nil, err
	}
	name := plainName(c.User)
	return ca.Issue(csr, c.ID, name[:min(len(name), 23)]+"@"+c.Host, trust.RoleClient, n.cfg.Now())
}

// certNames are what a certificate's name for people may hold.
var certNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// plainName is a machine's own name for itself, fit to be shown.
func plainName(host string) string {
	host = strings.Trim(certNames.ReplaceAllString(host, "-"), "-._")
	if host == "" {
		return "unnamed"
	}
	return host[:min(len(host), 40)]
}

// refresh tells a client where the members are, and its next certificate.
func (n *node) refresh(ctx context.Context, c wire.Caller, r wire.RefreshRequest) (wire.RefreshResponse, error) {
	res := wire.RefreshResponse{User: c.User.Name, Members: n.membersNow()}
	within, cancel := context.WithTimeout(ctx, directoryTimeout)
	defer cancel()
	if a, err := agent.FindAccount(within, c.User.Name); err == nil {
		res.Home = a.Home
	}
	if len(r.CSR) == 0 {
		return res, nil
	}
	signed, err := n.signClient(c.Client.ID, r.CSR)
	if errors.Is(err, wire.ErrRetry) {
		return res, nil
	}
	res.Cert = signed.Cert
	return res, err
}

// signClient renews a client's certificate, for the key that the list has and no
// other; ErrRetry where the CA's key is not here.
func (n *node) signClient(id string, csr []byte) (wire.RenewResponse, error) {
	client, listed := n.clientOnRoll(id)
	if !listed {
		return wire.RenewResponse{}, fmt.Errorf("renew certificate of %s: %w: %w", id, wire.ErrDenied, rendezvous.ErrNoClient)
	}
	cert, err := n.issueClient(client, csr)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wire.RenewResponse{}, fmt.Errorf("%s does not hold the CA's key: %w", n.m.Host, wire.ErrRetry)
	case err != nil:
		return wire.RenewResponse{}, err
	case trust.KeyOf(cert).String() != client.Key:
		return wire.RenewResponse{}, fmt.Errorf("renew certificate of %s@%s: %w: the request is by another key", client.User, client.Host, wire.ErrDenied)
	}
	n.log.Info("certificate signed", "client", id, "user", client.User, "host", client.Host, "ends", cert.NotAfter)
	return wire.RenewResponse{Cert: cert.Raw}, nil
}

// clients lists them all: like jobs, they are no secret among users.
func (l *leadership) clients(ctx context.Context, c wire.Caller, _ wire.Empty) (wire.ClientsResponse, error) {
	n := l.n
	return wire.ClientsResponse{Clients: n.record.Clients()}, n.failover.Raft().Verify(ctx)
}

// removeClients takes clients out: a user's own, for root any. Their connections
// are closed when the list has changed (enforce).
func (l *leadership) removeClients(ctx context.Context, c wire.Caller, r wire.RemoveClientsRequest) (res wire.RemoveClientsResponse, err error) {
	n := l.n
	all := n.record.Clients()
	mine := slices.DeleteFunc(slices.Clone(all), func(l rendezvous.Client) bool { return c.User.UID != 0 && l.User != c.User.Name })
	var gone []rendezvous.Client
	if r.Client != "" {
		one, err := rendezvous.FindClient(mine, r.Client)
		if _, others := rendezvous.FindClient(all, r.Client); err != nil && others == nil {
			return res, fmt.Errorf("remove client %s: %w: it is another user's, for whom root may do that", r.Client, wire.ErrDenied)
		}
		if err != nil {
			return res, err
		}
		gone = append(gone, one)
	} else {
		gone = slices.DeleteFunc(mine, func(l rendezvous.Client) bool { return l.User != r.User })
	}
	if len(gone) == 0 {
		return res, fmt.Errorf("remove the clients of %q: %w", r.User, rendezvous.ErrNoClient)
	}
	for _, l := range gone {
		err := n.failover.Recorder(0).Apply(ctx, rendezvous.Entry{Kind: rendezvous.KindLogout, Logout: l.ID}, func() bool {
			_, in := n.record.Client(l.ID)
			return !in
		})
		if err != nil {
			return res, err
		}
		n.log.Warn("client removed", "client", l.ID, "user", l.User, "host", l.Host, "by", c.User.Name)
		res.Removed = append(res.Removed, l)
	}
	res.OnlyOn = n.failover.OnlyHere(ctx)
	return res, nil
}
