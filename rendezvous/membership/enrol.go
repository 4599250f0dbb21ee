package membership

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Newcomer is a machine that is to become a member. Its enrolment is complete once its identity is written, which
// comes last. It starts nothing.
type Newcomer struct {
	Folder   Folder // which it has claimed
	Addr     netip.AddrPort
	Protocol int
	Now      func() time.Time
	// Enrolment is what it will remember. Found and Join set its id and its cluster.
	Enrolment
}

// Found makes it the first node of a new cluster and gives the cluster's id.
func (n Newcomer) Found() (cluster string, err error) {
	n.Node, n.Cluster = launcher.NodeID(uuid.NewString()), uuid.NewString()
	now := n.Now()
	ca, err := trust.NewCA(n.Cluster, now)
	if err != nil {
		return "", err
	}
	key, csr, err := n.newKey()
	if err != nil {
		return "", err
	}
	cert, err := ca.Issue(csr, string(n.Node), n.Host, trust.RoleNode, now)
	if err != nil {
		return "", err
	}
	id, err := trust.NewIdentity(key, cert.Raw, ca.Cert.Raw)
	if err != nil {
		return "", err
	}
	if err := trust.SaveCA(n.Folder.Trust(), ca); err != nil {
		return "", err
	}
	if err := failover.Enrol(string(n.Folder), launcher.Epoch{N: 1}, true); err != nil {
		return "", err
	}
	first := wire.Trusted{Keyring: wireKeys(trust.Keyring{trust.NewGossipKey(0)})}
	return n.Cluster, n.enrol(id, first)
}

// Joined is what a newcomer learns from its join.
type Joined struct {
	Cluster string
	Leader  string
	OnlyOn  string // the only host that has the join recorded; empty if others have it too
}

// Join makes it a member of the token's cluster, through the first of these addresses (HOST[:PORT]) at which a node
// of that cluster answers.
func (n Newcomer) Join(ctx context.Context, addrs []string, token trust.Token) (Joined, error) {
	n.Node = launcher.NodeID(uuid.NewString())
	key, csr, err := n.newKey()
	if err != nil {
		return Joined{}, err
	}
	res, addr, err := askWhoProves(ctx, n.Now, addrs, token, wire.JoinRequest{
		Secret: token.Secret.Reveal(), CSR: csr, Node: n.Node, Host: n.Host, Addr: n.Addr, Witness: n.Witness,
		Protocol: n.Protocol,
	})
	if err != nil {
		return Joined{}, err
	}
	id, err := trust.NewIdentity(key, res.Cert, res.CACert)
	if err != nil {
		return Joined{}, fmt.Errorf("join the cluster at %s: %w", addr, err)
	}
	if trust.PinOf(id.CA) != token.Pin {
		return Joined{}, fmt.Errorf("join the cluster at %s: %w: the certificate is by another CA than the token's",
			addr, trust.ErrForeign)
	}
	n.Cluster = res.Cluster
	if err := failover.Enrol(string(n.Folder), launcher.Epoch{N: res.Epoch, By: res.EpochBy}, false); err != nil {
		return Joined{}, err
	}
	if err := (dial.Addresses{Peers: res.Peers}).Save(n.Folder.Addresses()); err != nil {
		return Joined{}, err
	}
	if err := n.enrol(id, res.Trusted); err != nil {
		return Joined{}, err
	}
	return Joined{Cluster: n.Cluster, Leader: res.Leader, OnlyOn: res.OnlyOn}, nil
}

// enrol writes the membership; the identity comes last and completes it.
func (n Newcomer) enrol(id *trust.Identity, t wire.Trusted) error {
	folder := n.Folder.Trust()
	if err := trust.SaveGossipKeys(folder, keysOf(t.Keyring)); err != nil {
		return err
	}
	if err := trust.SaveRetired(folder, trust.Retired(keysOf(t.Retired))); err != nil {
		return err
	}
	if len(t.Members.Members) > 0 {
		if err := saveList(folder, t.Members); err != nil {
			return err
		}
	}
	if err := n.save(n.Folder); err != nil {
		return err
	}
	return trust.SaveIdentity(folder, id)
}

func (n Newcomer) newKey() (key trust.Key, csr []byte, err error) {
	if key, err = trust.NewKey(); err == nil {
		csr, err = trust.NewCSR(key, string(n.Node))
	}
	return key, csr, err
}
