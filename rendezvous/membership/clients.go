package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Clients are users' machines that are not members. What they may do, and how that is
// revoked, is in rendezvous/trust/DESIGN.md, "Clients".

// What one user, except root, can make the cluster keep for clients. Every member keeps
// the list of clients and the record; the listener counts the connections of each client.
const (
	clientsOfUser     = 100
	tokensOfUser      = 100 // in the record, which forgets them a day after they expire
	longestInvitation = 24 * time.Hour
)

// accountWithin bounds looking up a user: a directory server may hang.
const accountWithin = 5 * time.Second

const rootName = "root"

// mayInvite says for which user a caller may create a client token.
func (m *Membership) mayInvite(ctx context.Context, c wire.Caller, r wire.TokenRequest) (string, error) {
	switch {
	case r.Uses != 1:
		return "", fmt.Errorf("create token: a token for clients admits one machine: %w", launcher.ErrInvalid)
	case c.User.UID != 0 && r.TTL > longestInvitation:
		return "", fmt.Errorf("create token: %w: --ttl %s: it may be valid for %s at most",
			launcher.ErrInvalid, r.TTL, longestInvitation)
	case c.User.UID != 0 && m.cfg.Record.TokensOf(c.User.Name) >= tokensOfUser:
		return "", fmt.Errorf("create token: %w: you have made %d, which are forgotten a day after they expire",
			wire.ErrDenied, tokensOfUser)
	case c.User.UID != 0 && r.User != "" && r.User != c.User.Name:
		return "", fmt.Errorf("create token for %s: %w: only root may invite another user's machine", r.User, wire.ErrDenied)
	case c.User.UID != 0:
		return c.User.Name, nil
	case r.User == "":
		return "", fmt.Errorf("create token: say whose machine it admits: "+
			"--user NAME (--user root for one that may do everything): %w", launcher.ErrInvalid)
	case c.Forwarded():
		return r.User, nil // looked up where the user typed it: the leader may be a witness without accounts
	}
	within, cancel := context.WithTimeout(ctx, accountWithin)
	defer cancel()
	a, err := login.Find(within, r.User)
	switch {
	case err != nil:
		return "", fmt.Errorf("create token: %w: %w", launcher.ErrInvalid, err)
	case a.UID == 0 && r.User != rootName:
		return "", fmt.Errorf("create token: %s is another name of root: use --user root: %w", r.User, launcher.ErrInvalid)
	}
	return r.User, nil
}

// login makes a machine a client.
func (l *Leader) login(ctx context.Context, c wire.Caller, r wire.LoginRequest) (wire.LoginResponse, error) {
	m := l.m
	res, err := l.admitClient(ctx, r)
	m.cfg.Audit.Newcomer(audit.Line{What: "login", Who: res.User, On: r.Host, Client: r.Client}, c, err)
	m.log.Info("login", "host", r.Host, "client", r.Client, "user", res.User, "from", c.Addr, "via", c.Host, "error", err)
	return res, err
}

func (l *Leader) admitClient(ctx context.Context, r wire.LoginRequest) (wire.LoginResponse, error) {
	const another = "make another with `sparkrun token create --role client` on a member"
	m := l.m
	token, err := m.cfg.Record.TokenByHash([]byte(trust.HashSecret(trust.NewSecret(r.Secret))))
	if err != nil {
		return wire.LoginResponse{}, fmt.Errorf("%w: %s", err, another)
	}
	if c, in := m.cfg.Record.Client(r.Client); in && token.Role == rendezvous.RoleClient && token.User == c.User {
		return m.welcome(ctx, c, r.CSR) // the answer to an earlier request was lost
	}
	if err := token.Check(m.List.cfg.Now(), rendezvous.RoleClient); err != nil {
		return wire.LoginResponse{}, fmt.Errorf("%w: %s", err, another)
	}
	if token.User == "" {
		return wire.LoginResponse{}, fmt.Errorf("%w: it names no user: %s", rendezvous.ErrTokenRole, another)
	}
	id := launcher.NodeID(r.Client)
	if _, member := m.cfg.Record.Node(id); member || m.cfg.Record.WasRemoved(id) {
		return wire.LoginResponse{}, fmt.Errorf("%w: id %s is or was a member's", wire.ErrDenied, r.Client)
	}
	mine := slices.DeleteFunc(m.cfg.Record.Clients(), func(c rendezvous.Client) bool { return c.User != token.User })
	if token.User != rootName && len(mine) >= clientsOfUser {
		return wire.LoginResponse{}, fmt.Errorf("%w: %s has %d clients: `sparkrun client list`, `sparkrun client remove`",
			wire.ErrDenied, token.User, len(mine))
	}
	client := rendezvous.Client{ID: r.Client, User: token.User, Host: plainName(r.Host)}
	// Signed before it is recorded: a request that cannot be signed costs no token.
	cert, err := m.issueClient(client, r.CSR)
	if err != nil {
		return wire.LoginResponse{}, err
	}
	client.Key = trust.KeyOf(cert).String()
	entry := rendezvous.Entry{Kind: rendezvous.KindLogin, Login: &rendezvous.Login{TokenID: token.ID, Client: client}}
	err = m.record(ctx, entry, func() bool {
		c, in := m.cfg.Record.Client(client.ID)
		return in && c.Key == client.Key
	})
	if err != nil {
		return wire.LoginResponse{}, err
	}
	return m.welcome(ctx, client, r.CSR)
}

