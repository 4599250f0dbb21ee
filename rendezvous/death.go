package rendezvous

import (
	"maps"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Death is a person's confirmation that a machine was off: nothing that began in the
// boots it names runs any more. It is over when the machine is heard again.
type Death struct {
	Node launcher.NodeID `json:"node"`
	// Boots are the boots that the confirmation covers, MaxBoots at most. It says nothing
	// about what the machine began in any other boot.
	Boots []string  `json:"boots,omitempty"`
	At    time.Time `json:"at,omitzero"` // the leader's clock
	// Heard is set in the entry that takes it back.
	Heard bool `json:"heard,omitempty"`
}

// MaxBoots bounds what is kept of one machine: one boot for each job that was planned
// there and has not ended; usually they are all the same.
const MaxBoots = 16

// Entry records the confirmation, or its end.
func (d Death) Entry() Entry { return Entry{Kind: KindDeath, Death: &d} }

// die notes a person's confirmation. A second one for a machine that was not heard in
// between adds to the first.
func (s *state) die(at time.Time, d Death) error {
	if d.Heard {
		delete(s.Deaths, d.Node)
		return nil
	}
	if _, ok := s.Nodes[d.Node]; !ok {
		return ErrNoNode
	}
	boots := slices.Clone(s.Deaths[d.Node].Boots)
	for _, b := range d.Boots {
		if !slices.Contains(boots, b) {
			boots = append(boots, b)
		}
	}
	if s.Deaths == nil { // from a snapshot without any
		s.Deaths = map[launcher.NodeID]Death{}
	}
	s.Deaths[d.Node] = Death{Node: d.Node, Boots: boots[max(0, len(boots)-MaxBoots):], At: at}
	return nil
}

// Deaths lists, by id, the machines that a person has marked dead and that were not heard
// since.
func (r *Record) Deaths() []Death {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.SortedStableFunc(maps.Values(r.s.Deaths), func(a, b Death) int { return compareStrings(a.Node, b.Node) })
}

// Boots lists the boots of a node in which unfinished jobs were planned there: a
// confirmation that the node is dead has to cover them.
func (r *Record) Boots(id launcher.NodeID) []string {
	var boots []string
	for _, j := range r.Jobs() {
		if j.Outcome != nil {
			continue
		}
		for _, p := range j.Plan.Nodes {
			if p.Node == id && p.Boot != "" && !slices.Contains(boots, p.Boot) {
				boots = append(boots, p.Boot)
			}
		}
	}
	return boots
}
