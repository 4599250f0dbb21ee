// Package virtualip holds one further address on the management network on whichever machine leads, so that clients
// need to know only one.
//
// It decides when this machine may take the address, and how long it has it: the kernel drops it by itself unless it
// is renewed under the leadership, so that a machine whose agent is dead, stopped or cut off does not keep it.
//
// It must not decide who leads, and serves nothing there.
package virtualip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
)

const (
	// Lifetime is how long the address stays on a machine that no longer renews it; a new leader waits as long before
	// it looks whether the address is free. Whole seconds, as the kernel counts (valid_lft, ip-address(8)).
	Lifetime = 6 * time.Second
	renew    = Lifetime / 3
	// unheard is what of its predecessor's lifetime has passed when a leader begins: a majority has voted that had not
	// heard of the other for raft's heartbeat time-out, and no renewal is later than the proof before it.
	unheard = consensus.DefaultHeartbeat
	// asking is how long arp.Holders takes.
	asking = 1600 * time.Millisecond
	// proveWithin bounds the proof that this node still leads, before each renewal.
	proveWithin = renew / 2
	// again is how long to wait after somebody else answered for the address, soon while that may be its last holder.
	again, soon = 10 * time.Second, time.Second
)

// Network is this machine's management interface.
type Network interface {
	// Has tells whether this machine has the address.
	Has(addr netip.Addr) bool
	// Put gives it the address for so long, or renews it. It fails where no interface has an address of that network.
	Put(addr netip.Prefix, lifetime time.Duration) error
	Drop(addr netip.Prefix) error
	// Holders are the MACs of other machines that answer for it.
	Holders(ctx context.Context, addr netip.Addr) ([]string, error)
	// Announce tells the network that this machine has it.
	Announce(addr netip.Addr) error
}

// Config of the leader's part. All of it is needed.
type Config struct {
	Record *rendezvous.Record
	// Prove returns nil once this node has proven that it leads.
	Prove   func(context.Context) error
	Network Network
	Logger  *slog.Logger
}

// Holder holds the address while this node leads.
type Holder struct {
	cfg Config

	mu   sync.Mutex
	held bool
	why  string // why it is not
}

// New makes the part.
func New(cfg Config) *Holder { return &Holder{cfg: cfg} }

// State tells whether this machine has the address, and why not; both empty: none is set.
func (h *Holder) State() (held bool, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held, h.why
}

func (h *Holder) is(held bool, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if why != "" && why != h.why {
		h.cfg.Logger.Warn("virtual IP is not held", "why", why)
	}
	h.held, h.why = held, why
}

// Run holds whichever address the settings have until ctx, the leadership, ends.
func (h *Holder) Run(ctx context.Context) error {
	earliest := time.Now().Add(Lifetime - unheard) // whoever had it before has lost it by then
	for ctx.Err() == nil {
		settings, changed := h.cfg.Record.Gateway()
		recorded := h.cfg.Record.Changed()
		addr := settings.VirtualIP
		few := len(h.cfg.Record.Nodes()) < rendezvous.VirtualIPLeast
		switch {
		case !addr.IsValid():
			h.is(false, "")
		case few:
			h.is(false, fmt.Sprintf("the cluster has fewer than %d machines", rendezvous.VirtualIPLeast))
		default:
			if err := h.hold(ctx, addr, earliest, changed); err != nil && ctx.Err() == nil {
				h.is(false, err.Error())
				pause := again
				if time.Since(earliest) < soon {
					pause = soon
				}
				if !wait(ctx, pause, changed) {
					return ctx.Err()
				}
			}
			continue
		}
		if !few {
			recorded = nil
		}
		select {
		case <-changed:
		case <-recorded:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// wait returns false when ctx has ended, and early when the settings change.
func wait(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-changed:
	case <-ctx.Done():
		return false
	}
	return true
}

// hold takes the address and keeps it until the settings change; then, and when the leadership ends, it is dropped.
func (h *Holder) hold(ctx context.Context, addr netip.Prefix, earliest time.Time, changed <-chan struct{}) error {
	n := h.cfg.Network
	defer func() {
		if n.Has(addr.Addr()) {
			if err := n.Drop(addr); err != nil {
				h.cfg.Logger.Error("drop virtual IP", "addr", addr, "error", err)
			}
		}
		h.is(false, "")
	}()
	if !n.Has(addr.Addr()) { // else it was here a moment ago, and is nowhere else
		h.is(false, "it is taken once an earlier holder has lost it")
		if !wait(ctx, time.Until(earliest.Add(-asking)), changed) || closed(changed) {
			return ctx.Err()
		}
		holders, err := n.Holders(ctx, addr.Addr())
		switch {
		case err != nil:
			return fmt.Errorf("ask who has %s: %w", addr.Addr(), err)
		case len(holders) > 0:
			return fmt.Errorf("%s is another machine's: %s answers for it", addr.Addr(), strings.Join(holders, ", "))
		}
		if !wait(ctx, time.Until(earliest), changed) || closed(changed) {
			return ctx.Err()
		}
	}
	announced := 0
	for {
		began := time.Now()
		proof, cancel := context.WithTimeout(ctx, proveWithin)
		err := h.cfg.Prove(proof)
		cancel()
		switch {
		case err == nil:
			if err := n.Put(addr, Lifetime-time.Since(began)); err != nil {
				return fmt.Errorf("put %s on this machine: %w", addr, err)
			}
			h.is(true, "")
		case !n.Has(addr.Addr()):
			return errors.New("this machine could not prove that it leads")
		}
		if announced < 2 { // RFC 5227's ANNOUNCE_NUM
			if err := n.Announce(addr.Addr()); err != nil {
				h.cfg.Logger.Warn("announce virtual IP", "addr", addr, "error", err)
			}
			if announced++; announced == 1 {
				h.cfg.Logger.Info("virtual IP is here", "addr", addr)
			}
		}
		if !wait(ctx, renew, changed) {
			return ctx.Err()
		}
		if closed(changed) {
			var now rendezvous.Gateway
			if now, changed = h.cfg.Record.Gateway(); now.VirtualIP != addr {
				return nil
			}
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