// welcome answers a login of a client that the record has.
func (m *Membership) welcome(ctx context.Context, client rendezvous.Client, csr []byte) (wire.LoginResponse, error) {
	signed, err := m.signClient(client.ID, csr)
	if err != nil {
		return wire.LoginResponse{}, err
	}
	cluster, _, _ := m.cfg.Record.Cluster()
	return wire.LoginResponse{
		Cluster: cluster, User: client.User, Cert: signed.Cert, CACert: m.List.Gate.Identity().CA.Raw,
		Members: m.membersNow(), OnlyOn: m.cfg.Failover.OnlyHere(ctx),
	}, nil
}

// membersNow lists the members with their current addresses, as far as is known.
func (m *Membership) membersNow() []wire.Member {
	members := slices.Clone(m.List.now().Members)
	for i, o := range members {
		if now, err := m.where(o.ID); err == nil && now.IsValid() {
			members[i].Addr = now
		}
	}
	return members
}

// issueClient signs a certificate that names the user and the machine.
func (m *Membership) issueClient(c rendezvous.Client, csr []byte) (*x509.Certificate, error) {
	ca, err := trust.LoadCA(m.List.cfg.Trust)
	if err != nil {
		return nil, err
	}
	name := plainName(c.User)
	return ca.Issue(csr, c.ID, name[:min(len(name), 23)]+"@"+c.Host, trust.RoleClient, m.List.cfg.Now())
}

// certNames matches what the display name in a certificate may not contain.
var certNames = plain.Pattern(`[^A-Za-z0-9._-]+`)

// plainName is a machine's own name, safe for display.
func plainName(host string) string {
	host = strings.Trim(certNames().ReplaceAllString(host, "-"), "-._")
	if host == "" {
		return "unnamed"
	}
	return host[:min(len(host), 40)]
}

// refresh gives a client the members' addresses and its next certificate.
func (m *Membership) refresh(ctx context.Context, c wire.Caller, r wire.RefreshRequest) (wire.RefreshResponse, error) {
	res := wire.RefreshResponse{User: c.User.Name, Members: m.membersNow()}
	within, cancel := context.WithTimeout(ctx, accountWithin)
	defer cancel()
	if a, err := login.Find(within, c.User.Name); err == nil {
		res.Home = a.Home
	}
	if len(r.CSR) == 0 {
		return res, nil
	}
	signed, err := m.signClient(c.Client.ID, r.CSR)
	if errors.Is(err, wire.ErrRetry) {
		return res, nil
	}
	res.Cert = signed.Cert
	return res, err
}

// signClient renews a client's certificate, only for the key in the list; ErrRetry if the
// CA's key is not here.
func (m *Membership) signClient(id string, csr []byte) (wire.RenewResponse, error) {
	client, listed := m.List.Client(id)
	if !listed {
		return wire.RenewResponse{}, fmt.Errorf("renew certificate of %s: %w: %w", id, wire.ErrDenied, rendezvous.ErrNoClient)
	}
	cert, err := m.issueClient(client, csr)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wire.RenewResponse{}, fmt.Errorf("%s does not hold the CA's key: %w", m.cfg.Self.Host, wire.ErrRetry)
	case err != nil:
		return wire.RenewResponse{}, err
	case trust.KeyOf(cert).String() != client.Key:
		return wire.RenewResponse{}, fmt.Errorf("renew certificate of %s@%s: %w: the request is by another key",
			client.User, client.Host, wire.ErrDenied)
	}
	m.log.Info("certificate signed", "client", id, "user", client.User, "host", client.Host, "ends", cert.NotAfter)
	return wire.RenewResponse{Cert: cert.Raw}, nil
}

// clients lists all clients: like jobs, they are not secret among users.
func (l *Leader) clients(ctx context.Context, c wire.Caller, _ wire.Empty) (wire.ClientsResponse, error) {
	m := l.m
	return wire.ClientsResponse{Clients: m.cfg.Record.Clients()}, m.cfg.Failover.Raft().Verify(ctx)
}

// removeClients removes clients: a user's own, or for root any. Their connections are
// closed when the list has changed (enforce).
func (l *Leader) removeClients(
	ctx context.Context, c wire.Caller, r wire.RemoveClientsRequest,
) (res wire.RemoveClientsResponse, err error) {
	m := l.m
	all := m.cfg.Record.Clients()
	mine := slices.DeleteFunc(slices.Clone(all), func(l rendezvous.Client) bool {
		return c.User.UID != 0 && l.User != c.User.Name
	})
	var gone []rendezvous.Client
	if r.Client != "" {
		one, err := rendezvous.FindClient(mine, r.Client)
		if _, others := rendezvous.FindClient(all, r.Client); err != nil && others == nil {
			return res, fmt.Errorf("remove client %s: %w: it belongs to another user: ask root",
				r.Client, wire.ErrDenied)
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
		err := m.record(ctx, rendezvous.Entry{Kind: rendezvous.KindLogout, Logout: l.ID}, func() bool {
			_, in := m.cfg.Record.Client(l.ID)
			return !in
		})
		if err != nil {
			return res, err
		}
		m.log.Warn("client removed", "client", l.ID, "user", l.User, "host", l.Host, "by", c.User.Name)
		res.Removed = append(res.Removed, l)
	}
	res.OnlyOn = m.cfg.Failover.OnlyHere(ctx)
	return res, nil
}
