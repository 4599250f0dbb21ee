package rendezvous

import (
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
)

// Protocol is what this build speaks to other nodes and writes to the record. A
// release that adds a kind of entry or a field of one, or gives a call another
// meaning, is one higher. Nothing has been released: builds below 5 are not spoken to.
const Protocol = 5

// ErrApart: two builds are more than one protocol apart.
var ErrApart = errors.New("too far apart")

// Together tells whether nodes of two protocols can be in one cluster: N and N-1
// can, so that a cluster is upgraded node by node. The error is one of theirs,
// for whoever speaks ours.
func Together(ours, theirs int) error {
	switch {
	case theirs > ours+1:
		return fmt.Errorf("it speaks protocol %d and this node %d: %w: upgrade this node first", theirs, ours, ErrApart)
	case theirs < ours-1:
		return fmt.Errorf("it speaks protocol %d and this node %d: %w: upgrade it (by way of a version in between, where jobs are to run on)", theirs, ours, ErrApart)
	}
	return nil
}

// since says with which protocol a kind of entry came; those not named have
// always been there. A new field in an entry is a new kind, too: a node refuses
// what it does not know, for its copy of the record would come to differ.
var since = map[Kind]int{}

// Since is the lowest protocol whose builds know the kind.
func (k Kind) Since() int { return since[k] }

// Knows tells whether each of the nodes that replicate the record speaks protocol need
// or a later one. It goes by what the record has of each: one that is off hinders
// nobody as long as its build is known to be new enough.
func (r *Record) Knows(need int, replicas []launcher.NodeID) error {
	for _, id := range replicas {
		if n, ok := r.Node(id); ok && n.Protocol < need {
			return fmt.Errorf("%s runs a release of protocol %d, and this entry is of %d, at which its agent would stop: "+
				"upgrade it, or take it out with `sparkrun node remove %s`", n.Host, n.Protocol, need, n.Host)
		}
	}
	return nil
}
