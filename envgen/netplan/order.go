package netplan

import (
	"context"
	"time"
)

// Order is one change of this node's file.
type Order struct {
	// Change is the name of the change that this order is a part of on its node; Last tells it afterwards.
	Change string
	// Text is the new content of Path; nil removes it.
	Text *string
	// NICs are the node's fabric interfaces, Management the one the cluster talks over.
	NICs       []Twin
	Management Twin
	// Peers are those that are up: one that is off would undo the change.
	Peers []Peer
	// Force writes although other files spoil ours, and undoes over a person's edit. It overrides nothing else.
	Force bool
	// Grace is how long peers have to answer; 0 means Config.Grace.
	Grace time.Duration
	// Agree waits for the other nodes, twice: with StateApplied before the peers are asked, for they answer only once
	// they have applied too, and with StateReached before the commit. An error rolls back. It has twice ApplyTimeout,
	// then ApplyTimeout + Grace. nil waits for nobody, so that a node stays with the new file when its neighbour goes
	// back to the old one.
	Agree func(ctx context.Context, got State) error
	// Tell is told each state as the change gets there, and must not block; nil tells nobody.
	Tell func(State)
}

// Outcome says what a change came to.
type Outcome struct {
	State State
	// Changes and Diff are what was, or would have been, done.
	Changes []Change
	Diff    string
	// Mentions are other files that name the interfaces.
	Mentions []Mention
}

// State is how far a change got. It moves forward only.
type State string

const (
	StateChecked    State = "checked"     // netplan accepts it, nothing is written
	StateMarked     State = "marked"      // what was there is safe, and a crash from here on is undone
	StateWritten    State = "written"     // the file is there
	StateApplied    State = "applied"     // netplan apply has run
	StateReached    State = "reached"     // all peers answer
	StateCommitted  State = "committed"   // it stays
	StateUnchanged  State = "unchanged"   // the file was as ordered already
	StateRolledBack State = "rolled back" // what was there is in force again
)
