package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// inFence is an MPI rank that puts one value, and does what comes then once it is
// through its first barrier.
func inFence(then string) string {
	return `say() { echo "cmd=$*" >&"$PMI_FD"; read -r heard <&"$PMI_FD"; }
		say init pmi_version=1 pmi_subversion=1; say get_my_kvsname
		say put "kvsname=${heard##*=}" "key=r$RANK" "value=$RANK"; say barrier_in; ` + then
}

// ofTwo makes this node one of an MPI job's two, with one rank each.
func ofTwo(node int, script string) func(*launcher.Assignment) {
	return func(a *launcher.Assignment) {
		a.NodeRank, a.NodeCount, a.FirstRank, a.World = node, 2, node, 2
		a.Nodes = []launcher.NodeID{"node-0", "node-1"}
		st := &a.Spec.Stages[0]
		st.Argv = launcher.Lits("sh", "-c", script)
		st.MPI = &launcher.MPI{Family: launcher.MPICH, Program: "sh", Forced: true}
	}
}

// A barrier that cannot be brought to rank 0's node is tried again, and the job is told;
// one that can never be passed ends the job's ranks, and says why.
func TestBarrierThatFails(t *testing.T) {
	var never atomic.Bool
	n := newNode(t, func(c *Config) {
		c.AskHead = func(context.Context, launcher.Assignment, mpi.Barrier) ([]launcher.Pair, error) {
			if never.Load() {
				return nil, fmt.Errorf("barrier 1: %w", mpi.ErrTooMuch)
			}
			return nil, errors.New("spark1 does not answer")
		}
	})
	n.launch(n.as("", ofTwo(1, inFence("exit 3"))))
	if ev := n.hear(launcher.Preparing); !strings.Contains(ev.Text, "spark1 does not answer") {
		t.Errorf("the job is told %q", ev.Text)
	}
	never.Store(true)
	if e := n.hear(launcher.Exited).Exit; e.ByUs || !e.Failed() || !strings.Contains(e.Cause, "more than 48 MiB") {
		t.Errorf("exit %+v", e)
	}
	n.hear(launcher.Ended)
}

// Each node speaks for its own ranks, at rank 0's node.
func TestBarrierIsItsNodes(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("", ofTwo(0, inFence(`say get "kvsname=x" key=r1; exit 7`))))
	part := mpi.Barrier{Number: 1, Pairs: []launcher.Pair{{Key: "r1", Value: "1"}}}
	for what, c := range map[string]struct {
		from launcher.NodeID
		node int
		key  launcher.Key
	}{
		"a stranger":         {"node-2", 1, key},
		"another's number":   {"node-1", 0, key},
		"rank 0's own":       {"node-0", 0, key},
		"a number too large": {"node-1", 2, key},
		"none":               {"", -1, key},
		"another attempt":    {"node-1", 1, launcher.Key{Job: job, Generation: 9}},
	} {
		if _, err := n.a.Barrier(n.ctx, c.from, c.key, c.node, part); !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	all, err := n.a.Barrier(n.ctx, "node-1", key, 1, part)
	must(t, err)
	if diff := cmp.Diff([]launcher.Pair{{Key: "r0", Value: "0"}, {Key: "r1", Value: "1"}}, all); diff != "" {
		t.Error(diff)
	}
	if e := n.hear(launcher.Exited).Exit; e.Code != 7 {
		t.Errorf("exit %+v", e)
	}
	n.hear(launcher.Ended)
}
