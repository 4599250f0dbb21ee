package dial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
)

// Addresses are where a node and the members were last. Losing them costs time: an agent
// that starts while management is dead, or comes back alone after months, has no other
// addresses.
type Addresses struct {
	Own   netip.Addr       `json:"addr,omitzero"`   // this node's own, on management
	Peers []netip.AddrPort `json:"peers,omitempty"` // where members gossiped
	// Fabric is where members listened beside management.
	Fabric map[launcher.NodeID][]netip.AddrPort `json:"fabric,omitempty"`
}

// Save keeps addresses in a file, for Open.
func (a Addresses) Save(path string) error {
	b, err := json.MarshalIndent(a, "", "  ")
	if err == nil {
		err = durable.Write(path, append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("remember addresses: %w", err)
	}
	return nil
}

func loadAddresses(path string) (a Addresses, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	if err != nil {
		return a, fmt.Errorf("read addresses %s: %w: remove the file", path, err)
	}
	return a, nil
}

// book keeps the addresses, in memory and on disk.
type book struct {
	path string
	mu   sync.Mutex
	kept Addresses
}

func (b *book) now() Addresses {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept
}

func (b *book) keep(change func(Addresses) (Addresses, bool)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, changed := change(b.kept)
	if !changed {
		return nil
	}
	b.kept = a
	return a.Save(b.path)
}

// Remembered gives the addresses that were last in use.
func (d *Dialer) Remembered() Addresses { return d.book.now() }

// RememberOwn notes the address at which this node is in use.
func (d *Dialer) RememberOwn(addr netip.Addr) {
	err := d.book.keep(func(a Addresses) (Addresses, bool) {
		was := a.Own
		a.Own = addr
		return a, was != addr
	})
	if err != nil {
		d.cfg.Logger.Warn("remember own address", "error", err)
	}
}

// remember keeps the addresses of members that gossip.
func (d *Dialer) remember(ctx context.Context) error {
	for {
		present, changed := d.cfg.Present.Watch()
		if err := d.book.keep(func(a Addresses) (Addresses, bool) { return a.with(present) }); err != nil {
			d.cfg.Logger.Warn("remember peers", "error", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// with merges gossip's current view and tells whether anything is new. An empty view is
// no reason to forget members.
func (a Addresses) with(present []gossip.Peer) (_ Addresses, changed bool) {
	var peers []netip.AddrPort
	fabric := map[launcher.NodeID][]netip.AddrPort{}
	maps.Copy(fabric, a.Fabric)
	for _, p := range present {
		if !p.Alive {
			continue
		}
		peers = append(peers, p.Gossip())
		if at := listenersOf(p); len(at) > 0 {
			fabric[launcher.NodeID(p.ID)] = at
		} else {
			delete(fabric, launcher.NodeID(p.ID))
		}
	}
	if slices.SortFunc(peers, netip.AddrPort.Compare); len(peers) > 0 && !slices.Equal(peers, a.Peers) {
		a.Peers, changed = peers, true
	}
	if !maps.EqualFunc(fabric, a.Fabric, slices.Equal) {
		a.Fabric, changed = fabric, true
	}
	return a, changed
}

// Fabric lists where a member listens on the fabric: from gossip, or what gossip said
// last.
func (d *Dialer) Fabric(id launcher.NodeID) []netip.AddrPort {
	for _, p := range d.cfg.Present.Load() {
		if p.ID == string(id) {
			return listenersOf(p)
		}
	}
	return d.book.now().Fabric[id]
}

func listenersOf(p gossip.Peer) (out []netip.AddrPort) {
	for _, a := range p.Meta.FabricAddrs() {
		out = append(out, netip.AddrPortFrom(a, p.RPCPort))
	}
	return out
}
