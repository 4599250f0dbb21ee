package rendezvous

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// JobUpdate gives a service another image: its next generation runs in it. If that does not become ready, the one after
// it has the old image again.
type JobUpdate struct {
	Job   launcher.JobID `json:"job"`
	Image string         `json:"image"`
	By    string         `json:"by"`
	// Proven: the generation of this moment has become ready, so that its image is the one to go back to.
	Proven bool `json:"proven,omitempty"`
}

// Updated is an update of a job that has not proven itself yet.
type Updated struct {
	From  string              `json:"from"`  // the image before
	Since launcher.Generation `json:"since"` // the first generation that may have the new one
	By    string              `json:"by"`
	At    time.Time           `json:"at"` // the leader's clock
}

// ErrNoImage refuses to update what runs in no container.
var ErrNoImage = errors.New("it runs in no image")

// Entry records it.
func (e JobUpdate) Entry() Entry { return Entry{Kind: KindUpdate, Update: &e} }

func (s *state) update(at time.Time, e JobUpdate) error {
	j, ok := s.Jobs[e.Job]
	switch {
	case !ok:
		return ErrNoJob
	case j.Outcome != nil:
		return ErrJobEnded
	case j.Stop != nil:
		return ErrJobStopping
	}
	now, err := j.UpdatedTo(e, at)
	if err == nil {
		s.Jobs[e.Job] = now
	}
	return err
}

// UpdatedTo is the job with another image. Of two updates before the first has proven itself, the image before both is
// the one to go back to.
func (j Job) UpdatedTo(e JobUpdate, at time.Time) (Job, error) {
	from := imageOf(j.Spec)
	switch {
	case j.Spec.Service == nil:
		return j, ErrNoService
	case from == "":
		return j, ErrNoImage
	case from == e.Image:
		return j, fmt.Errorf("%w: it has the image %s already", launcher.ErrInvalid, e.Image)
	}
	if j.Update != nil && !(e.Proven && j.Plan.Generation >= j.Update.Since) {
		from = j.Update.From
	}
	j.Update = &Updated{From: from, Since: j.Plan.Generation + 1, By: e.By, At: at}
	j.Spec = withImage(j.Spec, e.Image)
	return j, nil
}

// Settled is the job as its next generation has it, once its attempts are complete: an update that became ready stands,
// and one that did not is taken back.
func (j Job) Settled() Job {
	u := j.Update
	if u == nil {
		return j
	}
	for _, a := range j.Attempts {
		switch {
		case a.Generation < u.Since || a.Stage != "":
		case a.Started != nil:
			j.Update = nil
			return j
		default:
			j.Spec, j.Update = withImage(j.Spec, u.From), nil
			return j
		}
	}
	return j
}

// failsUpdate tells whether a generation that ended so takes the job's update back.
func (j Job) failsUpdate(out Outcome) bool {
	return j.Update != nil && j.Plan.Generation >= j.Update.Since && j.Plan.Stage == "" && out.Started == nil &&
		(out.End == Failed || out.End == Rejected)
}

// GoesBack says to which image an update is taken back if a generation ends so; empty: it is not.
func (j Job) GoesBack(out Outcome) string {
	if !j.failsUpdate(out) {
		return ""
	}
	return "it goes back to " + j.Update.From
}

// Image is the image of its main stage; empty: it has none.
func (j Job) Image() string { return imageOf(j.Spec) }

// imageOf is the image of a job's main stage; empty: it has none.
func imageOf(spec launcher.Spec) string {
	if st := spec.MainStage(); st != nil && st.Container != nil {
		return st.Container.Image
	}
	return ""
}

// withImage is a copy of a spec of which each stage in the main stage's image has another one.
func withImage(spec launcher.Spec, image string) launcher.Spec {
	from := imageOf(spec)
	spec.Stages = slices.Clone(spec.Stages)
	for i, st := range spec.Stages {
		if st.Container != nil && st.Container.Image == from {
			c := *st.Container
			c.Image = image
			spec.Stages[i].Container = &c
		}
	}
	return spec
}
