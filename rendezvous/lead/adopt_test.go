package lead

import (
	"context"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// heir is a new leader of two nodes, which hears of them only what the test
// tells it, in the order of the test.
type heir struct {
	*Leader
	w   *world
	job rendezvous.Job

	mu   sync.Mutex
	sent map[launcher.NodeID][]string // kinds of orders
}

// inherits opens a leadership that finds a job in the record.
func inherits(t *testing.T, change func(*launcher.Spec)) *heir {
	h := &heir{w: newWorld(t, 2), sent: map[launcher.NodeID][]string{}}
	s := spec("jjjj", 2, 1).WithDefaults()
	change(&s)
	h.job = rendezvous.Job{Spec: s, Planned: time.Now(), Plan: rendezvous.Plan{
		Generation: 1, World: 2, Head: netip.MustParseAddr("10.0.0.1"), Network: "management",
		Nodes: []rendezvous.Place{
			{Node: "id1", Host: "spark1", Boot: "boot1.1", Ranks: 1},
			{Node: "id2", Host: "spark2", Boot: "boot2.1", FirstRank: 1, Ranks: 1},
		},
	}}
	if err := h.w.commit(h.job.Entry()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	h.Leader = Open(ctx, Config{
		Fence: launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 2}, Record: h.w.record, Recorder: &reign{w: h.w},
		Send:   h.send,
		Others: fakeOthers{answers: func() bool { return true }}, // on the fabric, that is
		Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() { cancel(); h.Close() })
	synctest.Wait()
	return h
}

func (h *heir) send(id launcher.NodeID, o launcher.Order) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent[id] = append(h.sent[id], orderKind(o))
}

// hears has a node open its stream with such a ledger.
func (h *heir) hears(id launcher.NodeID, boot string, phase launcher.Phase, ranks ...launcher.RankStatus) {
	up := Up{Boot: boot}
	if phase != launcher.PhaseNone {
		up.Ledger = []launcher.LedgerEntry{{Key: h.job.Key(), Phase: phase, Ranks: ranks}}
	}
	h.NodeUp(id, up)
	synctest.Wait()
}

func (h *heir) orders(id launcher.NodeID) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.sent[id], " ")
}

func (h *heir) state() rendezvous.State { return h.Jobs()[0].State }

func runs(rank int) launcher.RankStatus {
	return launcher.RankStatus{Rank: rank, State: launcher.RankRunning, PID: 100 + rank, Time: time.Now()}
}

// A job that runs is not said to be starting while its new leader has yet to
// hear of it, nor one that is being ended to be running.
func TestNewLeaderTellsNoOlderState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := inherits(t, func(*launcher.Spec) {})
		h.hears("id1", "boot1.1", launcher.PhaseStarted, runs(0))
		if got := h.state(); got != rendezvous.StatePlanned {
			t.Errorf("half of its ledgers heard, the job is said to be %s", got)
		}
		h.hears("id2", "boot2.1", launcher.PhaseStarted, runs(1))
		if got := h.state(); got != rendezvous.StateRuns {
			t.Errorf("the job is said to be %s", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := inherits(t, func(*launcher.Spec) {})
		ranks := []launcher.RankStatus{runs(0), runs(1)}
		time.Sleep(time.Hour)
		h.hears("id1", "boot1.1", launcher.PhaseStarted, ranks[0])
		h.hears("id2", "boot2.1", launcher.PhaseStarted, ranks[1])
		if at := h.Jobs()[0].Started; at == nil || !at.Equal(ranks[1].Time) {
			t.Errorf("it is said to run since %s, and does since %s", at, ranks[1].Time)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := inherits(t, func(*launcher.Spec) {})
		h.hears("id1", "boot1.1", launcher.PhaseStarted, runs(0))
		failed := runs(1)
		failed.State, failed.Exit = launcher.RankEnded, &launcher.Exit{Code: 7}
		h.hears("id2", "boot2.1", launcher.PhaseEnded, failed)
		if got := h.state(); got != rendezvous.StateEnds { // the leader before may have said so
			t.Errorf("with a failed rank, the job is said to be %s", got)
		}
	})
}

// Of a job that goes on without a node that was lost, a new leader says no older
// state than the one before it: it runs.
func TestNewLeaderKnowsWhatRunsWithoutALostNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := inherits(t, func(s *launcher.Spec) { s.OnFailure = launcher.ContinueOnFailure })
		h.hears("id1", "boot1.1", launcher.PhaseStarted, runs(0))
		h.hears("id2", "boot2.2", launcher.PhaseNone)
		if got := h.state(); got != rendezvous.StateRuns {
			t.Errorf("the job is said to be %s", got)
		}
	})
}

