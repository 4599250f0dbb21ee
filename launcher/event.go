package launcher

import (
	"fmt"
	"time"
)

// EventKind says what an Event reports.
type EventKind string

const (
	Prepared EventKind = "prepared" // the node could start its ranks now
	Refused  EventKind = "refused"  // it could not, or would not; nothing was started
	Started  EventKind = "started"  // every rank of the node has been exec'd
	Exited   EventKind = "exited"   // one rank has ended, its output included
	Stuck    EventKind = "stuck"    // the attempt was killed and a process stays: Text says which, and why
	Ended    EventKind = "ended"    // no process of the attempt is left on the node
	// Suspended: a signal that was passed on has stopped ranks of the node, or woken
	// them: then Text is empty. An older leader passes over it.
	Suspended EventKind = "suspended"
	// Preparing: the node is at work on something that may take long, and has come
	// further with it. An older leader passes over it.
	Preparing EventKind = "preparing"
	// Probed: what a step's probes say on the node now. Text is what is still waited
	// for, and empty once all have passed there.
	Probed EventKind = "probed"
	// Served: what was found at a look at a service: its state is another, or its metrics are.
	// Sent by rank 0's node alone. An older leader passes over it.
	Served EventKind = "served"
	// Returned: a rank of a stage that is replaced has been exec'd anew.
	Returned EventKind = "returned"
)

// Event is what a node tells about an attempt. Time is the node's clock.
type Event struct {
	Key
	Node  NodeID    `json:"node"`
	Kind  EventKind `json:"kind"`
	Time  time.Time `json:"time"`
	Port  int       `json:"port,omitempty"`  // Prepared on the head: the free port
	Rank  int       `json:"rank"`            // Exited, Returned
	Again int       `json:"again,omitempty"` // Exited, Returned: the rank's incarnations before this one
	Exit  *Exit     `json:"exit,omitempty"`  // Exited
	Step  int       `json:"step,omitempty"`  // Started, Probed
	// Ports are the named ones that were found (Prepared).
	Ports map[string]Ports `json:"ports,omitempty"`
	// Moved counts what the step's ranks have written so far, in bytes (Probed): while it
	// grows they are at work. Last is the end of it.
	Moved int64  `json:"moved,omitempty"`
	Last  string `json:"last,omitempty"`
	// Refused: why, and what to do; Prepared: what to warn of; Stuck, Suspended, Preparing
	Text string `json:"text,omitempty"`
	// Image is what the node has of the ranks' image (Prepared); nil: they run on the host.
	Image *ImageSeen `json:"image,omitempty"`
	// Service is what was found (Served).
	Service *ServiceSeen `json:"service,omitempty"`
}

// Phase is how far a node has come with one attempt of an attempt. It only rises.
type Phase int

const (
	PhaseNone     Phase = iota // never heard of it
	PhasePrepared              // ready; no rank has been exec'd
	PhaseStarted               // at least one rank may have been exec'd
	PhaseEnded                 // no process is left, and none will start
)

func (p Phase) String() string {
	return word(p, "none", "prepared", "started", "ended")
}

// LedgerEntry is what a node knows about one attempt: what a new leader adopts.
type LedgerEntry struct {
	Key
	Phase   Phase  `json:"phase"`
	Port    int    `json:"port,omitempty"` // the head's free port, or the one it was started with
	Refused string `json:"refused,omitempty"`
	// Ports are the named ones that it found.
	Ports map[string]Ports `json:"ports,omitempty"`
	Image *ImageSeen       `json:"image,omitempty"` // as in Event
	Stuck string           `json:"stuck,omitempty"` // what was killed and stays
	// Suspended: this agent has passed on a signal that stops ranks, and none since that wakes them.
	Suspended bool `json:"suspended,omitempty"`
	// Service is what was last seen of one, on rank 0's node.
	Service *ServiceSeen `json:"service,omitempty"`
	Ranks   []RankStatus `json:"ranks,omitempty"`
}

// RankStatus is one rank as its node sees it.
type RankStatus struct {
	Rank int `json:"rank"`
	// Again counts the incarnations that it has had before, all of them over.
	Again int       `json:"again,omitempty"`
	State RankState `json:"state"`
	PID   int       `json:"pid,omitempty"`
	Exit  *Exit     `json:"exit,omitempty"`
	Time  time.Time `json:"time"` // of the last change of state
}

// RankState is how far an incarnation of a rank has come. It only rises.
type RankState int

const (
	RankPending RankState = iota
	RankRunning
	RankEnded
)

func (s RankState) String() string {
	return word(s, "pending", "running", "ended")
}

// word names a number that may have come from a newer or a broken peer.
func word[N ~int](n N, words ...string) string {
	if n < 0 || int(n) >= len(words) {
		return fmt.Sprintf("unknown (%d)", int(n))
	}
	return words[n]
}

// Before tells whether to is a later state of the rank, or of a later incarnation of it.
func (r RankStatus) Before(to RankStatus) bool {
	return to.Again > r.Again || to.Again == r.Again && to.State > r.State
}

// Advance moves a rank forward; a step back or a repeat changes nothing and is
// told by false. A rank has ended only when waitpid and the end of its output
// have both been seen, and then stays ended in this incarnation.
func (r *RankStatus) Advance(to RankStatus) bool {
	if !r.Before(to) {
		return false
	}
	*r = to
	return true
}
