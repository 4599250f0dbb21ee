package rendezvous

import (
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// Step says what a Progress is about.
type Step string

const (
	StepPlanned   Step = "planned"   // recorded: from now on the cluster knows the job
	StepPreparing Step = "preparing" // a node does something that may take long: the text says what, and how far it is
	StepPrepared  Step = "prepared"  // a node is ready to start its ranks
	StepRefused   Step = "refused"   // a node cannot start its ranks
	StepStarted   Step = "started"   // every rank of a node has been exec'd
	StepRunning   Step = "running"   // every rank of the job has been exec'd
	StepExited    Step = "exited"    // a rank has ended
	StepNodeDown  Step = "node-down" // a planned node does not answer
	StepNodeUp    Step = "node-up"   // it answers again
	StepEnding    Step = "ending"    // the ranks are being ended
	StepAgain     Step = "again"     // another generation will follow: the text says why, and when
	StepWaiting   Step = "waiting"   // for what the text says
	StepStuck     Step = "stuck"     // what the text names was killed and does not exit; its node is drained
	StepLeft      Step = "left"      // what a rank had left behind was ended: see the text
	StepAlone     Step = "alone"     // what was recorded last is on one machine only (OnlyOn)
	StepStage     Step = "stage"     // news of one of the job's stages: see the text
	StepServes    Step = "serves"    // the state of a service has changed: see the text
	StepEnded     Step = "ended"     // the outcome is recorded
)

// Progress is one entry of a job's event log. Followers get the entries in order.
type Progress struct {
	Step Step           `json:"step"`
	Time time.Time      `json:"time"` // the leader's clock, except StepExited: the node's
	Job  launcher.JobID `json:"job"`
	// Generation that this entry is about: each has its own steps.
	Generation launcher.Generation `json:"generation,omitempty"`
	Host       string              `json:"host,omitempty"`
	Rank       *int                `json:"rank,omitempty"` // StepExited
	Exit       *launcher.Exit      `json:"exit,omitempty"`
	Text       string              `json:"text,omitempty"`
	Plan       *Plan               `json:"plan,omitempty"`    // StepPlanned
	Outcome    *Outcome            `json:"outcome,omitempty"` // StepEnded
	// Ports are the named ones on the head (StepRunning).
	Ports map[string]launcher.Ports `json:"ports,omitempty"`
	// Service is what was seen of it (StepServes).
	Service *launcher.ServiceSeen `json:"service,omitempty"`
	// OnlyOn is the only host that has what was recorded (StepAlone, StepEnded); empty if
	// others have it too.
	OnlyOn string `json:"recorded_only_on,omitempty"`
	// Findings are what the preflight warned of (StepPlanned).
	Findings []envgen.Finding `json:"findings,omitempty"`
}

// State is a job's state in a word, for lists.
type State string

const (
	StatePlanned State = "planned" // recorded; how far it got is not known here
	StateStarts  State = "starting"
	StateRuns    State = "running"
	StateEnds    State = "ending"
	StateWaits   State = "waiting"    // for what its next generation needs
	StateAgain   State = "restarting" // its next generation follows by itself
	StateAsleep  State = "asleep"     // a service on demand: a request for it starts it
)

// Text is a state for people. For a job that is only known to be recorded, "planned" would read as not begun.
func (s State) Text() string {
	if s == StatePlanned {
		return "unknown"
	}
	return string(s)
}

// JobStatus is a job with its current state.
type JobStatus struct {
	Job
	State   State      `json:"state"`             // or the outcome's End
	Started *time.Time `json:"started,omitempty"` // when every rank had been exec'd
	// Away lists planned hosts that do not answer.
	Away []string `json:"away,omitempty"`
	// Done are the ranks that have exited with 0 while the job goes on.
	Done []int `json:"done,omitempty"`
	// AwaySince says since when each of them has not answered, by host, on the leader's
	// clock; not earlier than the begin of its leadership.
	AwaySince map[string]time.Time `json:"away_since,omitempty"`
	// Suspended lists hosts whose ranks were stopped by a signal that was passed on to
	// them, such as Ctrl-Z in launch. On a host that has been away since they may run
	// again.
	Suspended []string `json:"suspended,omitempty"`
	// Waits says what a job waits for.
	Waits string `json:"waits,omitempty"`
	// Moves: it is about to be ended, to go on elsewhere or with another image: it is sent no request any more.
	Moves bool `json:"moves,omitempty"`
	// AgainAt is when the next generation is due, if that is known (StateAgain).
	AgainAt *time.Time `json:"again_at,omitempty"`
	// FabricOnly lists planned hosts that the leader reaches over the fabric only: on the management network they
	// do not answer.
	FabricOnly []string `json:"fabric_only,omitempty"`
	// FabricLost lists planned hosts of which a port has no link now by which the job's ranks meet.
	FabricLost []string `json:"fabric_lost,omitempty"`
	// Service is what rank 0's node has last seen of a service; nil: nothing was reported yet.
	Service *launcher.ServiceSeen `json:"service,omitempty"`
	// Last is how the generation before ended, while the next one is waited for.
	Last *Outcome `json:"last,omitempty"`
	// Line is its place among those that wait for their first nodes, from 1.
	Line int `json:"line,omitempty"`
}

// MainHosts lists the machines of the main stage by node rank; none while the job sleeps.
func (s JobStatus) MainHosts() []string {
	if s.State == StateAsleep {
		return nil
	}
	return s.Job.MainHosts()
}

// StatusOf gives what the record alone knows about a job.
func StatusOf(j Job) JobStatus {
	switch {
	case j.Outcome != nil:
		return JobStatus{Job: j, State: State(j.Outcome.End), Started: j.Outcome.Started}
	case j.Verdict != nil, j.Stop != nil:
		return JobStatus{Job: j, State: StateEnds}
	}
	return JobStatus{Job: j, State: StatePlanned}
}
