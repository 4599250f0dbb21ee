package gateway

import (
	"context"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// show adds to the leader's answer where the gateway of the member that is asked listens.
func (g *Gateway) show(ctx context.Context, _ wire.Caller, r wire.Empty,
	ask wire.Ask[wire.Empty, wire.GatewayResponse]) (wire.GatewayResponse, error) {
	res, err := ask(ctx, r)
	if err != nil {
		return res, err
	}
	now := g.Listening()
	res.Member = wire.GatewayMember{Host: g.cfg.Host, Addrs: now.Addrs, TLS: g.shown() != nil, Files: g.certificate != nil}
	if now.Err != nil {
		res.Member.Problem = now.Err.Error()
	}
	return res, nil
}
