package launcher

import (
	"fmt"
	"time"
)

// EventKind says what an Event reports.
type EventKind string

const (
	Prepared EventKind = "prepared" // the node can start its ranks now
	Refused  EventKind = "refused"  // it cannot, or will not; nothing was started
	Started  EventKind = "started"  // every rank of the node has been exec'd
	Exited   EventKind = "exited"   // one rank has ended, and so has its output
	Stuck    EventKind = "stuck"    // the attempt was killed and a process is left: Text says which, and why
	Left     EventKind = "left"     // what a rank had left behind was ended: Text says what
	Ended    EventKind = "ended"    // no process of the attempt is left on the node
	// Suspended: a signal that was passed on has stopped ranks of the node, or woken them:
	// then Text is empty. An older leader ignores it.
	Suspended EventKind = "suspended"
	// Preparing: progress of something in prepare that may take long. An older leader
	// ignores it.
	Preparing EventKind = "preparing"
	// Probed: the present result of a step's probes on the node. Text is what is still
	// waited for, and empty once all have passed there.
	Probed EventKind = "probed"
	// Served: the state of a service has changed, or its metrics have. Sent by rank 0's
	// node alone. An older leader ignores it.
	Served EventKind = "served"
	// Returned: a rank of a stage that is replaced has been exec'd again.
	Returned EventKind = "returned"
)

// Event is a node's report on an attempt. Time is the node's clock.
type Event struct {
	Key
	Node  NodeID    `json:"node"`
	Kind  EventKind `json:"kind"`
	Time  time.Time `json:"time"`
	Port  int       `json:"port,omitempty"`  // Prepared on the head: the free port
	Rank  int       `json:"rank"`            // Exited, Returned; Left: -1 where several ranks have ended
	Again int       `json:"again,omitempty"` // Exited, Returned: the rank's incarnations before this one
	Exit  *Exit     `json:"exit,omitempty"`  // Exited
	Step  int       `json:"step,omitempty"`  // Started, Probed
	// Ports are the named ones that were found (Prepared).
	Ports map[string]Ports `json:"ports,omitempty"`
	// Moved counts the bytes that the step's ranks have written so far (Probed): while it
	// grows they are at work. Last is the end of that output.
	Moved int64  `json:"moved,omitempty"`
	Last  string `json:"last,omitempty"`
	// Refused: why, and what to do; Prepared: what to warn of; Stuck, Left, Suspended, Preparing
	Text string `json:"text,omitempty"`
	// Image is the ranks' image on the node (Prepared); nil: they run on the host.
	Image *ImageSeen `json:"image,omitempty"`
	// Service is what was found (Served).
	Service *ServiceSeen `json:"service,omitempty"`
}

// Phase is how far a node has come with one attempt. It only rises.
type Phase int

const (
	PhaseNone     Phase = iota // not known here
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
	Port    int    `json:"port,omitempty"` // the head's free port, or the one that it was started with
	Refused string `json:"refused,omitempty"`
	// Ports are the named ports that it found.
	Ports map[string]Ports `json:"ports,omitempty"`
	Image *ImageSeen       `json:"image,omitempty"` // as in Event
	Stuck string           `json:"stuck,omitempty"` // which processes were killed and are left
	// Suspended: this agent has passed on a signal that stops ranks, and since then none
	// that wakes them.
	Suspended bool `json:"suspended,omitempty"`
	// Service is the last state of a service that was seen, on rank 0's node.
	Service *ServiceSeen `json:"service,omitempty"`
	Ranks   []RankStatus `json:"ranks,omitempty"`
}

// RankStatus is one rank as its node sees it.
type RankStatus struct {
	Rank int `json:"rank"`
	// Again counts the incarnations before this one, all of them over.
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

// word names a number; one from a newer or a broken peer may be out of range.
func word[N ~int](n N, words ...string) string {
	if n < 0 || int(n) >= len(words) {
		return fmt.Sprintf("unknown (%d)", int(n))
	}
	return words[n]
}

// Before reports whether to is a later state of the rank, or of a later incarnation of it.
func (r RankStatus) Before(to RankStatus) bool {
	return to.Again > r.Again || to.Again == r.Again && to.State > r.State
}

// Advance moves a rank forward; for a step back or a repeat it changes nothing and returns
// false. A rank has ended only when waitpid and the end of its output have both been seen,
// and then stays ended in this incarnation.
func (r *RankStatus) Advance(to RankStatus) bool {
	if !r.Before(to) {
		return false
	}
	*r = to
	return true
}
