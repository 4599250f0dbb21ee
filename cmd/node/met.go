package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
)

// met is whom this machine has heard since it was switched on, in the epoch it
// is in, and whom a person has called dead since. It lives in RUN, which no
// reboot survives: whoever was off may have been taken over meanwhile. (That the
// ranks of a dead machine are gone stays true: the record keeps it, rendezvous.Death.)
type met struct {
	path string

	mu    sync.Mutex
	Heard map[launcher.NodeID]bool `json:"heard"`
	Dead  map[launcher.NodeID]bool `json:"dead"`
}

func openMet(path string) (*met, error) {
	m := &met{path: path, Heard: map[launcher.NodeID]bool{}, Dead: map[launcher.NodeID]bool{}}
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

// hears notes a node that has shown itself; it is not dead.
func (m *met) hears(id launcher.NodeID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Heard[id] && !m.Dead[id] {
		return nil
	}
	m.Heard[id] = true
	delete(m.Dead, id)
	return m.save()
}

// buries takes a person's word that nodes are off.
func (m *met) buries(ids ...launcher.NodeID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		m.Dead[id] = true
	}
	return m.save()
}

// save replaces the file as a whole. It need not outlive a power cut.
func (m *met) save() error {
	b, err := json.Marshal(m)
	if err == nil {
		if err = os.WriteFile(m.path+".new", b, 0o600); err == nil {
			err = os.Rename(m.path+".new", m.path)
		}
	}
	if err != nil {
		return fmt.Errorf("note whom this node has met: %w", err)
	}
	return nil
}

// known tells whether nothing is to be feared of a node: it was heard, or is
// dead.
func (m *met) known(id launcher.NodeID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Heard[id] || m.Dead[id]
}

// unheard names the hosts that may have taken over while this machine was off:
// see rendezvous/DESIGN.md. Where several vote, their majority answers for that.
func (n *node) unheard() []string {
	if !n.soleVoter() {
		return nil
	}
	var hosts []string
	for _, m := range n.record.Nodes() {
		if m.ID != n.m.Node && !n.met.known(m.ID) {
			hosts = append(hosts, m.Host)
		}
	}
	return hosts
}

// hears notes that a member is there, in this node's epoch.
func (n *node) hears(id launcher.NodeID) {
	if err := n.met.hears(id); err != nil {
		n.log.Error("note a member", "node", n.hostOf(id), "error", err)
	}
}