// A node that was rebooted may not even have been prepared: with --on-failure
// continue, too, the others do not start without it.
func TestNewLeaderStartsNobodyWithoutARebootedNode(t *testing.T) {
	for _, first := range []launcher.NodeID{"id1", "id2"} {
		synctest.Test(t, func(t *testing.T) {
			h := inherits(t, func(s *launcher.Spec) { s.OnFailure = launcher.ContinueOnFailure })
			if first == "id1" {
				h.hears("id1", "boot1.1", launcher.PhasePrepared)
			}
			h.hears("id2", "boot2.2", launcher.PhaseNone)
			if first == "id2" {
				h.hears("id1", "boot1.1", launcher.PhasePrepared)
			}
			time.Sleep(time.Second) // what is decided is recorded first
			if got := h.orders("id1"); got != "end" {
				t.Errorf("spark1, heard with %s first, was sent %q", first, got)
			}
			h.Event(launcher.Event{Key: h.job.Key(), Node: "id1", Kind: launcher.Ended})
			time.Sleep(time.Second)
			if out := mustOutcome(t, h.w, "jjjj"); out.End != rendezvous.Failed || out.Cause != "spark2 restarted" {
				t.Errorf("outcome %+v", out)
			}
		})
	}
}

// A node that is out of reach before it has told of its start keeps the others
// waiting no longer than the start time-out, though it answers on its fabric.
func TestStartTimeoutOfANodeOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := inherits(t, func(s *launcher.Spec) { s.StartTimeout, s.NodeTimeout = 20*time.Second, launcher.Never })
		h.hears("id1", "boot1.1", launcher.PhasePrepared)
		h.hears("id2", "boot2.1", launcher.PhasePrepared)
		h.NodeDown("id2")
		h.Event(launcher.Event{Key: h.job.Key(), Node: "id1", Kind: launcher.Started})
		time.Sleep(19 * time.Second)
		if got := h.orders("id1"); got != "start" {
			t.Errorf("before the time is up, spark1 was sent %q", got)
		}
		time.Sleep(2 * time.Second)
		if got := h.orders("id1"); got != "start end" {
			t.Errorf("after it, spark1 was sent %q", got)
		}
	})
}

// One that a new leader has not heard of may have run for days: it is left alone.
func TestStartTimeoutSparesWhatIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := inherits(t, func(s *launcher.Spec) { s.NodeTimeout = launcher.Never })
		h.hears("id1", "boot1.1", launcher.PhaseStarted, runs(0))
		time.Sleep(time.Hour)
		if got := h.orders("id1"); got != "" {
			t.Errorf("spark1 was sent %q", got)
		}
	})
}

// A node that was told to start and cannot, for its disk hangs, does not keep the
// others waiting for ever either.
func TestStartTimeoutOfAHungStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := inherits(t, func(s *launcher.Spec) { s.StartTimeout = 20 * time.Second })
		h.hears("id1", "boot1.1", launcher.PhaseStarted, runs(0))
		h.hears("id2", "boot2.1", launcher.PhaseStarted)
		time.Sleep(21 * time.Second)
		if got := h.orders("id1"); got != "end" {
			t.Errorf("spark1 was sent %q", got)
		}
		for i, id := range []launcher.NodeID{"id1", "id2"} {
			h.Event(launcher.Event{Key: h.job.Key(), Node: id, Kind: launcher.Exited, Rank: i,
				Exit: &launcher.Exit{Signal: 15, ByUs: true}})
			h.Event(launcher.Event{Key: h.job.Key(), Node: id, Kind: launcher.Ended})
		}
		time.Sleep(time.Second)
		if out := mustOutcome(t, h.w,
			"jjjj"); out.Cause != "not started within 20s: spark2 was told to start and has not started all its ranks" {
			t.Errorf("outcome %+v", out)
		}
	})
}

// A listing that was asked for just before the next generation begins tells of that one: not that the last, which ran
// and has ended, is starting.
func TestJobsWhileAGenerationBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := inherits(t, func(s *launcher.Spec) { s.MaxRestarts = 1 })
		told := make(chan rendezvous.JobStatus, 1)
		h.Leader.mu.Lock()
		go func() { told <- h.Jobs()[0] }()
		for range 1000 {
			runtime.Gosched() // it comes as far as it can
		}
		next := h.job
		next.Plan.Generation, next.Plan.Restarts = 2, 1
		if err := h.w.commit(next.Entry()); err != nil {
			t.Error(err)
		}
		h.Leader.runs[next.Spec.ID].job = next // as begin does
		h.Leader.mu.Unlock()
		if js := <-told; js.Plan.Generation != 2 {
			t.Errorf("generation %d is said to be %s, and 2 has begun", js.Plan.Generation, js.State)
		}
	})
}
