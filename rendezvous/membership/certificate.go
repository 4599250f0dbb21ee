package membership

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// renewRetry is the pause between attempts to renew a certificate. There are ten days
	// for them before it expires.
	renewRetry = 10 * time.Minute
	// renewExpiredRetry is the same after it has expired: until then nobody accepts the node.
	renewExpiredRetry = 2 * time.Second
	// renewExpiredWithin bounds the question to one member.
	renewExpiredWithin = 5 * time.Second
)

// renewAlone comes first on a node that holds the CA's key and whose certificate is due:
// if all certificates have expired there is nobody to ask.
func (l *List) renewAlone(id *trust.Identity) (*trust.Identity, error) {
	if l.cfg.Now().Before(id.RenewAt()) {
		return id, nil
	}
	fresh, err := l.signOwn(id)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil // keepCertificate asks other members
	}
	return fresh, err
}

// signOwn renews this node's certificate with its own copy of the CA's key; the error
// wraps fs.ErrNotExist if there is none.
func (l *List) signOwn(old *trust.Identity) (*trust.Identity, error) {
	ca, err := trust.LoadCA(l.cfg.Trust)
	if err != nil {
		return nil, err
	}
	csr, err := old.CSR()
	if err != nil {
		return nil, err
	}
	cert, err := ca.Issue(csr, old.NodeID, old.Host, old.Role, l.cfg.Now())
	if err != nil {
		return nil, err
	}
	return l.keepIdentity(old, cert.Raw)
}

// keepIdentity saves a new certificate for this node's key.
func (l *List) keepIdentity(old *trust.Identity, cert []byte) (*trust.Identity, error) {
	id, err := old.Renewed(cert)
	if err != nil {
		return nil, err
	}
	if err := trust.SaveIdentity(l.cfg.Trust, id); err != nil {
		return nil, err
	}
	l.cfg.Logger.Info("certificate renewed", "ended", old.Cert.NotAfter, "ends", id.Cert.NotAfter)
	return id, nil
}

