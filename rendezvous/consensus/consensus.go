// Package consensus keeps one replicated log for a state machine that it does not know:
// which node leads, in which term, and which entries are committed in which order.
//
// It decides who votes (see Desired), when this node is fit to lead (its disk answers, it
// reaches a quorum, every earlier entry is applied), and when it must stop taking part (a
// store that fails or hangs, an entry that this program does not know, a file that is not
// what was written).
//
// It must not know what an entry means, must not start or end anything on a node, must
// not treat a node as dead because gossip says so, and must never skip an entry.
package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// Errors of Apply, Verify and ApplyChange, for errors.Is. All but ErrUnknownOutcome mean
// that nothing was recorded.
var (
	// ErrNotLeader: ask the leader instead; errors.As with *NotLeaderError
	// gives its id.
	ErrNotLeader = errors.New("this node does not lead")
	// ErrNoLeader: as far as this node knows nobody leads, or leadership is just moving.
	// Ask again later.
	ErrNoLeader = errors.New("no leader is known")
	// ErrUnknownOutcome: the entry may or may not be committed, now or later.
	// Only an entry that is safe to apply twice may be sent again.
	ErrUnknownOutcome = errors.New("the outcome is not known")
	// ErrBusy: the log took no new entry within the time allowed.
	ErrBusy = errors.New("the log is busy")
	// ErrTooLarge: the entry is over MaxEntry.
	ErrTooLarge = errors.New("the entry is too large")
	// ErrStopped: the node has stopped taking part, by Close or by a fault.
	ErrStopped = errors.New("consensus is stopped")
	// ErrStaleChange: the membership has changed since the change was computed.
	ErrStaleChange = errors.New("the membership changed meanwhile")
	// ErrReopen is wrapped by OnFatal errors that opening the same folder again cures.
	ErrReopen = errors.New("consensus must be opened again")
)

// MaxEntry is the largest entry in bytes. Entries travel in front of
// heartbeats on one connection, so a larger one could cost the leadership.
const MaxEntry = 256 << 10

// NotLeaderError says who leads instead; Leader is "" if no leader is known.
type NotLeaderError struct{ Leader string }

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return ErrNotLeader.Error() + " and " + ErrNoLeader.Error()
	}
	return ErrNotLeader.Error() + "; " + e.Leader + " does"
}

// Is makes the error match ErrNotLeader, and ErrNoLeader if nobody leads.
func (e *NotLeaderError) Is(target error) bool {
	return target == ErrNotLeader || (target == ErrNoLeader && e.Leader == "")
}

// DefaultHeartbeat is how long a follower waits without hearing the leader before it votes for another.
const DefaultHeartbeat = 900 * time.Millisecond

