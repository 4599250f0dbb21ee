package failover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A voter must never forget its vote, nor what it has confirmed to have stored: others
// have counted on it. A raft folder that is gone, or older than it was, has forgotten. So
// each state has an incarnation, a number that only rises. It is written in failover.json
// and in the raft folder, and two members exchange it before any raft message. See
// rendezvous/DESIGN.md, "Who has lost its copy".

const (
	incarnationFile = "life" // in the raft folder
	// raiseEvery is how often the incarnation rises while the agent runs: this reveals a
	// whole state that was restored from an older backup.
	raiseEvery = time.Hour
	// exchangeWithin bounds the exchange with one member.
	exchangeWithin = 3 * time.Second
)

// errBlank keeps raft from a node that has lost its copy.
var errBlank = errors.New("this node has lost its copy of the record and takes no part in raft until a leader takes " +
	"it in anew")

// beginIncarnation checks that the raft folder is the one that this node had and raises
// the incarnation. An older folder is put aside, and the node is blank.
func (f *Failover) beginIncarnation(dir string) error {
	in, err := readIncarnation(dir)
	if err != nil {
		return err
	}
	if in < f.state.RaftIncarnation {
		f.log.Error("the raft folder is gone, or older than it was: this node does not vote before a leader has taken it "+
			"in anew",
			"folder", dir, "incarnation", in, "was", f.state.RaftIncarnation, "kept", f.path(oldFolder))
		if err := f.change(func(s *state) { s.Blank = true }); err != nil {
			return err
		}
		if err := putAside(dir, f.path(oldFolder)); err != nil {
			return err
		}
	}
	f.blank.Store(f.state.Blank)
	f.state.Incarnation = max(f.state.Incarnation, in) // the last failover.json may have been lost in a power cut
	return f.raiseIncarnation(dir)
}

// raiseIncarnation raises the incarnation: first in the folder, so that a crash never leaves the folder behind
// failover.json. The folder's disk may hang, so f.mu is not held during that write.
func (f *Failover) raiseIncarnation(dir string) error {
	f.mu.Lock()
	incarnation := f.state.Incarnation + 1
	f.mu.Unlock()
	if err := writeWhole(filepath.Join(dir, incarnationFile),
		[]byte(strconv.FormatUint(incarnation, 10)+"\n")); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.RaftIncarnation > incarnation {
		return nil // in the meantime the state turned out to be from a backup
	}
	f.state.Incarnation, f.state.RaftIncarnation = incarnation, incarnation
	return f.state.save(f.path(stateFile))
}

// readIncarnation gives the incarnation of a raft folder; 0 if there is none.
func readIncarnation(dir string) (uint64, error) {
	path := filepath.Join(dir, incarnationFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	if incarnation, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
		return incarnation, nil
	}
	return 0, nil // unreadable: the node is blank
}

// putAway makes room for another raft folder. A blank node's folder is discarded: it
// never had anything, and what was put aside earlier may be worth more.
func (f *Failover) putAway(dir string) error {
	if !f.state.Blank {
		if err := putAside(dir, f.path(oldFolder)); err != nil {
			return err
		}
	}
	if err := discard(dir); err != nil {
		return fmt.Errorf("make room for a new record: %w", err)
	}
	return nil
}

// exchange tells a member this node's incarnation, once in each incarnation of either, and learns whether the
// member knows a higher one. No raft message passes between the two before that.
func (f *Failover) exchange(ctx context.Context, id launcher.NodeID) error {
	if f.blank.Load() {
		return errBlank
	}
	f.mu.Lock()
	incarnation := f.state.Incarnation
	done := f.told[id] == incarnation
	f.mu.Unlock()
	if done {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeWithin)
	defer cancel()
	res, err := wire.Seen.Call(ctx, f.cfg.Dial.Client(id), wire.SeenRequest{Incarnation: incarnation})
	if err != nil {
		return fmt.Errorf("tell node %s this node's incarnation: %w", id, err)
	}
	if res.Incarnation > incarnation {
		return f.wasPutBack(f.cfg.Dial.HostOf(id), incarnation, res.Incarnation)
	}
	f.mu.Lock()
	f.told[id] = incarnation
	f.mu.Unlock()
	return nil
}

