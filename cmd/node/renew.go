package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// renewRetry is the pause between tries to renew a certificate. There are ten
	// days of them before it ends.
	renewRetry = 10 * time.Minute
	// renewExpiredRetry is the same once it has ended: the node is nobody until then.
	renewExpiredRetry = 2 * time.Second
	// renewExpiredWithin bounds asking one member.
	renewExpiredWithin = 5 * time.Second
)

// keepCertificate renews this node's certificate when two thirds of its time
// are over. The clock is looked at again each hour: it may be set, or the
// machine suspended, while a timer sleeps.
func (n *node) keepCertificate(ctx context.Context) error {
	said := ""
	for {
		id, now := n.gate.Identity(), n.cfg.Now()
		wait := min(id.RenewAt().Sub(now), time.Hour)
		if wait <= 0 {
			wait = 0 // look again
			if err := n.renewNow(ctx); err != nil {
				wait = renewRetry
				if now.After(id.Cert.NotAfter) {
					wait = renewExpiredRetry
				}
				if err.Error() != said {
					said = err.Error()
					n.log.Warn("renew certificate", "ends", id.Cert.NotAfter, "error", err)
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

// renewAlone is the first thing of a node that holds the CA's key and whose
// certificate is due: where all of them have ended there is nobody to ask.
func (n *node) renewAlone(id *trust.Identity) (*trust.Identity, error) {
	if n.cfg.Now().Before(id.RenewAt()) {
		return id, nil
	}
	fresh, err := n.signOwn(id)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil // keepCertificate asks others
	}
	return fresh, err
}

// signOwn renews this node's certificate with the CA's key that lies here; it
// wraps fs.ErrNotExist where none does.
func (n *node) signOwn(old *trust.Identity) (*trust.Identity, error) {
	ca, err := trust.LoadCA(n.cfg.Paths.trust())
	if err != nil {
		return nil, err
	}
	csr, err := old.CSR()
	if err != nil {
		return nil, err
	}
	cert, err := ca.Issue(csr, old.NodeID, old.Host, old.Role, n.cfg.Now())
	if err != nil {
		return nil, err
	}
	return n.keepIdentity(old, cert.Raw)
}

// keepIdentity saves the next certificate of this node's key.
func (n *node) keepIdentity(old *trust.Identity, cert []byte) (*trust.Identity, error) {
	id, err := old.Renewed(cert)
	if err != nil {
		return nil, err
	}
	if err := trust.SaveIdentity(n.cfg.Paths.trust(), id); err != nil {
		return nil, err
	}
	n.log.Info("certificate renewed", "ended", old.Cert.NotAfter, "ends", id.Cert.NotAfter)
	return id, nil
}

// renewNow gets a certificate over the key this node has: from its own copy of
// the CA's key, from the leader, or where the old one has ended from any member
// that holds that key.
func (n *node) renewNow(ctx context.Context) error {
	old := n.gate.Identity()
	id, err := n.signOwn(old)
	if errors.Is(err, fs.ErrNotExist) {
		var cert []byte
		if cert, err = n.askToRenew(ctx, old); err == nil {
			id, err = n.keepIdentity(old, cert)
		}
	}
	if err != nil {
		return err
	}
	return n.gate.Renew(id)
}

func (n *node) askToRenew(ctx context.Context, old *trust.Identity) ([]byte, error) {
	csr, err := old.CSR()
	if err != nil {
		return nil, err
	}
	if n.cfg.Now().After(old.Cert.NotAfter) {
		return n.askAsStranger(ctx, old, csr)
	}
	id := n.failover.Leader()
	if id == "" || id == n.m.Node {
		return nil, n.noLeader()
	}
	res, err := wire.Renew.Call(ctx, n.dial.Client(id), wire.RenewRequest{CSR: csr})
	return res.Cert, err
}

// askAsStranger asks every address at which a member may be. No certificate is
// shown; who answers must be of the CA that this node knows.
func (n *node) askAsStranger(ctx context.Context, old *trust.Identity, csr []byte) ([]byte, error) {
	addrs := n.wherever()
	if len(addrs) == 0 {
		return nil, errors.New("ask for a certificate in place of the one that has ended: no member's address is known")
	}
	return renewAsStranger(ctx, n.cfg.Now, old, csr, addrs)
}

// renewAsStranger asks at all addresses at once.
func renewAsStranger(ctx context.Context, now func() time.Time, old *trust.Identity, csr []byte, addrs []netip.AddrPort) ([]byte, error) {
	certs, errs := make([][]byte, len(addrs)), make([]error, len(addrs))
	each(len(addrs), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, renewExpiredWithin)
		defer cancel()
		tr := &http.Transport{TLSClientConfig: trust.JoinClient(trust.PinOf(old.CA), now, dial.Calls), Protocols: http2Only()}
		c := wire.NewClient(&http.Client{Transport: tr}, "https://"+addrs[i].String())
		defer c.Close()
		res, err := wire.RenewExpired.Call(ctx, c, wire.RenewExpiredRequest{Cert: old.Cert.Raw, CSR: csr})
		if err != nil {
			err = fmt.Errorf("%s: %w", addrs[i], err)
		}
		certs[i], errs[i] = res.Cert, err
	})
	for _, cert := range certs {
		if len(cert) > 0 {
			return cert, nil
		}
	}
	return nil, fmt.Errorf("ask for a certificate in place of the one that has ended: %w", errors.Join(errs...))
}

// wherever lists where members may be, by all that this node remembers.
func (n *node) wherever() (out []netip.AddrPort) {
	seen := map[netip.AddrPort]bool{}
	add := func(a netip.AddrPort) {
		if a.IsValid() && !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
	}
	for _, m := range n.rollNow().Members {
		if m.ID != n.m.Node {
			add(m.Addr)
			if now, err := n.dial.Locate(m.ID); err == nil {
				add(now)
			}
		}
	}
	for _, p := range n.dial.Remembered().Peers {
		add(netip.AddrPortFrom(p.Addr(), uint16(n.m.RPCPort)))
	}
	return out
}

// renew signs a member's new certificate: for the node that the connection
// proves, whatever the request says.
func (l *leadership) renew(_ context.Context, c wire.Caller, r wire.RenewRequest) (wire.RenewResponse, error) {
	return l.n.sign(c.Node, r.CSR)
}

func (n *node) sign(id launcher.NodeID, csr []byte) (wire.RenewResponse, error) {
	ca, err := trust.LoadCA(n.cfg.Paths.trust())
	if err != nil {
		return wire.RenewResponse{}, err
	}
	cert, err := ca.Issue(csr, string(id), n.dial.HostOf(id), trust.RoleNode, n.cfg.Now())
	if err != nil {
		return wire.RenewResponse{}, err
	}
	n.log.Info("certificate signed", "node", id, "host", n.dial.HostOf(id), "ends", cert.NotAfter)
	return wire.RenewResponse{Cert: cert.Raw}, nil
}

// renewExpired signs a new certificate for a node whose old one has ended: that
// was of this cluster, the request is by the same key, and the record, or the
// roll, lists the node with it.
func (n *node) renewExpired(_ context.Context, c wire.Caller, r wire.RenewExpiredRequest) (res wire.RenewResponse, err error) {
	l := audit.Line{What: "renew expired", From: c.Addr}
	defer func() {
		if l.Outcome = outcomeOf(err); err == nil {
			n.audit.Add(l)
			return
		}
		l.Why = err.Error()
		n.audit.Unauthenticated(l)
	}()
	peer, key, err := trust.RenewalPeer(n.gate.Identity().CA, r.Cert, r.CSR)
	if err != nil {
		return res, fmt.Errorf("%w: %w", wire.ErrDenied, err)
	}
	l.Who, l.On = peer.Host, peer.NodeID
	if _, listed := n.onRoll(launcher.NodeID(peer.NodeID)); !listed && peer.Role == trust.RoleNode {
		return res, fmt.Errorf("renew certificate of %s: %w: it is not a member", peer.Host, wire.ErrDenied)
	}
	if err := n.admits(peer, key); err != nil {
		return res, fmt.Errorf("renew certificate of %s: %w: %w", peer.Host, wire.ErrDenied, err)
	}
	if peer.Role == trust.RoleClient {
		return n.signClient(peer.NodeID, r.CSR)
	}
	if res, err = n.sign(launcher.NodeID(peer.NodeID), r.CSR); errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s does not hold the CA's key: %w", n.m.Host, wire.ErrRetry)
	}
	return res, err
}
