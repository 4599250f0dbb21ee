package netplan

import (
	"context"
	"time"
)

// Order is one change of this node's file.
type Order struct {
	// Change is the name of the change over all nodes that this order is a part of; Last gives it
	// afterwards.
	Change string
	// Text is the new content of Path; nil removes it.
	Text *string
	// NICs are the node's fabric interfaces, Management the one the cluster talks over.
	NICs       []Twin
	Management Twin
	// Peers are those that are up: one that is off would undo the change.
	Peers []Peer
	// Force writes although other files break ours, and undoes over a person's edit. It overrides nothing else.
	Force bool
	// Grace is how long peers have to answer; 0 means Config.Grace.
	Grace time.Duration
	// Agree waits for the other nodes, twice: with StateApplied before the peers are asked, since they answer only
	// once they have applied too, and with StateReached before the commit. An error rolls back. It may take twice
	// ApplyTimeout, then ApplyTimeout + Grace. nil waits for no other node, so that a node keeps the new file when
	// its neighbour goes back to the old one.
	Agree func(ctx context.Context, got State) error
	// Tell is called with each state that the change reaches, and must not block; nil: nobody
	// is told.
	Tell func(State)
}

// Outcome is the result of a change.
type Outcome struct {
	State State
	// Changes and Diff are what was done, or would have been.
	Changes []Change
	Diff    string
	// Mentions are other files that name the interfaces.
	Mentions []Mention
}

// State is how far a change got. It only moves forward.
type State string

const (
	StateChecked    State = "checked"     // netplan accepts it, nothing is written
	StateMarked     State = "marked"      // the old file is saved, and a crash from here on is undone
	StateWritten    State = "written"     // the file is there
	StateApplied    State = "applied"     // netplan apply has run
	StateReached    State = "reached"     // all peers answer
	StateCommitted  State = "committed"   // it stays
	StateUnchanged  State = "unchanged"   // the file was as ordered already
	StateRolledBack State = "rolled back" // the old file is in force again
)
