package lead

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// fakeFabric says what it is told to say of jobs on several nodes.
type fakeFabric struct {
	mu       sync.Mutex
	derived  int
	findings []envgen.Finding
}

func (f *fakeFabric) Derive(nodes []envgen.NodeView) (envgen.Topology, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.derived++
	return envgen.Topology{Shape: envgen.ShapeUnknown}, nil
}

func (f *fakeFabric) Preflight(_ envgen.Topology, nodes []envgen.NodeView, entries []envgen.Entry) []envgen.Finding {
	if len(nodes) != len(entries) {
		panic("nodes and entries of different jobs")
	}
	if len(nodes) < 2 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.findings
}

func (f *fakeFabric) times() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.derived
}

var pulled = envgen.Finding{Code: "no-link", Severity: envgen.SeverityError, Node: "id2", Host: "spark2",
	Port: "01:00.0", Device: "rocep1s0f0",
	Text: "port 0 has no link", Evidence: "no carrier", Remedy: "sparkrun fabric --map"}

// A job that the fabric would fail is refused before anything is recorded or
// sent; one that is forced, or needs no fabric, runs.
func TestPreflightRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.fabric = &fakeFabric{findings: []envgen.Finding{pulled}}
		w.each(exitAfter(time.Second, 0))
		r := w.ready()
		before := w.index
		err := r.leader.Launch(t.Context(), spec("jjjj", 2, 1))
		if !errors.Is(err, rendezvous.ErrFabricUnfit) {
			t.Fatalf("launch over a pulled cable: %v", err)
		}
		for _, want := range []string{"nothing is started", "spark2 01:00.0 rocep1s0f0", "port 0 has no link",
			"[no-link]", "sparkrun fabric --map"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the refusal lacks %q: %v", want, err)
			}
		}
		if w.index != before || r.sent("prepare") != 0 {
			t.Errorf("a refused job was recorded or prepared: %v", r.orders)
		}

		if _, err := w.client(t.Context(), spec("oooo", 1, 1)); err != nil {
			t.Errorf("a job on one node: %v", err)
		}
		forced := spec("ffff", 2, 1)
		forced.Force = true
		events, err := w.client(t.Context(), forced)
		if err != nil || events[0].Step != rendezvous.StepPlanned ||
			events[len(events)-1].Outcome.End != rendezvous.Completed {
			t.Fatalf("forced: %s, %v", steps(events), err)
		}
		warning := pulled
		warning.Severity = envgen.SeverityWarning
		if got := events[0].Findings; len(got) != 1 || got[0] != warning {
			t.Errorf("forced: told %+v, want the finding as a warning", got)
		}
		w.settle()
	})
}

// Right after a cable is back a port hears nobody yet: a launch waits until the probe has heard the neighbour, told by
// its inventory, or could have. For any other fault it is refused at once.
func TestPreflightWaitsForTheProbe(t *testing.T) {
	unheard := pulled
	unheard.Code = topology.CodeNoNeighbour
	for _, c := range []struct {
		name     string
		findings []envgen.Finding // before the probe has heard the neighbour
		heard    time.Duration    // after the launch; 0: never
		takes    time.Duration
		refused  bool
	}{
		{"heard", []envgen.Finding{unheard}, 2 * time.Second, 2 * time.Second, false},
		{"nobody there", []envgen.Finding{unheard}, 0, heardWithin, true},
		{"another fault as well", []envgen.Finding{unheard, pulled}, 2 * time.Second, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				f := &fakeFabric{findings: c.findings}
				w.fabric = f
				w.each(exitAfter(time.Second, 0))
				r := w.ready()
				time.Sleep(time.Minute)
				if c.heard > 0 {
					time.AfterFunc(c.heard, func() {
						f.mu.Lock()
						f.findings = nil
						f.mu.Unlock()
						r.leader.Inventory("id2", envgen.Inventory{Host: "spark2"})
					})
				}
				begun := time.Now()
				err := r.leader.Launch(t.Context(), spec("jjjj", 2, 1))
				if refused := errors.Is(err, rendezvous.ErrFabricUnfit); refused != c.refused || err != nil && !refused {
					t.Errorf("launch: %v", err)
				}
				if took := time.Since(begun).Truncate(100 * time.Millisecond); took != c.takes {
					t.Errorf("took %v, want %v", took, c.takes)
				}
				time.Sleep(time.Minute) // the job has ended
				w.settle()
			})
		})
	}
}

// What only warns stops nobody.
func TestPreflightWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		warning := pulled
		warning.Severity = envgen.SeverityWarning
		w.fabric = &fakeFabric{findings: []envgen.Finding{warning}}
		w.each(exitAfter(time.Second, 0))
		r := w.ready()
		_, findings, err := r.leader.Place(spec("jjjj", 2, 1).WithDefaults())
		if err != nil || len(findings) != 1 {
			t.Errorf("a dry run is told %v, %v", findings, err)
		}
		events, err := w.client(t.Context(), spec("jjjj", 2, 1))
		if err != nil || len(events[0].Findings) != 1 {
			t.Errorf("told %+v, %v", events, err)
		}
		w.settle()
	})
}

// The topology is worked out once for each change of the roster, not for each
// launch.
func TestTopologyIsDerivedOnceARoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		f := &fakeFabric{}
		w.fabric = f
		w.each(exitAfter(time.Millisecond, 0))
		r := w.ready()
		place := func() {
			t.Helper()
			if _, _, err := r.leader.Place(spec("jjjj", 2, 1).WithDefaults()); err != nil {
				t.Fatal(err)
			}
		}
		place()
		once := f.times()
		for range 3 {
			place()
		}
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil { // its entries change no member
			t.Fatal(err)
		}
		if n := f.times(); n != once || once == 0 {
			t.Errorf("derived %d times, then %d for the same roster", once, n)
		}
		r.leader.Inventory("id2", envgen.Inventory{Host: "spark2"})
		place()
		place()
		if n := f.times(); n != once+1 {
			t.Errorf("derived %d times after one change, want 1", n-once)
		}
		w.settle()
	})
}
