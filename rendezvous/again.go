package rendezvous

import (
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Attempt is a generation that has ended, in short.
type Attempt struct {
	Generation launcher.Generation `json:"generation"`
	Stage      string              `json:"stage,omitempty"`
	Hosts      []string            `json:"hosts"`
	Started    *time.Time          `json:"started,omitempty"` // when every rank had been exec'd
	Ended      time.Time           `json:"ended"`
	ExitCode   int                 `json:"exit_code"`
	Cause      string              `json:"cause,omitempty"`
	// Epoch is set on what another leader did at the same time, before a reunion.
	Epoch launcher.Epoch `json:"epoch,omitzero"`
}

// ByHand begins the cause of a generation that a person, who is named next, has ended to have it start anew.
const ByHand = "restarted by "

// Next is the generation that follows one that has ended.
type Next struct {
	Stage    string
	Restarts int
	Pause    time.Duration // before it
}

// Next says what follows a generation that ended with out; false: nothing does, and the
// job has ended. Only failures are tried again: a job that was stopped, that reached its
// time limit, or that was never started is not. Nor is one that was restored, which may
// have had its attempts already.
func (j Job) Next(out Outcome) (Next, bool) {
	if j.Restored != nil {
		return Next{}, false
	}
	if j.Spec.Service != nil && j.Plan.Stage == "" {
		return j.nextOfService(out)
	}
	n := Next{Restarts: j.Plan.Restarts}
	failed := out.End == Failed && out.ExitCode != launcher.ExitTimedOut || out.End == Rejected && n.Restarts > 0
	switch {
	case j.Plan.Stage == launcher.StageBefore && out.End == Completed:
		return n, true
	case j.Plan.Stage != "":
	case out.End == Completed && j.Spec.Stage(launcher.StageAfter) != nil:
		n.Stage = launcher.StageAfter
		return n, true
	case failed && n.Restarts < j.Spec.MaxRestarts:
		n.Restarts++
		n.Pause = pauseAfter(j.After(out).Attempts)
		return n, true
	}
	return Next{}, false
}

// After returns the job with its current generation added to its attempts.
func (j Job) After(out Outcome) Job {
	a := Attempt{Generation: j.Plan.Generation, Stage: j.Plan.Stage, Started: out.Started, Ended: out.At,
		ExitCode: out.ExitCode, Cause: out.Cause}
	for _, p := range j.Plan.Nodes {
		a.Hosts = append(a.Hosts, p.Host)
	}
	j.Attempts = append(slices.Clone(j.Attempts), a)
	for len(j.Attempts) > MaxAttempts {
		oldest := 0
		if last := j.lastReady(); j.Spec.Service != nil &&
			last == 0 { // its attempts say whether it has ever answered
			oldest = 1
		}
		j.Attempts = slices.Delete(j.Attempts, oldest, oldest+1)
	}
	j.Faults = j.faultsWith(out)
	return j
}

// lastReady is the latest attempt of the main stage that had all ranks, or of a service that
// answered; -1: none had.
func (j Job) lastReady() int {
	for i, a := range slices.Backward(j.Attempts) {
		if a.Stage == "" && a.Started != nil {
			return i
		}
	}
	return -1
}

// MainHosts lists the machines of the main stage by node rank, also while another stage runs.
func (j Job) MainHosts() []string {
	var hosts []string
	for _, p := range j.Plan.Nodes {
		hosts = append(hosts, p.Host)
	}
	switch j.Plan.Stage {
	case launcher.StageBefore: // the main stage gets the held nodes, except the spare ones, which Single puts first
		for _, h := range j.Plan.Held[min(j.Spec.Spare, len(j.Plan.Held)):] {
			hosts = append(hosts, h.Host)
		}
	case launcher.StageAfter:
		for _, a := range slices.Backward(j.Attempts) {
			if a.Stage == "" {
				return a.Hosts
			}
		}
	}
	return hosts
}

// The pause doubles from one quick failure to the next; the end of an attempt that ran
// for some time is not a quick failure.
const (
	firstPause = time.Second
	lastPause  = time.Minute
	goodRun    = 10 * time.Minute
)

func pauseAfter(attempts []Attempt) time.Duration {
	pause := firstPause
	for i, a := range slices.Backward(attempts) {
		if a.Stage != "" || a.Started != nil && a.Ended.Sub(*a.Started) >= goodRun {
			break
		}
		if i < len(attempts)-1 {
			pause = min(2*pause, lastPause)
		}
	}
	return pause
}

// AttemptText says which attempt of the main stage this is; empty if there can be only one.
func (j Job) AttemptText() string {
	switch {
	case j.Plan.Stage != "":
		return "--" + j.Plan.Stage
	case j.Spec.MaxRestarts == 0:
		return ""
	}
	return fmt.Sprintf("attempt %d of %d", j.Plan.Restarts+1, j.Spec.MaxRestarts+1)
}

// queue adds a job that waits for its first nodes: its plan has generation 0.
func (s *state) queue(j Job) error {
	if _, known := s.Jobs[j.Spec.ID]; known {
		return ErrJobExists
	}
	j.Plan, j.Outcome, j.Stop, j.Attempts, j.Touched = Plan{}, nil, nil, nil, s.Epoch
	s.Jobs[j.Spec.ID] = j
	s.prune()
	return nil
}

// Entry records the job's plan or, without one, that it waits for its nodes.
func (j Job) Entry() Entry {
	if j.Plan.Generation == 0 {
		return Entry{Kind: KindQueue, Job: &j}
	}
	return Entry{Kind: KindPlan, Job: &j}
}
