package gateway

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// authority makes the gateway's CA, or adds to the one that there is. Its key is opened for a moment, on the leader.
func (l *Leader) authority(names []string, old *rendezvous.GatewayCA) (*rendezvous.GatewayCA, error) {
	made := &rendezvous.GatewayCA{}
	if old != nil {
		made.Names = slices.Clone(old.Names)
	}
	for _, name := range names {
		if name = strings.ToLower(name); !slices.Contains(made.Names, name) {
			made.Names = append(made.Names, name)
		}
	}
	if err := (rendezvous.GatewayChange{CA: made}).Validate(); err != nil {
		return nil, err
	}
	sealer, err := l.Sealer()
	if err != nil {
		return nil, err
	}
	cluster, _, _ := l.Record.Cluster()
	var ca *trust.GatewayCA
	if old == nil {
		ca, err = trust.NewGatewayCA(cluster, l.reach(made.Names), time.Now())
	} else if ca, err = opened(sealer, old); err == nil {
		ca, err = ca.Extended(cluster, l.reach(made.Names), time.Now())
	}
	if err != nil {
		return nil, err
	}
	made.Cert = ca.Cert.Raw
	made.Key, err = ca.Seal(sealer)
	return made, err
}

func opened(sealer trust.Sealer, ca *rendezvous.GatewayCA) (*trust.GatewayCA, error) {
	out, err := trust.OpenGatewayCA(sealer, ca.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: `sudo sparkrun gateway ca rm` and then `ca create` make another", err)
	}
	return out, nil
}

// reach is what the cluster's gateways may be called: the members' names, those given, and the networks that members'
// management addresses are in: an address that changes, or is added, is one of the same network.
func (l *Leader) reach(given []string) (r trust.GatewayReach) {
	nodes := l.Record.Nodes()
	for _, n := range nodes {
		r.Names = append(r.Names, namesOf(n.Host)...)
	}
	names, addrs := apart(given)
	r.Names = append(r.Names, names...)
	slices.Sort(r.Names)
	r.Names = slices.Compact(r.Names)

	roster, _ := l.Roster()
	for _, m := range roster {
		at := m.Addr.Addr()
		nic, _ := m.Inventory.Holder(at)
		for _, p := range nic.Addresses {
			if p.Addr() == at {
				r.Nets = append(r.Nets, p.Masked())
			}
		}
	}
	for _, n := range nodes { // a machine that is away has told no network
		addrs = append(addrs, n.Addr.Addr())
	}
	for _, at := range addrs {
		if at.IsValid() && !r.HasAddr(at) {
			r.Nets = append(r.Nets, netip.PrefixFrom(at, at.BitLen()))
		}
	}
	slices.SortFunc(r.Nets, func(a, b netip.Prefix) int { // the widest first
		return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	var nets []netip.Prefix
	for _, n := range r.Nets {
		if !slices.ContainsFunc(nets, func(wide netip.Prefix) bool { return wide.Contains(n.Addr()) }) {
			nets = append(nets, n)
		}
	}
	r.Nets = nets
	return r
}

// namesOf are a member's names: that of the host, and the one that it has by mDNS.
func namesOf(host string) []string {
	host = strings.ToLower(host)
	switch {
	case !rendezvous.IsHostName(host):
		return nil
	case strings.Contains(host, "."):
		return []string{host}
	}
	return []string{host, host + ".local"}
}

// apart are the names and the addresses of what was given.
func apart(given []string) (names []string, addrs []netip.Addr) {
	for _, name := range given {
		if at, err := netip.ParseAddr(name); err == nil {
			addrs = append(addrs, at.Unmap())
		} else {
			names = append(names, name)
		}
	}
	return names, addrs
}

// maxAddrs is how many addresses a member's certificate may have beside those of all members.
const maxAddrs = 16

// sign signs the certificate of the member that the connection proves: for its own name, for those that all members
// have, and for addresses that no other member has.
func (l *Leader) sign(_ context.Context, c wire.Caller, r wire.SignGatewayRequest) (wire.SignGatewayResponse, error) {
	settings, _ := l.Record.Gateway()
	if settings.CA == nil {
		return wire.SignGatewayResponse{}, rendezvous.ErrNoGatewayCA
	}
	member, ok := l.Record.Node(c.Node)
	if !ok {
		return wire.SignGatewayResponse{}, fmt.Errorf("sign a gateway's certificate: %w: %s", rendezvous.ErrNoNode, c.Host)
	}
	sealer, err := l.Sealer()
	if err != nil {
		return wire.SignGatewayResponse{}, err
	}
	ca, err := opened(sealer, settings.CA)
	if err != nil {
		return wire.SignGatewayResponse{}, err
	}
	names, addrs := apart(settings.CA.Names)
	names = append(namesOf(member.Host), names...)
	if v := settings.VirtualIP; v.IsValid() {
		addrs = append(addrs, v.Addr())
	}
	for _, at := range r.Addrs[:min(len(r.Addrs), maxAddrs)] {
		if !slices.ContainsFunc(l.Record.Nodes(), func(n rendezvous.Node) bool {
			return n.ID != member.ID && n.Addr.Addr() == at
		}) {
			addrs = append(addrs, at)
		}
	}
	reach := trust.GatewayNames(ca.Cert)
	names = slices.DeleteFunc(names, func(name string) bool { return !reach.HasName(name) })
	addrs = slices.DeleteFunc(addrs, func(at netip.Addr) bool { return !reach.HasAddr(at) })
	if len(names)+len(addrs) == 0 {
		return wire.SignGatewayResponse{}, fmt.Errorf("%s is not among the names of the gateway's CA: "+
			"`sudo sparkrun gateway ca create` adds it", member.Host)
	}
	cert, err := ca.Issue(r.CSR, names, addrs, time.Now())
	if err != nil {
		return wire.SignGatewayResponse{}, err
	}
	l.Logger.Info("gateway's certificate signed", "node", member.Host, "names", names, "addrs", addrs,
		"ends", cert.NotAfter)
	return wire.SignGatewayResponse{Cert: cert.Raw}, nil
}

// showCA is the CA as users see it.
func (l *Leader) showCA(ca *rendezvous.GatewayCA) (*wire.GatewayCA, error) {
	if ca == nil {
		return nil, nil
	}
	cert, err := x509.ParseCertificate(ca.Cert)
	if err != nil {
		return nil, fmt.Errorf("read the gateway's CA: %w", err)
	}
	out := &wire.GatewayCA{Until: cert.NotAfter, Names: append([]string{}, ca.Names...), Missing: []string{},
		Cert: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Cert}))}
	reach := trust.GatewayNames(cert)
	out.Permits = append(out.Permits, reach.Names...)
	for _, n := range reach.Nets {
		out.Permits = append(out.Permits, n.String())
	}
	for _, n := range l.Record.Nodes() {
		unnamed := slices.ContainsFunc(namesOf(n.Host), func(name string) bool { return !reach.HasName(name) })
		if at := n.Addr.Addr(); unnamed || at.IsValid() && !reach.HasAddr(at) {
			out.Missing = append(out.Missing, n.Host)
		}
	}
	return out, nil
}
