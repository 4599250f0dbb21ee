package rendezvous

import (
	"errors"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

func imaged(image string) launcher.Spec {
	s := launcher.Spec{ID: "aaaa", Service: &launcher.Service{Port: launcher.Of(launcher.PortNamed("api"))}}
	for _, name := range []string{"workers", "serve"} {
		s.Stages = append(s.Stages, launcher.Stage{Name: name, Main: name == "serve", Container: &launcher.Container{Image: image}})
	}
	return s
}

// An update counts from the next generation on. It stands once a generation has become ready with it; one that did not
// is followed by one with the image before, which is no failure of the service's.
func TestUpdate(t *testing.T) {
	ready := time.Unix(5000, 0)
	for what, test := range map[string]struct {
		out   Outcome // of the generation with the new image
		image string  // of the one after it
		fault int
	}{
		"it became ready, and failed later":  {Outcome{End: Failed, Started: &ready, At: ready}, "new", 1},
		"it did not become ready":            {Outcome{End: Failed, At: ready}, "old", 0},
		"a machine could not get the image":  {Outcome{End: Rejected, At: ready}, "old", 0},
		"it was moved before it could start": {Outcome{End: Failed, Moved: true, At: ready}, "old", 0},
	} {
		t.Run(what, func(t *testing.T) {
			s := NewRecord().s
			job := Job{Spec: imaged("old"), Plan: Plan{Generation: 1}}
			job.Spec.Service.Restarts, job.Spec.Service.Per = 3, time.Hour
			if err := s.plan(job); err != nil {
				t.Fatal(err)
			}
			if err := s.update(ready, JobUpdate{Job: "aaaa", Image: "new", By: "ada"}); err != nil {
				t.Fatal(err)
			}
			next := func(out Outcome) Job {
				t.Helper()
				now := s.Jobs["aaaa"]
				follows, more := now.Next(out)
				if !more {
					t.Fatalf("nothing follows %+v", out)
				}
				now = now.After(out).Settled()
				now.Plan.Generation++
				now.Plan.Restarts = follows.Restarts
				if err := s.plan(now); err != nil {
					t.Fatal(err)
				}
				for _, st := range s.Jobs["aaaa"].Spec.Stages {
					if st.Container.Image != now.Image() {
						t.Errorf("stage %s has the image %s, and the job %s", st.Name, st.Container.Image, now.Image())
					}
				}
				return s.Jobs["aaaa"]
			}
			if got := next(Outcome{End: Failed, Started: &ready, Moved: true, At: ready}); got.Image() != "new" || len(got.Faults) != 0 {
				t.Errorf("the generation after the update has the image %s, and faults %v", got.Image(), got.Faults)
			}
			got := next(test.out)
			if got.Image() != test.image || len(got.Faults) != test.fault || got.Update != nil {
				t.Errorf("then it has the image %s, %d faults, the update %+v; want %s, %d", got.Image(), len(got.Faults),
					got.Update, test.image, test.fault)
			}
		})
	}
}

// Only a service in a container has another image; of two updates in a row the image before the first is the way back.
func TestUpdateRefuses(t *testing.T) {
	job := Job{Spec: imaged("old"), Plan: Plan{Generation: 1}}
	for want, test := range map[error]struct {
		job   Job
		image string
	}{
		launcher.ErrInvalid: {job, "old"},
		ErrNoService:        {Job{Spec: launcher.Spec{Stages: job.Spec.Stages}}, "new"},
		ErrNoImage: {Job{Spec: launcher.Spec{Service: job.Spec.Service, Stages: []launcher.Stage{{Main: true}}}},
			"new"},
	} {
		if _, err := test.job.UpdatedTo(JobUpdate{Image: test.image}, time.Now()); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	once, err := job.UpdatedTo(JobUpdate{Image: "new"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	twice, err := once.UpdatedTo(JobUpdate{Image: "newer"}, time.Now())
	if err != nil || twice.Image() != "newer" || twice.Update.From != "old" || job.Image() != "old" {
		t.Errorf("%v; %s, from %s; the first has %s", err, twice.Image(), twice.Update.From, job.Image())
	}
}
