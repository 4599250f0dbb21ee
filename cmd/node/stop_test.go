package node

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A stop that was answered holds, though the leader is killed at that moment: of
// a job that runs, and of one between two tries.
func TestStopOutlivesTheLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.hosts[0].waitVoters(3)
	runs, fails := command(2, 1, "exec sleep 1000"), command(2, 1, "exit 7")
	fails.MaxRestarts = 30
	for _, s := range []*launcher.Spec{&runs, &fails} {
		s.On = []string{"spark2", "spark3"}
	}
	watcher := c.hosts[1].client()
	defer watcher.Close()
	errSeen := errors.New("seen enough")
	// The third pause is of 4 s.
	enough := map[launcher.JobID]rendezvous.Step{runs.ID: rendezvous.StepRunning, fails.ID: rendezvous.StepAgain}
	for i, s := range []launcher.Spec{runs, fails} {
		seen := 0
		err := wire.Launch.Call(t.Context(), watcher, wire.LaunchRequest{Spec: s}, func(p rendezvous.Progress) error {
			if p.Step == enough[s.ID] {
				seen++
			}
			if seen > 2*i {
				return errSeen
			}
			return nil
		})
		if seen <= 2*i {
			t.Fatalf("job %d was not seen to be where it is to be stopped: %v", i, err)
		}
	}
	asker := c.hosts[0].client()
	defer asker.Close()
	for _, s := range []launcher.Spec{fails, runs} {
		if _, err := wire.Stop.Call(t.Context(), asker, wire.StopRequest{Job: string(s.ID)}); err != nil {
			t.Fatal(err)
		}
	}
	stopped, _ := c.hosts[0].now().record.Job(fails.ID)
	c.hosts[0].crash()
	for _, s := range []launcher.Spec{runs, fails} {
		var job rendezvous.Job
		c.hosts[1].eventually("the job has ended", func() bool {
			job, _ = c.hosts[1].now().record.Job(s.ID)
			return job.Outcome != nil
		})
		if job.Outcome.End != rendezvous.Stopped || !strings.HasPrefix(job.Outcome.Cause, "stopped by ") {
			t.Errorf("outcome %+v", job.Outcome)
		}
		if s.ID == fails.ID && job.Plan.Generation != stopped.Plan.Generation {
			t.Errorf("generation %d began after the stop in generation %d", job.Plan.Generation, stopped.Plan.Generation)
		}
	}
}

// A leader that is alone and has not noticed does not say that there is no such job: another may have recorded it.
func TestStopByALeaderThatIsAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.hosts[0].waitVoters(3)
	first := c.hosts[0].leads(c)
	asker := first.client()
	defer asker.Close()
	for _, h := range c.hosts {
		if h != first {
			h.crash()
		}
	}
	_, err := wire.Stop.Call(t.Context(), asker, wire.StopRequest{Job: "recorded-elsewhere"})
	if !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrNoLeader) {
		t.Errorf("stop: %v", err)
	}
}

// A voter that is off, and which this leader has never heard, hinders no entry: its
// protocol is on record. A stop that was answered outlives the leader, and whoever
// asks while nobody leads is told that the job is ending.
func TestStopWithAVoterUnheard(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.hosts[0].waitVoters(3)
	first := c.hosts[0].leads(c)
	first.crash()
	rest := slices.DeleteFunc(slices.Clone(c.hosts), func(h *host) bool { return h == first })
	second := rest[0].leads(c)
	last := rest[0]
	if last == second {
		last = rest[1]
	}
	second.eventually("it leads", func() bool { return second.leadsNow() })
	if err := second.now().failover.EveryReplicaKnows(rendezvous.Protocol); err != nil {
		t.Errorf("with the one that led off: %v", err)
	}
	runs := command(1, 1, "trap '' TERM; while :; do sleep 1; done")
	runs.On, runs.Grace = []string{last.cfg.Host}, time.Hour
	cl := last.client()
	defer cl.Close()
	if err := wire.Launch.Call(t.Context(), cl, wire.LaunchRequest{Spec: runs}, func(p rendezvous.Progress) error {
		if p.Step == rendezvous.StepRunning {
			return errRuns
		}
		return nil
	}); !errors.Is(err, errRuns) {
		t.Fatalf("launch: %v", err)
	}
	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: string(runs.ID)}); err != nil {
		t.Fatal(err)
	}
	last.eventually("its own copy has the stop", func() bool { // which the leader's next beat tells, after the answer
		job, _ := last.now().record.Job(runs.ID)
		return job.Stop != nil
	})
	second.crash()
	last.eventually("ps without a leader says that it is ending", func() bool {
		res, err := wire.Jobs.Call(t.Context(), cl, wire.JobsRequest{})
		return err == nil && res.Problem != "" && len(res.Jobs) == 1 && res.Jobs[0].State == rendezvous.StateEnds
	})
	first.start()
	last.eventually("the next leader is ending it", func() bool { return last.stateOf(runs.ID) == rendezvous.StateEnds })
	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: string(runs.ID), Grace: new(time.Duration)}); err != nil {
		t.Errorf("a second stop, with no grace: %v", err)
	}
	var job rendezvous.Job
	last.eventually("it has ended", func() bool { job, _ = last.now().record.Job(runs.ID); return job.Outcome != nil })
	if job.Outcome.End != rendezvous.Stopped || !strings.HasPrefix(job.Outcome.Cause, "stopped by ") {
		t.Errorf("outcome %+v", job.Outcome)
	}
}
