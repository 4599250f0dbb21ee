package node

import (
	"context"
	"net/netip"
	"os"
	"slices"

	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// Founded is what Init made.
type Founded struct {
	Cluster  string
	Host     string
	Addr     netip.AddrPort // management address and RPC port: what others join at
	Warnings []string
}

// Init makes this machine the first node of a new cluster. It only writes the machine's
// state; the agent starts by itself.
func Init(ctx context.Context, cfg Config) (Founded, error) {
	held, machine, warnings, err := cfg.newcomer(ctx)
	if err != nil {
		return Founded{}, err
	}
	defer held.Close()
	machine.Witness = false // the first node must be able to take ranks
	cluster, err := machine.Found()
	return Founded{Cluster: cluster, Host: machine.Host, Addr: machine.Addr, Warnings: warnings}, err
}

// Joined is the result of Join.
type Joined struct {
	membership.Joined
	Host     string
	Addr     netip.AddrPort // this node's
	Warnings []string
}

// Join makes this machine a member of the cluster that has a node at addr (HOST[:PORT])
// and that issued the token. It only writes the machine's state; the agent starts by
// itself.
func Join(ctx context.Context, cfg Config, addr, tokenText string) (Joined, error) {
	token, err := trust.ParseToken(tokenText)
	if err != nil {
		return Joined{}, err
	}
	return join(ctx, cfg, []string{addr}, token)
}

// join uses the address that first answers as a node of the token's cluster.
func join(ctx context.Context, cfg Config, addrs []string, token trust.Token) (Joined, error) {
	ctx, cancel := context.WithTimeout(ctx, membership.JoinTimeout)
	defer cancel()
	held, machine, warnings, err := cfg.newcomer(ctx)
	if err != nil {
		return Joined{}, err
	}
	defer held.Close()
	joined, err := machine.Join(ctx, addrs, token)
	return Joined{Joined: joined, Host: machine.Host, Addr: machine.Addr, Warnings: warnings}, err
}

// newcomer locks this machine's state folder for an enrolment, until the returned file is
// closed. The warnings tell the user about the choices that were made.
func (c Config) newcomer(ctx context.Context) (held *os.File, machine membership.Newcomer, warnings []string,
	err error) {
	if c, err = c.withDefaults(); err != nil {
		return nil, machine, nil, err
	}
	if held, err = c.Paths.Folder().Claim(); err != nil {
		return nil, machine, nil, err
	}
	_, inv, mgmt, err := hardware(ctx, c)
	if err != nil {
		held.Close()
		return nil, machine, nil, err
	}
	warnings = slices.DeleteFunc([]string{mgmt.Warning, inv.UnknownFabricPort()},
		func(text string) bool { return text == "" })
	return held, membership.Newcomer{
		Folder: c.Paths.Folder(), Addr: netip.AddrPortFrom(mgmt.Addr, uint16(c.RPCPort)), Protocol: c.speaks(), Now: c.Now,
		Enrolment: membership.Enrolment{
			Host: c.Host, Management: c.Management, FabricPorts: c.FabricPorts, RPCPort: c.RPCPort, GossipPort: c.GossipPort,
			Witness: c.Witness,
		},
	}, warnings, nil
}
