package rendezvous

import (
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// Step says what a Progress tells.
type Step string

const (
	StepPlanned   Step = "planned"   // recorded: from here on the job is known to the cluster
	StepPreparing Step = "preparing" // a node is at work on what may take long: the text says on what, and how far it is
	StepPrepared  Step = "prepared"  // a node could start its ranks now
	StepRefused   Step = "refused"   // a node could not
	StepStarted   Step = "started"   // every rank of a node has been exec'd
	StepRunning   Step = "running"   // every rank of the job has been
	StepExited    Step = "exited"    // a rank has ended
	StepNodeDown  Step = "node-down" // a planned node does not answer
	StepNodeUp    Step = "node-up"   // it answers again
	StepEnding    Step = "ending"    // the ranks are being ended
	StepAgain     Step = "again"     // another generation will follow: the text says why, and when
	StepWaiting   Step = "waiting"   // for what the text says
	StepStuck     Step = "stuck"     // what the text says was killed and stays; its node is drained
	StepAlone     Step = "alone"     // what was recorded last is on one machine only, which OnlyOn names
	StepStage     Step = "stage"     // what the text says has become of one of the job's stages
	StepServes    Step = "serves"    // a service does otherwise than before: the text says how
	StepEnded     Step = "ended"     // the outcome is recorded
)

// Progress is one entry of a job's event log, told in order to whoever follows it.
type Progress struct {
	Step Step           `json:"step"`
	Time time.Time      `json:"time"` // the leader's clock, except StepExited: the node's
	Job  launcher.JobID `json:"job"`
	// Generation that this is of: each tells its own steps.
	Generation launcher.Generation `json:"generation,omitempty"`
	Host       string              `json:"host,omitempty"`
	Rank       int                 `json:"rank"` // StepExited
	Exit       *launcher.Exit      `json:"exit,omitempty"`
	Text       string              `json:"text,omitempty"`
	Plan       *Plan               `json:"plan,omitempty"`    // StepPlanned
	Outcome    *Outcome            `json:"outcome,omitempty"` // StepEnded
	// Ports are the named ones on the head (StepRunning).
	Ports map[string]launcher.Ports `json:"ports,omitempty"`
	// Service is what was seen of it (StepServes).
	Service *launcher.ServiceSeen `json:"service,omitempty"`
	// OnlyOn is the one host that has what is recorded here (StepAlone, StepEnded);
	// empty where others have it, too.
	OnlyOn string `json:"recorded_only_on,omitempty"`
	// Findings are what the preflight warned of (StepPlanned).
	Findings []envgen.Finding `json:"findings,omitempty"`
}

// State is a job's state in a word, for lists.
type State string

const (
	StatePlanned State = "planned" // recorded; how far it came is not known here
	StateStarts  State = "starting"
	StateRuns    State = "running"
	StateEnds    State = "ending"
	StateWaits   State = "waiting"    // for what its next generation needs
	StateAgain   State = "restarting" // its next generation follows by itself
)

// JobStatus is a job with its state now.
type JobStatus struct {
	Job
	State   State      `json:"state"`             // or the outcome's End
	Started *time.Time `json:"started,omitempty"` // when every rank had been exec'd
	// Away lists planned hosts that do not answer.
	Away []string `json:"away,omitempty"`
	// Done are the ranks that have exited with 0 while the job goes on.
	Done []int `json:"done,omitempty"`
	// AwaySince is since when each of them does not, by host and the leader's clock,
	// at the earliest since it leads.
	AwaySince map[string]time.Time `json:"away_since,omitempty"`
	// Suspended lists hosts whose ranks were stopped by a signal that was passed on to
	// them, as Ctrl-Z in launch is. Who has been away since may have woken them.
	Suspended []string `json:"suspended,omitempty"`
	// Waits says what a job waits for.
	Waits string `json:"waits,omitempty"`
	// AgainAt is when the next generation is due, where that is known (StateAgain).
	AgainAt *time.Time `json:"again_at,omitempty"`
	// FabricOnly lists planned hosts that the leader reaches over the fabric alone: who asks
	// for them on the management network is not answered.
	FabricOnly []string `json:"fabric_only,omitempty"`
	// Service is what rank 0's node has last seen of a service; nil: nothing was told yet.
	Service *launcher.ServiceSeen `json:"service,omitempty"`
	// Line is its place among those that wait for their first nodes, from 1.
	Line int `json:"line,omitempty"`
}

// StatusOf gives what the record alone can tell of a job.
func StatusOf(j Job) JobStatus {
	switch {
	case j.Outcome != nil:
		return JobStatus{Job: j, State: State(j.Outcome.End), Started: j.Outcome.Started}
	case j.Verdict != nil, j.Stop != nil:
		return JobStatus{Job: j, State: StateEnds}
	}
	return JobStatus{Job: j, State: StatePlanned}
}
