package rendezvous

import (
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// NodeDrain keeps ranks away from a node on an administrator's word, until it is taken back: for firmware, a reboot
// or a cable.
type NodeDrain struct {
	Node   launcher.NodeID `json:"node"`
	By     string          `json:"by"`
	Reason string          `json:"reason,omitempty"`
	At     time.Time       `json:"at,omitzero"` // the leader's clock
	// Over is set in the entry that takes it back.
	Over bool `json:"over,omitempty"`
}

// Entry records it, or its end.
func (d NodeDrain) Entry() Entry { return Entry{Kind: KindDrain, Drain: &d} }

// String says why the node gets no ranks.
func (d NodeDrain) String() string {
	text := d.By + " has drained it"
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	return text
}

func (s *state) drain(d NodeDrain) error {
	if d.Over {
		delete(s.Drains, d.Node)
		return nil
	}
	if _, ok := s.Nodes[d.Node]; !ok {
		return ErrNoNode
	}
	if s.Drains == nil {
		s.Drains = map[launcher.NodeID]NodeDrain{}
	}
	s.Drains[d.Node] = d
	return nil
}

// Drain gives that of a node, if there is one.
func (r *Record) Drain(id launcher.NodeID) (NodeDrain, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	d, is := r.s.Drains[id]
	return d, is
}
