package rendezvous

import (
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Stop is an accepted request to end a job: from then on no generation of it begins,
// whoever leads.
type Stop struct {
	At     time.Time     `json:"at"`    // the leader's clock
	Grace  time.Duration `json:"grace"` // between TERM and KILL; 0 is KILL at once
	Reason string        `json:"reason,omitempty"`
	// Interrupt: somebody has typed Ctrl-C, so the ranks get INT first.
	Interrupt bool `json:"interrupt,omitempty"`
}

// JobStop records a request to end a job.
type JobStop struct {
	Job  launcher.JobID `json:"job"`
	Stop Stop           `json:"stop"`
}

// Entry records the request.
func (e JobStop) Entry() Entry { return Entry{Kind: KindStop, Stop: &e} }

// and combines two requests: the first one's reason, the shorter grace.
func (s *Stop) and(later *Stop) *Stop {
	switch {
	case s == nil:
		return later
	case later == nil:
		return s
	}
	both := *s
	both.Grace = min(s.Grace, later.Grace)
	return &both
}

func (s *state) stop(e JobStop) error {
	j, ok := s.Jobs[e.Job]
	switch {
	case !ok:
		return ErrNoJob
	case j.Outcome != nil:
		return ErrJobEnded
	}
	j.Stop, j.Touched = j.Stop.and(&e.Stop), s.Epoch
	s.Jobs[e.Job] = j
	return nil
}
