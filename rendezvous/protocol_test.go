package rendezvous

import (
	"errors"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestTogether(t *testing.T) {
	for _, tt := range []struct {
		ours, theirs int
		together     bool
	}{
		{4, 4, true}, {4, 3, true}, {4, 5, true}, {4, 2, false}, {4, 6, false},
		{1, 0, true}, // a build that does not say
		{2, 0, false},
	} {
		if err := Together(tt.ours, tt.theirs); (err == nil) != tt.together || err != nil && !errors.Is(err, ErrApart) {
			t.Errorf("%d and %d: %v", tt.ours, tt.theirs, err)
		}
	}
}

// A kind that this build writes and nobody of this protocol knows would stop them all.
func TestSince(t *testing.T) {
	for k, p := range since {
		if p < 1 || p > Protocol {
			t.Errorf("%s has come with protocol %d, this is %d", k, p, Protocol)
		}
	}
}

// What would stop a node that has the record is not written, whether it answers or not;
// one whose build is known to be new enough hinders nobody, nor does one without a copy.
func TestKnows(t *testing.T) {
	l := founded(t)
	l.must(t, tokenEntry("t", 9, t0))
	old, new := node(2), node(3)
	old.Protocol, new.Protocol = 6, 7
	l.must(t, joinEntry("t", old, t0), joinEntry("t", new, t0))
	if err := l.Knows(7, []launcher.NodeID{"node-3"}); err != nil {
		t.Errorf("an old node without a copy: %v", err)
	}
	if err := l.Knows(6, []launcher.NodeID{"node-2", "node-3"}); err != nil {
		t.Errorf("all know it: %v", err)
	}
	if err := l.Knows(7, []launcher.NodeID{"node-2", "node-3"}); err == nil ||
		!strings.Contains(err.Error(), "sparkrun node remove spark2") {
		t.Errorf("an old node: %v", err)
	}
	old.Protocol = 7
	l.must(t, Entry{Kind: KindNode, Node: &old})
	if err := l.Knows(7, []launcher.NodeID{"node-2", "node-3"}); err != nil {
		t.Errorf("it has been upgraded: %v", err)
	}
}
