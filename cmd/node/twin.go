package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// ErrCopy: this machine has the state of another, which is there. Both at once
// would vote twice in one election.
var ErrCopy = errors.New("this machine's state is a copy of another's")

// askForTwin is how many members are asked where they see this node: when all
// agents start at once, each asks.
const askForTwin = 3

// lookForTwin bounds the question whether this node runs elsewhere: it must not
// keep an agent from starting when nobody is there to answer.
const lookForTwin = time.Second

// refuseCopy fails if another machine runs as this very node: at the address
// that this state was last used at, or where members see it. It is asked before
// this node takes part in anything; who is there already stays.
func (n *node) refuseCopy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookForTwin)
	defer cancel()
	was, port := n.dial.Remembered(), uint16(n.m.RPCPort)
	peers := slices.Clone(was.Peers)
	rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	peers = peers[:min(len(peers), askForTwin)]
	answers := make(chan netip.AddrPort, 1+len(peers))
	asked := 1
	go func() { answers <- n.twinAt(ctx, netip.AddrPortFrom(was.Own, port)) }() // all end with ctx
	for _, p := range peers {
		asked++
		go func() {
			seen, err := n.seenBy(ctx, netip.AddrPortFrom(p.Addr(), port))
			if err != nil {
				answers <- netip.AddrPort{}
				return
			}
			answers <- n.twinAt(ctx, seen)
		}()
	}
	for range asked {
		if twin := <-answers; twin.IsValid() {
			return n.copied(twin)
		}
	}
	return nil
}

// copied says whose copy this machine has, and what to do.
func (n *node) copied(twin netip.AddrPort) error {
	name, err := os.Hostname()
	if err != nil {
		name = "this machine"
	}
	inv := n.inventory.Load()
	if mgmt, err := envgen.Management(inv, n.cfg.Management); err == nil {
		name += " at " + mgmt.Addr.String()
	}
	return fmt.Errorf("%w: %s has the state of %s, which runs at %s: two machines cannot be one member; on the copy remove %s, then `sparkrun join` it with a token and a name of its own",
		ErrCopy, name, n.m.Host, twin.Addr(), n.cfg.Paths.State)
}

// twinAt gives the address back if this very node answers there, and it is none
// of this machine's.
func (n *node) twinAt(ctx context.Context, at netip.AddrPort) netip.AddrPort {
	inv := n.inventory.Load()
	if _, own := inv.Holder(at.Addr()); own || !at.Addr().IsValid() {
		return netip.AddrPort{}
	}
	c, err := n.openTLS(ctx, at, string(n.m.Node))
	if err != nil {
		return netip.AddrPort{}
	}
	c.Close()
	return at
}

// openTLS connects to a member at an address; any member will do where want is
// empty.
func (n *node) openTLS(ctx context.Context, at netip.AddrPort, want string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	t := tls.Client(c, n.gate.Client(want, dial.Calls))
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// seenBy asks a member where it sees this node; an invalid address if it does
// not.
func (n *node) seenBy(ctx context.Context, at netip.AddrPort) (netip.AddrPort, error) {
	tr := &http.Transport{Protocols: http2Only(), DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return n.openTLS(ctx, at, "")
	}}
	c := wire.NewClient(&http.Client{Transport: tr}, "https://member")
	defer c.Close()
	seen, err := wire.Seen.Call(ctx, c, wire.SeenRequest{})
	return seen.Addr, err
}

// seen tells a member where this node sees it, by gossip: the address of who
// was there first. And it hears of which life the member is.
func (n *node) seen(_ context.Context, c wire.Caller, r wire.SeenRequest) (wire.SeenResponse, error) {
	life, err := n.failover.NoteLife(c.Node, r.Life)
	if err != nil {
		return wire.SeenResponse{}, err
	}
	res := wire.SeenResponse{Life: life, Blank: n.failover.Blank()}
	if id := n.failover.Leader(); id != "" {
		res.Leader = n.dial.HostOf(id)
	}
	for _, p := range n.present.Load() {
		if p.ID == string(c.Node) && p.Alive {
			res.Addr = p.RPC()
		}
	}
	return res, nil
}

// watchForTwin looks again whenever gossip hears of this node elsewhere: two
// that did not see each other at their start may now.
func (n *node) watchForTwin(ctx context.Context) error {
	for {
		select {
		case ev := <-n.conflicts:
			err := n.refuseCopy(ctx)
			if err != nil {
				return err
			}
			if twin := n.twinAt(ctx, ev.Peer.RPC()); twin.IsValid() {
				n.log.Error("another machine has a copy of this node's state", "addr", twin.Addr(), "remedy", "remove "+n.cfg.Paths.State+" there and join it anew")
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// noteConflict takes gossip's word that somebody else claims this node's id.
func (n *node) noteConflict(ev gossip.Event) {
	if ev.Kind != gossip.IDConflict || ev.Peer.ID != string(n.m.Node) {
		return
	}
	select {
	case n.conflicts <- ev:
	default: // it is being looked at
	}
}
