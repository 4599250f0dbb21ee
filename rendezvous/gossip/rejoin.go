package gossip

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// settleFirst is the first pause while some peer has a wrong address of this node; it
	// doubles up to RejoinInterval. A moved node is accepted once its old address has
	// been dead for ReclaimAfter.
	settleFirst = time.Second
	// joinsAtOnce bounds the parallel attempts, which may wait for nodes without power.
	joinsAtOnce = 8
	// joinsAPass bounds a pass: one node that answers tells about all others, and 200
	// nodes that start together must not make 40000 exchanges.
	joinsAPass = 16
)

// keepJoined is the rejoin loop.
func (g *Gossip) keepJoined(ctx context.Context) error {
	timer := time.NewTimer(0) // at once
	defer timer.Stop()
	all, pause := true, settleFirst // the first pass asks everybody
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.rejoin:
			all, pause = true, settleFirst
		case <-timer.C:
		}
		g.joinAll(ctx, g.targets(all))
		wait := g.cfg.RejoinInterval
		if all = !g.table.settled(); all {
			wait = min(pause, wait)
			pause *= 2
		} else {
			pause = settleFirst
		}
		// Spread out, so that nodes that lost each other at the same time do not all
		// search at the same time.
		timer.Reset(wait*3/4 + rand.N(wait/2))
	}
}

// targets are known addresses of nodes that are not alive, or of all.
func (g *Gossip) targets(all bool) []netip.AddrPort {
	self := g.table.selfPeer().Gossip()
	alive, seen := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{self: true}
	var out []netip.AddrPort
	add := func(a netip.AddrPort) {
		a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		// An address with a zone would be looked up as a name.
		if a.IsValid() && a.Port() != 0 && a.Addr().Zone() == "" && !seen[a] && (all || !alive[a]) {
			seen[a] = true
			out = append(out, a)
		}
	}
	peers := g.table.peers()
	for _, p := range peers {
		alive[p.Gossip()] = p.Alive
	}
	for _, p := range peers {
		add(p.Gossip())
	}
	for _, a := range g.cfg.Peers() {
		add(a)
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(len(out), joinsAPass)]
}

// joinAll exchanges tables with each address.
func (g *Gossip) joinAll(ctx context.Context, addrs []netip.AddrPort) {
	var group errgroup.Group
	group.SetLimit(joinsAtOnce)
	for _, a := range addrs {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if _, err := g.list.Join([]string{a.String()}); err != nil {
				g.log.Debug("join gossip", "addr", a.String(), "err", err)
			}
			return nil
		})
	}
	_ = group.Wait()
}
