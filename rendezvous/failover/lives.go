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

// A voter must never forget what it has voted for, nor what it has said that it
// has stored: others have counted on it. A raft folder that is gone, or that is
// older than it was, has forgotten. So each state has a life, a number that only
// rises; it stands in failover.json and in the raft folder, and members are told of
// it before anything else of raft passes between them. See rendezvous/DESIGN.md,
// "Who has lost its copy".

const (
	lifeFile = "life" // in the raft folder
	// lifeEvery is how often the life rises while the agent runs: a backup of the
	// whole state that is older is found out.
	lifeEvery = time.Hour
	// acquaintWithin bounds telling one member.
	acquaintWithin = 3 * time.Second
)

// errBlank keeps raft from a node that has lost its copy.
var errBlank = errors.New("this node has lost its copy of the record and has no part in raft until a leader takes " +
	"it in anew")

// beginLife looks whether the raft folder is the one that this node had, and
// raises the life. A folder that is not is put aside, and the node is blank.
func (f *Failover) beginLife(dir string) error {
	in, err := readLife(dir)
	if err != nil {
		return err
	}
	if in < f.state.RaftLife {
		f.log.Error("the raft folder is gone, or older than it was: this node does not vote before a leader has taken it "+
			"in anew",
			"folder", dir, "life", in, "was", f.state.RaftLife, "kept", f.path(oldFolder))
		if err := f.change(func(s *state) { s.Blank = true }); err != nil {
			return err
		}
		if err := putAside(dir, f.path(oldFolder)); err != nil {
			return err
		}
	}
	f.blank.Store(f.state.Blank)
	f.state.Life = max(f.state.Life, in) // a power cut may have taken the last failover.json along
	return f.age(dir)
}

// age raises the life: first in the folder, so that it is never behind node.json
// by itself. The folder's disk may hang: nobody else shall wait for it.
func (f *Failover) age(dir string) error {
	f.mu.Lock()
	life := f.state.Life + 1
	f.mu.Unlock()
	if err := writeWhole(filepath.Join(dir, lifeFile), []byte(strconv.FormatUint(life, 10)+"\n")); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.RaftLife > life {
		return nil // found out meanwhile to have been put back
	}
	f.state.Life, f.state.RaftLife = life, life
	return f.state.save(f.path(stateFile))
}

// readLife gives the life of a raft folder; 0 where there is none, or where a
// version made it that had no lives.
func readLife(dir string) (uint64, error) {
	path := filepath.Join(dir, lifeFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	if life, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
		return life, nil
	}
	return 0, nil // it is not known: the node is blank
}

// putAway makes room for another raft folder. The one of a blank node never had
// anything, and what was put aside before it may be worth more.
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

// acquaint tells a member of this node's life, once in each life of either, and
// learns whether it knows of a higher one. No raft passes between the two before.
func (f *Failover) acquaint(ctx context.Context, id launcher.NodeID) error {
	if f.blank.Load() {
		return errBlank
	}
	f.mu.Lock()
	life := f.state.Life
	done := f.told[id] == life
	f.mu.Unlock()
	if done {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, acquaintWithin)
	defer cancel()
	res, err := wire.Seen.Call(ctx, f.cfg.Dial.Client(id), wire.SeenRequest{Life: life})
	if err != nil {
		return fmt.Errorf("tell node %s of this one's life: %w", id, err)
	}
	if res.Life > life {
		return f.wasPutBack(f.cfg.Dial.HostOf(id), life, res.Life)
	}
	f.mu.Lock()
	f.told[id] = life
	f.mu.Unlock()
	return nil
}

// acquaints keeps at it, so that an election need not wait for it, and raises
// the life from time to time.
func (f *Failover) acquaints(ctx context.Context) error {
	older := time.NewTicker(lifeEvery)
	defer older.Stop()
	retry := time.NewTicker(5 * time.Second)
	defer retry.Stop()
	for {
		_, changed := f.cfg.Present.Watch()
		alive := f.present()
		for _, s := range f.raft.Members().Servers { // others never share a raft with it
			id := launcher.NodeID(s.ID)
			if id == f.cfg.Self.ID || !alive[id] || f.blank.Load() || !f.HasPart(f.cfg.Self.ID) {
				continue
			}
			if err := f.acquaint(ctx, id); err != nil {
				f.log.Debug("acquaint", "node", id, "error", err)
			}
		}
		select {
		case <-changed:
		case <-retry.C:
		case <-older.C:
			if f.blank.Load() {
				continue
			}
			if err := f.age(f.path(raftFolder)); err != nil {
				f.log.Warn("raise the life of this node's state", "error", err) // next time, then
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wasPutBack is for a state that a member has seen in a later life: it was
// restored from a backup. It goes on without its copy of the record.
func (f *Failover) wasPutBack(host string, mine, life uint64) error {
	err := fmt.Errorf("this node's state is older than %s knows it (life %d, not %d): it was put back to a backup", host,
		life, mine)
	f.log.Error("begin without the copy of the record", "error", err)
	saveErr := f.change(func(s *state) {
		s.Life, s.RaftLife = max(s.Life, life), life+1 // above that of the folder: beginLife puts it aside
	})
	if saveErr != nil {
		return errors.Join(err, saveErr)
	}
	f.blank.Store(true)
	f.reopenOnce.Do(func() { close(f.reopen) })
	return err
}

// noteLife notes the life that a member tells, durably before it is answered, and
// gives the highest one that it has ever told.
func (f *Failover) noteLife(id launcher.NodeID, life uint64) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if life <= f.state.Lives[id] {
		return f.state.Lives[id], nil
	}
	lives := maps.Clone(f.state.Lives)
	if lives == nil {
		lives = map[launcher.NodeID]uint64{}
	}
	if _, known := f.cfg.Record.Node(id); known {
		maps.DeleteFunc(lives, func(old launcher.NodeID, _ uint64) bool {
			_, member := f.cfg.Record.Node(old)
			return !member
		})
	}
	lives[id] = life
	s := f.state
	s.Lives = lives
	if err := s.save(f.path(stateFile)); err != nil {
		return 0, err
	}
	f.state = s
	return life, nil
}

// seen tells a member where this node sees it, by gossip: the address of who
// was there first. And it hears of which life the member is.
func (f *Failover) seen(_ context.Context, c wire.Caller, r wire.SeenRequest) (wire.SeenResponse, error) {
	life, err := f.noteLife(c.Node, r.Life)
	if err != nil {
		return wire.SeenResponse{}, err
	}
	res := wire.SeenResponse{Life: life, Blank: f.blank.Load()}
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

// beginAnew is the leader's word that this node's lost vote counts nowhere.
func (f *Failover) beginAnew(_ context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if c.Node != f.Leader() {
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	f.mu.Lock()
	blank := f.state.Blank // and not put back since
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

// Serve hands a raft connection that a member has opened to raft, and returns when
// raft has closed it or ctx ends.
func (f *Failover) Serve(ctx context.Context, id launcher.NodeID, c net.Conn) {
	if err := f.acquaint(ctx, id); err != nil {
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
	case <-f.raft.Done(): // its disk has failed: peers shall know at once
	case <-ctx.Done():
	}
}

// raftConn tells when raft has closed it.
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
	if err := f.acquaint(ctx, launcher.NodeID(id)); err != nil {
		return nil, err
	}
	return f.cfg.Dial.Dial(ctx, id, f.Proto())
}
