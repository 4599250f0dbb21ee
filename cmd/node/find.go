package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/sparkrun/sparkrun/rendezvous/discover"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// Finding is what Find heard. None of it is verified.
type Finding struct {
	NIC      string // management's, where it listened
	Clusters []discover.Cluster
}

// Find listens for clusters on the management link, for some seconds, on a machine that
// is in none. It connects to nothing.
func Find(ctx context.Context, cfg Config) (Finding, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Finding{}, err
	}
	if err := cfg.Paths.Folder().MustBeFree(); err != nil {
		return Finding{}, err
	}
	_, _, mgmt, err := hardware(ctx, cfg)
	if err != nil {
		return Finding{}, err
	}
	on, err := discover.LinkOf(mgmt.NIC, mgmt.Addr)
	if err != nil {
		return Finding{}, err
	}
	found, err := discover.Browse(ctx, discover.Members, []discover.Link{on})
	if err != nil {
		return Finding{}, err
	}
	return Finding{NIC: mgmt.NIC, Clusters: discover.Clusters(found)}, nil
}

// FindSSH listens for some seconds for hosts with an SSH server on every interface except
// the fabric's, since nobody knows yet where the hosts are. It connects to nothing.
func FindSSH(ctx context.Context) ([]discover.Instance, error) {
	links, err := discover.Links()
	if err != nil {
		return nil, err
	}
	if inv, err := Survey(ctx); err == nil { // otherwise this machine is a PC, not a Spark
		links = slices.DeleteFunc(links, func(on discover.Link) bool {
			nic, ok := inv.NIC(on.Name)
			return ok && inv.FabricNIC(nic)
		})
	}
	found, err := discover.Browse(ctx, discover.SSH, links)
	// A host is heard twice where two interfaces lead to one network.
	return slices.CompactFunc(found,
		func(a, b discover.Instance) bool { return a.Host == b.Host && a.Addr == b.Addr }), err
}

// JoinFound joins a cluster that has been found, if the token belongs to the CA that it
// announces; otherwise it connects to nothing. Its hosts are tried side by side until one
// has proven to be of that CA, as in Join; only that one gets the secret.
func JoinFound(ctx context.Context, cfg Config, c discover.Cluster, tokenText string) (Joined, error) {
	token, err := trust.ParseToken(tokenText)
	if err != nil {
		return Joined{}, err
	}
	if pin := token.Pin.String(); pin != c.CA {
		return Joined{}, fmt.Errorf("join cluster %s: %w: it announces the CA %s, and the token is of a cluster with the "+
			"CA %s: "+
			"one of the two is not the one you mean; nothing was sent", c.ID, trust.ErrForeign, c.CA, pin)
	}
	var addrs []string
	for _, m := range c.Members {
		addrs = append(addrs, m.Addr.String())
	}
	return join(ctx, cfg, addrs, token)
}
