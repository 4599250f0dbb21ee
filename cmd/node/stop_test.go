package node

import (
	"errors"
	"strings"
	"testing"

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
		err := watcher.Launch(t.Context(), wire.LaunchRequest{Spec: s}, func(p rendezvous.Progress) error {
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
		if _, err := asker.Stop(t.Context(), wire.StopRequest{Job: string(s.ID)}); err != nil {
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
