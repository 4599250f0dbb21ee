package rendezvous

import (
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
)

// Protocol is what this build speaks to other nodes and writes to the record. A release
// that adds a kind of entry or a field to one, or changes the meaning of a call, raises
// it by one. Nothing has been released yet: builds below 5 are refused.
const Protocol = 5

// ErrApart: two builds are more than one protocol apart.
var ErrApart = errors.New("too far apart")

// Together tells whether nodes of two protocols can be in one cluster: N and N-1 can, so
// that a cluster is upgraded node by node. The error speaks about the other node, to a
// reader on this one.
func Together(ours, theirs int) error {
	switch {
	case theirs > ours+1:
		return fmt.Errorf("it speaks protocol %d and this node %d: %w: upgrade this node first", theirs, ours, ErrApart)
	case theirs < ours-1:
		return fmt.Errorf("it speaks protocol %d and this node %d: %w: upgrade it (one protocol at a time, if running "+
			"jobs must go on)", theirs, ours, ErrApart)
	}
	return nil
}

// since says which protocol introduced a kind of entry; kinds not listed have always
// existed. An entry with a new field is a new kind too: a node refuses what it does not
// know, because its copy of the record would differ.
var since = map[Kind]int{}

// Since is the lowest protocol whose builds know the kind.
func (k Kind) Since() int { return since[k] }

// Knows checks that each of the nodes that replicate the record speaks protocol need or a
// later one. It uses the protocol that the record has of each: a node that is off does
// not matter if its build was new enough.
func (r *Record) Knows(need int, replicas []launcher.NodeID) error {
	for _, id := range replicas {
		if n, ok := r.Node(id); ok && n.Protocol < need {
			return fmt.Errorf("%s runs a release of protocol %d, and an entry of protocol %d would stop its agent: "+
				"upgrade it, or remove it with `sparkrun node remove %s`", n.Host, n.Protocol, need, n.Host)
		}
	}
	return nil
}