// Config of one node. Zero durations and counts mean the default named.
type Config struct {
	// ID is the node's UUID. It is both raft's server id and its address, so that a new
	// IP address changes nothing in raft. Required.
	ID string
	// Dir is the folder of the log, the vote and the snapshots. It is made with mode 0700
	// if missing and belongs to one ID for ever. Required.
	Dir string
	// Machine is what committed entries are applied to. Required.
	Machine Machine

	// Dialer opens an authenticated raft connection to a node. Required
	// unless Transport is set.
	Dialer func(ctx context.Context, nodeID string) (net.Conn, error)
	// Accept yields raft connections that are already authenticated.
	// Required unless Transport is set.
	Accept <-chan net.Conn
	// Transport replaces Dialer and Accept in tests inside one process
	// (raft.NewInmemTransport); it must offer pre-votes.
	Transport raft.Transport

	// Bootstrap makes a new cluster with this node as its only voter. Only `init` may set
	// it: it is refused when the folder has any state, because a second bootstrap would
	// make a second cluster under the same ids.
	Bootstrap bool

	// Heartbeat is how long a follower waits without hearing the leader; default DefaultHeartbeat.
	// raft checks it only when a timer of 1-2 heartbeats fires, and a new leader needs a
	// second voter that has noticed too, so the worst case is 3 heartbeats: with 1 s a
	// new leader within 3 s could not be promised.
	Heartbeat time.Duration
	// Beat is the least pause between two heartbeats that a leader sends to one server;
	// each is up to twice that. Default 2/9 of Heartbeat, 200 ms: every one wakes both
	// nodes. The longest pause, and what a change of route takes then (300 ms, see
	// dial), must fit into Lease.
	Beat time.Duration
	// Election is how long a candidate waits for votes; default Heartbeat,
	// and never less.
	Election time.Duration
	// Lease is how long a leader goes on without hearing a quorum; default Heartbeat, and
	// never more. Safety does not depend on it (see Verify), and each lost lease costs an
	// election.
	Lease time.Duration
	// Commit is how long a follower waits at least, and up to twice as long, to learn of
	// a commit when no other entry follows; default 500 ms. A leader sends each server an
	// empty entry that often.
	Commit time.Duration
	// RPCTimeout bounds one exchange with a peer; default 3 s. With a longer one a silent
	// connection could hold back its follower.
	RPCTimeout time.Duration

	// SnapshotThreshold is the number of entries after which a snapshot is taken; default
	// 128. SnapshotInterval is how often that is checked; default 10 s (raft spreads it
	// over 1-2 intervals). The log is mapped into memory: what it grows to in between
	// stays allocated.
	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	// TrailingLogs is the number of entries kept before a snapshot's end, so that a short
	// absence needs no snapshot; default 128.
	TrailingLogs uint64

	// StoreDeadline is how long one write to the log or the vote may take
	// before the disk counts as hung and the node stops taking part; default
	// 5 s. Snapshot writes get six times that.
	StoreDeadline time.Duration
	// ApplyTimeout is how long Apply waits for room in the log; default 10 s.
	ApplyTimeout time.Duration
	// HandOver is how long Close tries to pass on the leadership; default 2 s; below 0:
	// not at all.
	HandOver time.Duration

	// OnFatal is called once, in its own goroutine, when this node has stopped taking
	// part because of err. The owner then closes, repairs and opens again. OnFatal must
	// not call Close itself, because Close waits for it.
	OnFatal func(err error)
	// Logger gets raft's own log too; nil discards.
	Logger *slog.Logger

	// wrapStore lets a test put a slow or failing disk under the node.
	wrapStore func(diskStore) diskStore
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// withDefaults sets defaults and refuses what cannot work.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Heartbeat, DefaultHeartbeat)
	setDefault(&c.Beat, c.Heartbeat*2/9)
	setDefault(&c.Election, c.Heartbeat)
	setDefault(&c.Lease, c.Heartbeat)
	setDefault(&c.Commit, 500*time.Millisecond)
	setDefault(&c.RPCTimeout, 3*time.Second)
	setDefault(&c.SnapshotThreshold, 128)
	setDefault(&c.SnapshotInterval, 10*time.Second)
	setDefault(&c.TrailingLogs, 128)
	setDefault(&c.StoreDeadline, 5*time.Second)
	setDefault(&c.ApplyTimeout, 10*time.Second)
	setDefault(&c.HandOver, 2*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.OnFatal == nil {
		c.OnFatal = func(error) {}
	}
	switch {
	case c.ID == "":
		return c, errors.New("open consensus: ID is empty")
	case c.Dir == "":
		return c, errors.New("open consensus: Dir is empty")
	case c.Machine == nil:
		return c, errors.New("open consensus: Machine is nil")
	case c.Transport == nil && (c.Dialer == nil || c.Accept == nil):
		return c, errors.New("open consensus: neither Transport nor Dialer and Accept are set")
	}
	if c.Transport != nil {
		if _, ok := c.Transport.(raft.WithPreVote); !ok {
			return c, fmt.Errorf("open consensus: transport %T cannot ask for pre-votes", c.Transport)
		}
	}
	return c, nil
}

// raftConfig is the Config in raft's form.
func (c Config) raftConfig(notify chan<- bool) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.ID)
	rc.HeartbeatTimeout = c.Heartbeat
	rc.ElectionTimeout = c.Election
	rc.LeaderLeaseTimeout = c.Lease
	rc.CommitTimeout = c.Commit
	rc.SnapshotThreshold = c.SnapshotThreshold
	rc.SnapshotInterval = c.SnapshotInterval
	rc.TrailingLogs = c.TrailingLogs
	rc.NotifyCh = notify
	rc.NoLegacyTelemetry = true
	// A node that has been removed stays a quiet follower: the caller decides whether it
	// leaves for good.
	rc.ShutdownOnRemove = false
	rc.Logger = newHCLogger(c.Logger)
	return rc
}
