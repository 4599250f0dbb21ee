package node

import (
	"context"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// renewRetry is the pause between tries to renew a certificate. There are ten
// days of them before it ends.
const renewRetry = 10 * time.Minute

// keepCertificate renews this node's certificate when two thirds of its time
// are over. The clock is looked at again each hour: it may be set, or the
// machine suspended, while a timer sleeps.
func (n *node) keepCertificate(ctx context.Context) error {
	for {
		wait := min(time.Until(n.gate.Identity().RenewAt()), time.Hour)
		if wait <= 0 {
			if err := n.renewNow(ctx); err != nil {
				n.log.Warn("renew certificate", "ends", n.gate.Identity().Cert.NotAfter, "error", err)
				wait = renewRetry
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// renewNow asks the leader for a certificate over the key this node has.
func (n *node) renewNow(ctx context.Context) error {
	old := n.gate.Identity()
	csr, err := old.CSR()
	if err != nil {
		return err
	}
	var res wire.RenewResponse
	if n.leading.Load() != nil {
		res, err = n.renew(ctx, wire.Caller{Node: n.m.Node, Host: n.m.Host}, wire.RenewRequest{CSR: csr})
	} else if id := n.leaderID(); id != "" {
		res, err = n.peers.client(id).Renew(ctx, wire.RenewRequest{CSR: csr})
	} else {
		err = n.noLeader()
	}
	if err != nil {
		return err
	}
	id, err := old.Renewed(res.Cert)
	if err != nil {
		return err
	}
	if err := trust.SaveIdentity(n.cfg.Paths.trust(), id); err != nil {
		return err
	}
	n.log.Info("certificate renewed", "ends", id.Cert.NotAfter)
	return n.gate.Renew(id)
}

// renew signs a member's new certificate: for the node that the connection
// proves, whatever the request says.
func (n *node) renew(_ context.Context, c wire.Caller, r wire.RenewRequest) (wire.RenewResponse, error) {
	if n.leading.Load() == nil {
		return wire.RenewResponse{}, fmt.Errorf("%s does not lead: %w", n.m.Host, wire.ErrRetry)
	}
	ca, err := trust.LoadCA(n.cfg.Paths.trust())
	if err != nil {
		return wire.RenewResponse{}, err
	}
	cert, err := ca.Issue(r.CSR, string(c.Node), n.hostOf(c.Node), trust.RoleNode, time.Now())
	if err != nil {
		return wire.RenewResponse{}, err
	}
	n.log.Info("certificate signed", "node", c.Node, "host", n.hostOf(c.Node), "ends", cert.NotAfter)
	return wire.RenewResponse{Cert: cert.Raw}, nil
}
