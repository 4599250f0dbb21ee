package rendezvous

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

var (
	t0      = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})
)

func node(n int) Node {
	return Node{
		ID:   launcher.NodeID(fmt.Sprintf("node-%d", n)),
		Host: fmt.Sprintf("spark%d", n),
		Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 7940),
	}
}

func specFor(id launcher.JobID, perNode int) launcher.Spec {
	return launcher.Spec{
		ID: id, Workload: "exec", Nodes: 1,
		Stages: []launcher.Stage{{Name: "main", Main: true, RanksPerNode: perNode, Argv: launcher.Lits("true"),
			Workdir: "/"}},
	}.WithDefaults()
}

func plannedJob(id launcher.JobID, gen launcher.Generation, at time.Time) Job {
	plan := Plan{
		Generation: gen, World: 1, Head: netip.MustParseAddr("10.0.0.1"), Network: "management",
		Nodes: []Place{{Node: "node-1", Host: "spark1", Boot: "b", Ranks: 1,
			Entry: envgen.Entry{ID: "node-1", Addr: netip.MustParseAddr("10.0.0.1")}}},
	}
	return Job{Spec: specFor(id, 1), Plan: plan, Planned: at}
}

func endOf(id launcher.JobID, gen launcher.Generation) Entry {
	return Entry{Kind: KindEnd,
		End: &JobEnd{Key: launcher.Key{Job: id, Generation: gen}, Outcome: Outcome{End: Completed, At: t0}}}
}

func planOf(j Job) Entry { return Entry{Kind: KindPlan, Job: &j} }

// apply puts entries into a record as the log would and returns the last answer.
type log struct {
	*Record
	index uint64
}

func founded(t *testing.T) *log {
	t.Helper()
	l := &log{Record: NewRecord()}
	l.must(t, Entry{Kind: KindFound, At: t0, Found: &Found{Cluster: "c1", Epoch: 1, First: node(1)}})
	return l
}

func (l *log) apply(e Entry) any {
	b, err := e.Encode()
	if err != nil {
		panic(err)
	}
	l.index++
	return l.Apply(l.index, b)
}

func (l *log) must(t *testing.T, es ...Entry) {
	t.Helper()
	for _, e := range es {
		if answer := l.apply(e); answer != nil {
			t.Fatalf("%s: %v", e.Kind, answer)
		}
	}
}

func diff(want, got any) string { return cmp.Diff(want, got, byValue) }
