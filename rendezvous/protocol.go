package rendezvous

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
)

// Protocol is what this build speaks to other nodes and writes to the record. A
// release that adds a kind of entry or a field of one, or gives a call another
// meaning, is one higher. 0 is that of builds before the first release, which do
// not say it.
const Protocol = 3

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
var since = map[Kind]int{
	KindStop: 1, KindQueue: 1, KindNetplan: 1, KindEpoch: 1, KindReunite: 1, KindDeath: 1,
	KindInvite: 2, KindLogin: 2, KindLogout: 2,
	KindPlan2: 3, KindPlan3: 3, KindService: 3,
}

// KindOf is the latest of the kinds that a job needs to be known, by the voters and by
// the nodes that run it.
func KindOf(spec launcher.Spec) Kind {
	if spec.Service != nil {
		return KindPlan3
	}
	if spec.RequireGate > 0 || spec.Stepped() || slices.ContainsFunc(spec.Stages, func(st launcher.Stage) bool { return st.Container != nil || st.MPI != nil }) {
		return KindPlan2
	}
	return KindPlan
}

// Since is the lowest protocol whose builds know the kind.
func (k Kind) Since() int { return since[k] }
