// Package clone finds a machine that has the state of another, as after a disk was
// copied: together they would vote twice in one election.
//
// It decides which of the two ends: the one that was there first stays. It asks before
// this node takes part in anything, and again when gossip sees this node elsewhere.
//
// It must not keep an agent from starting when nobody answers, and must not believe what
// others say: a clone is a machine that proves to have this node's key.
package clone

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a Finder. All of it is needed except Management.
type Config struct {
	Self       rendezvous.Self
	Management string // as the user gave it
	State      string // the folder that a clone has a copy of
	Gate       *trust.Gate
	Dial       *dial.Dialer
	Inventory  *rendezvous.Latest[envgen.Inventory]
	Logger     *slog.Logger
}

// Finder looks for clones of this node.
type Finder struct {
	cfg       Config
	conflicts chan gossip.Event // machines that claim to be this node; has room for one
}

// New makes a finder.
func New(cfg Config) *Finder { return &Finder{cfg: cfg, conflicts: make(chan gossip.Event, 1)} }

// askAtMost is how many members are asked where they see this node. It is small because
// all agents may start at once.
const askAtMost = 3

// lookWithin bounds the question whether this node runs elsewhere: it must not keep an
// agent from starting when nobody answers.
const lookWithin = time.Second

// Refuse fails if another machine runs as this very node: at the address where this state
// was last used, or where members see it. It is called before this node takes part in
// anything; the one that is there already stays.
func (f *Finder) Refuse(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	was, port := f.cfg.Dial.Remembered(), f.cfg.Self.RPCPort
	peers := slices.Clone(was.Peers)
	rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	peers = peers[:min(len(peers), askAtMost)]
	answers := make(chan netip.AddrPort, 1+len(peers))
	asked := 1
	go func() { answers <- f.cloneAt(ctx, netip.AddrPortFrom(was.Own, port)) }() // all end with ctx
	for _, p := range peers {
		asked++
		go func() {
			seen, err := f.seenBy(ctx, netip.AddrPortFrom(p.Addr(), port))
			if err != nil {
				answers <- netip.AddrPort{}
				return
			}
			answers <- f.cloneAt(ctx, seen)
		}()
	}
	for range asked {
		if clone := <-answers; clone.IsValid() {
			return f.refusal(clone)
		}
	}
	return nil
}

// refusal says whose state this machine has a copy of, and what to do.
func (f *Finder) refusal(clone netip.AddrPort) error {
	name, err := os.Hostname()
	if err != nil {
		name = "this machine"
	}
	inv := f.cfg.Inventory.Load()
	if mgmt, err := envgen.Management(inv, f.cfg.Management); err == nil {
		name += " at " + mgmt.Addr.String()
	}
	return fmt.Errorf("this machine's state is a copy of another's: %s has the state of %s, which runs at %s: two "+
		"machines cannot be one member; on the copy remove %s, then `sparkrun join` it with a token and a name of its own",
		name, f.cfg.Self.Host, clone.Addr(), f.cfg.State)
}

// cloneAt returns the address if this very node answers there and it is not an address of
// this machine.
func (f *Finder) cloneAt(ctx context.Context, at netip.AddrPort) netip.AddrPort {
	inv := f.cfg.Inventory.Load()
	if _, own := inv.Holder(at.Addr()); own || !at.Addr().IsValid() {
		return netip.AddrPort{}
	}
	c, err := f.openTLS(ctx, at, string(f.cfg.Self.ID))
	if err != nil {
		return netip.AddrPort{}
	}
	c.Close()
	return at
}

// openTLS connects to a member at an address; any member will do if want is empty.
func (f *Finder) openTLS(ctx context.Context, at netip.AddrPort, want string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	t := tls.Client(c, f.cfg.Gate.Client(want, dial.Calls))
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// seenBy asks a member where it sees this node; an invalid address if nowhere.
func (f *Finder) seenBy(ctx context.Context, at netip.AddrPort) (netip.AddrPort, error) {
	tr := &http.Transport{
		Protocols:      new(http.Protocols),
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return f.openTLS(ctx, at, "") },
	}
	tr.Protocols.SetHTTP2(true)
	c := wire.NewClient(&http.Client{Transport: tr}, "https://member")
	defer c.Close()
	seen, err := wire.Seen.Call(ctx, c, wire.SeenRequest{})
	return seen.Addr, err
}

// Run looks again whenever gossip sees this node elsewhere: two clones that did not
// see each other at their start may see each other now.
func (f *Finder) Run(ctx context.Context) error {
	for {
		select {
		case ev := <-f.conflicts:
			err := f.Refuse(ctx)
			if err != nil {
				return err
			}
			if clone := f.cloneAt(ctx, ev.Peer.RPC()); clone.IsValid() {
				f.cfg.Logger.Error("another machine has a copy of this node's state", "addr", clone.Addr(), "remedy",
					"remove "+f.cfg.State+" there and join it again")
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Note takes gossip's report that another machine claims this node's id.
func (f *Finder) Note(ev gossip.Event) {
	if ev.Kind != gossip.IDConflict || ev.Peer.ID != string(f.cfg.Self.ID) {
		return
	}
	select {
	case f.conflicts <- ev:
	default: // a check is under way
	}
}