// exchangeAll exchanges incarnations with all members in advance, so that no election
// waits for it, and raises this node's from time to time.
func (f *Failover) exchangeAll(ctx context.Context) error {
	older := time.NewTicker(raiseEvery)
	defer older.Stop()
	retry := time.NewTicker(5 * time.Second)
	defer retry.Stop()
	for {
		_, changed := f.cfg.Present.Watch()
		alive := f.present()
		for _, s := range f.raft.Members().Servers { // only these have raft connections
			id := launcher.NodeID(s.ID)
			if id == f.cfg.Self.ID || !alive[id] || f.blank.Load() || !f.HasPart(f.cfg.Self.ID) {
				continue
			}
			if err := f.exchange(ctx, id); err != nil {
				f.log.Debug("exchange incarnations", "node", id, "error", err)
			}
		}
		select {
		case <-changed:
		case <-retry.C:
		case <-older.C:
			if f.blank.Load() {
				continue
			}
			if err := f.raiseIncarnation(f.path(raftFolder)); err != nil {
				f.log.Warn("raise the incarnation of this node's state", "error", err) // the next tick tries again
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wasPutBack handles a state that a member has seen in a higher incarnation: it was
// restored from a backup. The node goes on without its copy of the record.
func (f *Failover) wasPutBack(host string, mine, incarnation uint64) error {
	err := fmt.Errorf("this node's state is older than the one that %s has seen (incarnation %d, not %d): it was "+
		"restored from a backup", host,
		incarnation, mine)
	f.log.Error("begin without the copy of the record", "error", err)
	saveErr := f.change(func(s *state) {
		s.Incarnation, s.RaftIncarnation = max(s.Incarnation, incarnation),
			incarnation+1 // above that of the folder, so that beginIncarnation puts the folder aside
	})
	if saveErr != nil {
		return errors.Join(err, saveErr)
	}
	f.blank.Store(true)
	f.reopenOnce.Do(func() { close(f.reopen) })
	return err
}

// noteIncarnation stores a member's incarnation, durably before the answer, and gives the
// highest one that the member ever told.
func (f *Failover) noteIncarnation(id launcher.NodeID, incarnation uint64) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if incarnation <= f.state.Incarnations[id] {
		return f.state.Incarnations[id], nil
	}
	incarnations := maps.Clone(f.state.Incarnations)
	if incarnations == nil {
		incarnations = map[launcher.NodeID]uint64{}
	}
	if _, known := f.cfg.Record.Node(id); known {
		maps.DeleteFunc(incarnations, func(old launcher.NodeID, _ uint64) bool {
			_, member := f.cfg.Record.Node(old)
			return !member
		})
	}
	incarnations[id] = incarnation
	s := f.state
	s.Incarnations = incarnations
	if err := s.save(f.path(stateFile)); err != nil {
		return 0, err
	}
	f.state = s
	return incarnation, nil
}

// seen tells a member the address at which gossip sees it (of two clones: the address of
// the first), and stores the member's incarnation.
func (f *Failover) seen(_ context.Context, c wire.Caller, r wire.SeenRequest) (wire.SeenResponse, error) {
	incarnation, err := f.noteIncarnation(c.Node, r.Incarnation)
	if err != nil {
		return wire.SeenResponse{}, err
	}
	res := wire.SeenResponse{Incarnation: incarnation, Blank: f.blank.Load()}
	if id := f.Leader(); id != "" {
		res.Leader = f.cfg.Dial.HostOf(id)
	}
	for _, p := range f.cfg.Present.Load() {
		if p.ID == string(c.Node) && p.Alive {
			res.Addr = p.RPC()
		}
	}
	return res, nil
}

// beginAnew is called by the leader once this node's lost vote counts nowhere.
func (f *Failover) beginAnew(_ context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if c.Node != f.Leader() {
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	f.mu.Lock()
	blank := f.state.Blank // and not restored from a backup since
	f.mu.Unlock()
	if !blank {
		return wire.Empty{}, nil
	}
	if err := f.change(func(s *state) { s.Blank = false }); err != nil {
		return wire.Empty{}, err
	}
	f.blank.Store(false)
	f.log.Info("begin with an empty copy of the record", "leader", c.Host)
	return wire.Empty{}, nil
}

// Serve passes a raft connection that a member opened to raft, and returns when raft has
// closed it or ctx ends.
func (f *Failover) Serve(ctx context.Context, id launcher.NodeID, c net.Conn) {
	if err := f.exchange(ctx, id); err != nil {
		f.log.Debug("refuse a raft connection", "node", id, "error", err)
		return
	}
	rc := &raftConn{Conn: c, closed: make(chan struct{})}
	select {
	case f.conns <- rc:
		select {
		case <-rc.closed:
		case <-ctx.Done():
		}
	case <-f.raft.Done(): // its disk has failed: peers have to know at once
	case <-ctx.Done():
	}
}

// raftConn signals when raft has closed it.
type raftConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *raftConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// dialRaft opens a raft connection to a member.
func (f *Failover) dialRaft(ctx context.Context, id string) (net.Conn, error) {
	if err := f.exchange(ctx, launcher.NodeID(id)); err != nil {
		return nil, err
	}
	return f.cfg.Dial.Dial(ctx, id, f.Proto())
}
