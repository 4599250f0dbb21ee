package failover

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/durable"
)

// Files and folders in STATE.
const (
	stateFile   = "failover.json"
	raftFolder  = "raft"
	oldFolder   = "raft.old"     // the copy of the record before this one
	newFolder   = "raft.new"     // a restored one that is being made
	broughtFile = "restore.part" // a snapshot that is being received
	restoreFile = "restore.snap" // the one that the next start restores
)

// state is what a node must never forget about its part in who leads. It is written
// atomically and durably, because it must survive a power cut.
type state struct {
	Founder bool            `json:"founder,omitempty"` // it founded the cluster and bootstraps raft once
	Epoch   uint64          `json:"epoch"`
	EpochBy launcher.NodeID `json:"epoch_by,omitempty"`
	// Pending is what the next start does first; Dead are the nodes that a person
	// confirmed dead with a take-over.
	Pending pending           `json:"pending,omitempty"`
	Dead    []launcher.NodeID `json:"dead,omitempty"`
	// Incarnation counts openings of this state and hours of running; RaftIncarnation is the least that the raft
	// folder must have, 0 if the folder may be new; Blank: that folder was lost. Incarnations are the highest that
	// members have told. See incarnation.go.
	Incarnation     uint64                     `json:"life,omitempty"`
	RaftIncarnation uint64                     `json:"raft_life,omitempty"`
	Blank           bool                       `json:"blank,omitempty"`
	Incarnations    map[launcher.NodeID]uint64 `json:"lives,omitempty"`
}

// pending is a change of epochs that is under way: written before it begins and cleared
// when it is done, so that a crash in between changes nothing.
type pending string

const (
	pendingTakeOver pending = "take-over"
	pendingGiveWay  pending = "give-way"
	pendingRestore  pending = "restore"
)

func (s state) epoch() launcher.Epoch { return launcher.Epoch{N: s.Epoch, By: s.EpochBy} }

// Enrol writes the state of a machine that becomes a member in an epoch, in the
// folder STATE. The founder of a cluster bootstraps raft at its first start.
func Enrol(dir string, e launcher.Epoch, founder bool) error {
	return state{Founder: founder, Epoch: e.N, EpochBy: e.By}.save(filepath.Join(dir, stateFile))
}

func loadState(path string) (s state, err error) {
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("read the state of this node's vote %s: %w", path, err)
	}
	return s, nil
}

func (s state) save(path string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = durable.Write(path, append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the state of this node's vote: %w", err)
	}
	return nil
}

// change edits the state and saves it.
func (f *Failover) change(edit func(*state)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.state
	edit(&s)
	if err := s.save(f.path(stateFile)); err != nil {
		return err
	}
	f.state = s
	return nil
}
