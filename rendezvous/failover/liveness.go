package failover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/durable"
)

// settleAfter is how long a machine that was off has to follow a leader before it may
// assume that its cluster was not taken over in the meantime: a node that takes over
// dials all members every few seconds.
const settleAfter = 30 * time.Second

// livenessFile is in the folder RUN.
const livenessFile = "met.json"

// liveness is which nodes this machine has heard since it was switched on, in its epoch,
// and which a person has marked dead since. It is kept in RUN, which does not survive a
// reboot: while this machine was off its cluster may have been taken over. (That the
// ranks of a dead machine are gone stays true: the record keeps it, rendezvous.Death.)
type liveness struct {
	path string

	mu    sync.Mutex
	Heard map[launcher.NodeID]bool `json:"heard"`
	Dead  map[launcher.NodeID]bool `json:"dead"`
	// Settled: a majority of voters that has met no later epoch by now was not taken over
	// while it was off, or cannot reach the node that took over.
	Settled bool `json:"settled"`
}

func openLiveness(path string) (*liveness, error) {
	m := &liveness{path: path, Heard: map[launcher.NodeID]bool{}, Dead: map[launcher.NodeID]bool{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(b, m)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: remove the file; jobs may wait for `sparkrun mark-dead` then", path, err)
	}
	return m, nil
}

// heard notes that a node was heard; it is not dead.
func (m *liveness) heard(id launcher.NodeID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Heard[id] && !m.Dead[id] {
		return nil
	}
	m.Heard[id] = true
	delete(m.Dead, id)
	return m.save()
}

// dead notes a person's confirmation that nodes are off.
func (m *liveness) dead(ids ...launcher.NodeID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		m.Dead[id] = true
	}
	return m.save()
}

// settle notes that this machine has followed a leader for long enough.
func (m *liveness) settle() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Settled {
		return nil
	}
	m.Settled = true
	return m.save()
}

func (m *liveness) settled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Settled
}

// save replaces the file as a whole. It need not survive a power cut.
func (m *liveness) save() error {
	b, err := json.Marshal(m)
	if err == nil {
		err = durable.Swap(m.path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note whom this node has heard: %w", err)
	}
	return nil
}

// known tells whether a node cannot have taken over unnoticed: it was heard or is dead.
func (m *liveness) known(id launcher.NodeID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Heard[id] || m.Dead[id]
}

// isDead tells whether a person has marked a node dead since it was last heard.
func (m *liveness) isDead(id launcher.NodeID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Dead[id]
}

// Unheard names the hosts that may have taken over while this machine was off: see
// rendezvous/DESIGN.md. A sole voter waits until it hears them or a person marks them
// dead. With several voters this would mean waiting for dead machines after each power
// cut, so they wait only for settleAfter, and for members known to be of a later epoch.
func (f *Failover) Unheard() []string {
	sole := f.SoleVoter()
	settled := !sole && f.liveness.settled()
	later := f.ofLaterEpoch()
	var hosts []string
	for _, m := range f.cfg.Record.Nodes() {
		if m.ID != f.cfg.Self.ID && (later[m.ID] && !f.liveness.isDead(m.ID) || !settled && !f.liveness.known(m.ID)) {
			hosts = append(hosts, m.Host)
		}
	}
	return hosts
}

// ofLaterEpoch are the members that gossip a later epoch. Gossip proves nothing, so this
// only makes the node wait.
func (f *Failover) ofLaterEpoch() map[launcher.NodeID]bool {
	later := map[launcher.NodeID]bool{}
	for _, p := range f.cfg.Present.Load() {
		if p.Meta.Epoch > f.epoch.N {
			later[launcher.NodeID(p.ID)] = true
		}
	}
	return later
}

// settles waits until this boot has followed a leader of its epoch for settleAfter,
// without a gap.
func (f *Failover) settles(ctx context.Context) error {
	led := func() bool { return f.Leader() != "" }
	for !f.liveness.settled() {
		if !Until(ctx, led) {
			return ctx.Err()
		}
		within, cancel := context.WithTimeout(ctx, settleAfter)
		lost := Until(within, func() bool { return !led() })
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !lost {
			return f.liveness.settle()
		}
	}
	return nil
}

// Heard notes that a member is up, in this node's epoch.
func (f *Failover) Heard(id launcher.NodeID) {
	if err := f.liveness.heard(id); err != nil {
		f.log.Error("note a member", "node", f.cfg.Dial.HostOf(id), "error", err)
	}
}

// Dead notes a person's confirmation that members are off.
func (f *Failover) Dead(ids ...launcher.NodeID) error { return f.liveness.dead(ids...) }
