package membership

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// KeyringConfig of a Keyring. All of it is needed.
type KeyringConfig struct {
	Trust  string // folder of the keys
	Record *rendezvous.Record
	Logger *slog.Logger
}

// Keyring is this node's gossip keys: those in use, and retired ones with which secrets of unfinished jobs are
// sealed.
type Keyring struct {
	cfg    KeyringConfig
	gossip atomic.Pointer[gossip.Gossip] // nil while there is none

	mu      sync.Mutex // over both files: a key moves from one to the other
	inUse   trust.Keyring
	retired trust.Retired // with inUse, what the files have: nobody else writes them while an agent runs
}

// NewKeyring makes one.
func NewKeyring(cfg KeyringConfig) *Keyring { return &Keyring{cfg: cfg} }

// Use gives a newly opened gossip the current keys, and later ones: a key is acknowledged
// only after gossip has it.
func (k *Keyring) Use(g *gossip.Gossip) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	ring, _, err := k.load()
	if err != nil {
		return err
	}
	k.gossip.Store(g)
	return g.SetKeyring(ring.Keys())
}

// Disuse detaches a gossip that is about to be closed.
func (k *Keyring) Disuse() { k.gossip.Store(nil) }

// load reads both files, once. mu is held.
func (k *Keyring) load() (_ trust.Keyring, _ trust.Retired, err error) {
	if k.inUse != nil {
		return k.inUse, k.retired, nil
	}
	ring, err := trust.LoadGossipKeys(k.cfg.Trust)
	if err != nil {
		return nil, nil, err
	}
	if k.retired, err = trust.LoadRetired(k.cfg.Trust); err == nil {
		k.inUse = ring
	}
	return k.inUse, k.retired, err
}

func (k *Keyring) save(ring trust.Keyring) error {
	err := trust.SaveGossipKeys(k.cfg.Trust, ring)
	if err == nil {
		k.inUse = ring
	}
	return err
}

func (k *Keyring) saveRetired(keys trust.Retired) error {
	err := trust.SaveRetired(k.cfg.Trust, keys)
	if err == nil {
		k.retired = keys
	}
	return err
}

func (k *Keyring) now() (trust.Keyring, trust.Retired, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.load()
}

func wireKeys(ring trust.Keyring) (out []wire.GossipKey) {
	for _, k := range ring {
		out = append(out, wire.GossipKey{Number: k.Number, Key: k.Reveal()})
	}
	return out
}

func keysOf(keys []wire.GossipKey) (ring trust.Keyring) {
	for _, k := range keys {
		ring = append(ring, trust.GossipKey{Number: k.Number, Secret: trust.NewSecret(k.Key)})
	}
	return ring
}

// take adopts the leader's gossip keys unless this node knows a newer one than any of
// them, and gives those that are then in use. Keys of another member, which may be a step
// behind, are adopted only if they have a newer key.
func (k *Keyring) take(ring trust.Keyring, leaders bool) (trust.Keyring, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	own, _, err := k.load()
	if err != nil {
		return nil, err
	}
	if err := ring.Check(); err != nil {
		return own, fmt.Errorf("take gossip keys: %w: %w", launcher.ErrInvalid, err)
	}
	if _, newer := ring.Merge(own); newer || own.Equal(ring) {
		return own, nil
	}
	if _, newer := own.Merge(ring); !newer && !leaders {
		return own, nil
	}
	if err := k.retire(own.Without(ring)); err != nil { // first, so that a crash in between loses no key
		return own, err
	}
	if err := k.save(ring); err != nil {
		return own, err
	}
	if g := k.gossip.Load(); g != nil { // else a later gossip begins with what was saved
		if err := g.SetKeyring(ring.Keys()); err != nil {
			return own, err
		}
		g.Rejoin()
	}
	k.cfg.Logger.Info("gossip keys changed", "keys", len(ring), "number", ring.Newest().Number)
	return ring, nil
}

// retire keeps keys for the secrets of unfinished jobs. mu is held, and load has been called.
func (k *Keyring) retire(keys trust.Keyring) error {
	if more := k.retired.Add(keys); !more.Equal(k.retired) {
		return k.saveRetired(more)
	}
	return nil
}

// takeRetired adopts retired keys. Own retired keys that are not among them are dropped if the leader, with the
// same keys in use, says so.
func (k *Keyring) takeRetired(t wire.Trusted, leaders bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	own, old, err := k.load()
	if err != nil {
		return err
	}
	told := keysOf(t.Retired)
	if len(told) > 0 {
		if err := told.Check(); err != nil {
			return fmt.Errorf("take retired keys: %w: %w", launcher.ErrInvalid, err)
		}
	}
	told = told.Without(own)
	if !leaders || !t.Settled || !own.Equal(keysOf(t.Keyring)) {
		return k.retire(told)
	}
	if now := (trust.Retired{}).Add(told); !now.Equal(old) {
		return k.saveRetired(now)
	}
	return nil
}

// settle forgets the keys that neither a job nor the cluster's settings need any more, and tells whether the remaining
// keys open all that is sealed.
func (k *Keyring) settle() (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ring, old, err := k.load()
	if err != nil {
		return false, err
	}
	boxes := trust.SealedIn(k.cfg.Record.Secretive())
	if settings, _ := k.cfg.Record.Gateway(); settings.CA != nil {
		boxes = append(boxes, trust.SealedGateway(settings.CA.Key))
	}
	notify, _ := k.cfg.Record.Notify()
	for name, t := range notify.Targets {
		boxes = append(boxes, trust.Sealed{Box: t.Box, Words: rendezvous.NotifyWords(name)})
	}
	needed, all, err := old.Keep(ring, boxes)
	if err != nil || !all || needed.Equal(old) {
		return all, err
	}
	return true, k.saveRetired(needed)
}

// step makes the next step of a rotation.
func (k *Keyring) step() (bool, error) {
	ring, _, err := k.now()
	if err != nil {
		return false, err
	}
	next, changed := ring.Step(uint64(k.cfg.Record.Removals()))
	if !changed {
		return false, nil
	}
	_, err = k.take(next, true)
	return err == nil, err
}
