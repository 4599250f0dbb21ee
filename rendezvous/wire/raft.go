package wire

import (
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// RaftStatus is where every copy of the record stands.
type RaftStatus struct {
	Cluster string          `json:"cluster"`
	Epoch   uint64          `json:"epoch"`
	EpochBy launcher.NodeID `json:"epoch_by,omitempty"`
	Term    uint64          `json:"term"`
	Self    string          `json:"self"`   // the answering node's host name
	Role    string          `json:"role"`   // its part: "leader", "voter", "standby", or "" for none
	Leader  string          `json:"leader"` // host name; empty = none is known
	// Problem says why there is no leader. What Nodes say is then what each of them
	// knows, and of one that does not answer what the answering node remembers.
	Problem string     `json:"problem,omitempty"`
	Nodes   []NodeRaft `json:"nodes"` // by name
}

// NodeRaft is one node's part in raft. Indexes are of entries; 0 where there are
// none.
type NodeRaft struct {
	ID      launcher.NodeID `json:"id"`
	Host    string          `json:"host"`
	Role    string          `json:"role"`            // "leader", "voter", "standby", or "" for none
	State   string          `json:"state,omitempty"` // of its raft: "leader", "follower", "candidate", "stopped"
	Version string          `json:"version,omitempty"`
	Epoch   uint64          `json:"epoch,omitempty"`
	Term    uint64          `json:"term,omitempty"`
	Commit  uint64          `json:"commit,omitempty"`  // the last entry that it knows to be committed
	Applied uint64          `json:"applied,omitempty"` // the last one in its record
	First   uint64          `json:"first,omitempty"`   // in its log
	Last    uint64          `json:"last,omitempty"`    // in its log or snapshot
	// Contact is how long ago it heard the leader, in nanoseconds; nil: never, or
	// it leads.
	Contact  *time.Duration `json:"contact,omitempty"`
	LogBytes int64          `json:"log_bytes,omitempty"`
	// Snapshot is its newest one; nil: none yet.
	Snapshot *RaftSnapshot `json:"snapshot,omitempty"`
	// Blank: it has lost its copy, and does not vote before the cluster has taken
	// it in anew.
	Blank bool `json:"blank,omitempty"`
	// Silent is how long the leader has not heard it, in nanoseconds.
	Silent time.Duration `json:"silent,omitempty"`
	Error  string        `json:"error,omitempty"` // why nothing is known of it
}

// RaftSnapshot is one of raft's own, on a node's disk.
type RaftSnapshot struct {
	Index uint64    `json:"index"`
	Bytes int64     `json:"bytes"`
	Time  time.Time `json:"time"`
}

// RaftPiece is a piece of a backup of the record; pieces come in order.
type RaftPiece struct {
	Offset int64  `json:"offset,omitempty"`
	Data   []byte `json:"data"`
}

// MaxPiece is the largest piece in bytes.
const MaxPiece = 1 << 20

// RaftRestoreRequest has the node restore what was brought there by RaftBring.
type RaftRestoreRequest struct {
	Sum   string `json:"sum"`             // of the backup: no other is restored
	Check bool   `json:"check,omitempty"` // only ask whether it could
	Force bool   `json:"force,omitempty"` // beside a leader, and over a newer copy
}

// RaftRestoreResponse says who is to lead, in which epoch, and where the record
// is that was there before; empty where there was none.
type RaftRestoreResponse struct {
	Host  string `json:"host"`
	Epoch uint64 `json:"epoch"`
	Kept  string `json:"kept,omitempty"`
}

// SeenRequest tells a member of which incarnation of its state the caller is: see
// SeenResponse. 0 asks only.
type SeenRequest struct {
	Incarnation uint64 `json:"life,omitempty"`
}