// keepCertificate renews this node's certificate when two thirds of its lifetime are
// over. It checks the clock each hour: the clock may be set, or the machine suspended,
// while a timer sleeps.
func (m *Membership) keepCertificate(ctx context.Context) error {
	said := ""
	for {
		id, now := m.List.Gate.Identity(), m.List.cfg.Now()
		wait := min(id.RenewAt().Sub(now), time.Hour)
		if wait <= 0 {
			wait = 0 // check again at once
			if err := m.Renew(ctx); err != nil {
				wait = renewRetry
				if now.After(id.Cert.NotAfter) {
					wait = renewExpiredRetry
				}
				if err.Error() != said {
					said = err.Error()
					m.log.Warn("renew certificate", "ends", id.Cert.NotAfter, "error", err)
				}
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Renew gets a certificate for this node's key: with its own copy of the CA's key, from
// the leader, or, if the old one has expired, from any member that holds the CA's key.
func (m *Membership) Renew(ctx context.Context) error {
	old := m.List.Gate.Identity()
	id, err := m.List.signOwn(old)
	if errors.Is(err, fs.ErrNotExist) {
		var cert []byte
		if cert, err = m.askToRenew(ctx, old); err == nil {
			id, err = m.List.keepIdentity(old, cert)
		}
	}
	if err != nil {
		return err
	}
	return m.List.Gate.Renew(id)
}

func (m *Membership) askToRenew(ctx context.Context, old *trust.Identity) ([]byte, error) {
	csr, err := old.CSR()
	if err != nil {
		return nil, err
	}
	if m.List.cfg.Now().After(old.Cert.NotAfter) {
		return m.askUnauthenticated(ctx, old, csr)
	}
	id := m.cfg.Failover.Leader()
	if id == "" || id == m.cfg.Self.ID {
		return nil, m.NoLeader()
	}
	res, err := wire.Renew.Call(ctx, m.cfg.Dial.Client(id), wire.RenewRequest{CSR: csr})
	return res.Cert, err
}

// askUnauthenticated asks every address at which a member may be. It shows no
// certificate; the other end must have one of the CA that this node knows.
func (m *Membership) askUnauthenticated(ctx context.Context, old *trust.Identity, csr []byte) ([]byte, error) {
	addrs := m.wherever()
	if len(addrs) == 0 {
		return nil, errors.New("ask for a certificate in place of the expired one: no member's address is known")
	}
	return RenewExpired(ctx, m.List.cfg.Now, old, csr, addrs)
}

// RenewExpired asks all addresses in parallel for a certificate in place of one that has expired.
func RenewExpired(
	ctx context.Context, now func() time.Time, old *trust.Identity, csr []byte, addrs []netip.AddrPort,
) ([]byte, error) {
	certs, errs := make([][]byte, len(addrs)), make([]error, len(addrs))
	var all sync.WaitGroup
	for i, at := range addrs {
		all.Go(func() { certs[i], errs[i] = renewExpiredAt(ctx, now, old, csr, at) })
	}
	all.Wait()
	for _, cert := range certs {
		if len(cert) > 0 {
			return cert, nil
		}
	}
	return nil, fmt.Errorf("ask for a certificate in place of the expired one: %w", errors.Join(errs...))
}

func renewExpiredAt(
	ctx context.Context, now func() time.Time, old *trust.Identity, csr []byte, at netip.AddrPort,
) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, renewExpiredWithin)
	defer cancel()
	tr := &http.Transport{
		TLSClientConfig: trust.JoinClient(trust.PinOf(old.CA), now, dial.Calls), Protocols: new(http.Protocols),
	}
	tr.Protocols.SetHTTP2(true)
	c := wire.NewClient(&http.Client{Transport: tr}, "https://"+at.String())
	defer c.Close()
	res, err := wire.RenewExpired.Call(ctx, c, wire.RenewExpiredRequest{Cert: old.Cert.Raw, CSR: csr})
	if err != nil {
		err = fmt.Errorf("%s: %w", at, err)
	}
	return res.Cert, err
}

// wherever lists all addresses at which members may be, as far as this node remembers.
func (m *Membership) wherever() (out []netip.AddrPort) {
	seen := map[netip.AddrPort]bool{}
	add := func(a netip.AddrPort) {
		if a.IsValid() && !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
	}
	for _, other := range m.List.now().Members {
		if other.ID != m.cfg.Self.ID {
			add(other.Addr)
			if now, err := m.cfg.Dial.Locate(other.ID); err == nil {
				add(now)
			}
		}
	}
	for _, p := range m.cfg.Dial.Remembered().Peers {
		add(netip.AddrPortFrom(p.Addr(), m.cfg.Self.RPCPort))
	}
	return out
}

func (m *Membership) sign(id launcher.NodeID, csr []byte) (wire.RenewResponse, error) {
	ca, err := trust.LoadCA(m.List.cfg.Trust)
	if err != nil {
		return wire.RenewResponse{}, err
	}
	host := m.cfg.Dial.HostOf(id)
	cert, err := ca.Issue(csr, string(id), host, trust.RoleNode, m.List.cfg.Now())
	if err != nil {
		return wire.RenewResponse{}, err
	}
	m.log.Info("certificate signed", "node", id, "host", host, "ends", cert.NotAfter)
	return wire.RenewResponse{Cert: cert.Raw}, nil
}

// renewExpired signs a new certificate for a node whose old one has expired: that one was
// of this cluster, the request is for the same key, and the record or the member list has
// the node with this key.
func (m *Membership) renewExpired(
	_ context.Context, c wire.Caller, r wire.RenewExpiredRequest,
) (res wire.RenewResponse, err error) {
	l := audit.Line{What: "renew expired", From: c.Addr}
	defer func() { m.cfg.Audit.WithoutCertificate(l, err) }()
	peer, key, err := trust.RenewalPeer(m.List.Gate.Identity().CA, r.Cert, r.CSR)
	if err != nil {
		return res, fmt.Errorf("%w: %w", wire.ErrDenied, err)
	}
	l.Who, l.On = peer.Host, peer.NodeID
	if m.cfg.Record.WasRemoved(launcher.NodeID(peer.NodeID)) {
		return res, fmt.Errorf("renew certificate: %w: %s %w", wire.ErrDenied, peer.Host, rendezvous.ErrRemoved)
	}
	if _, listed := m.List.member(launcher.NodeID(peer.NodeID)); !listed && peer.Role == trust.RoleNode {
		return res, fmt.Errorf("renew certificate of %s: %w: it is not a member", peer.Host, wire.ErrDenied)
	}
	if err := m.List.admits(peer, key); err != nil {
		return res, fmt.Errorf("renew certificate of %s: %w: %w", peer.Host, wire.ErrDenied, err)
	}
	if peer.Role == trust.RoleClient {
		return m.signClient(peer.NodeID, r.CSR)
	}
	if res, err = m.sign(launcher.NodeID(peer.NodeID), r.CSR); errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s does not hold the CA's key: %w", m.cfg.Self.Host, wire.ErrRetry)
	}
	return res, err
}
