package node

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
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A voter must never forget what it has voted for, nor what it has said that it
// has stored: others have counted on it. A raft folder that is gone, or that is
// older than it was, has forgotten. So each state has a life, a number that only
// rises; it stands in node.json and in the raft folder, and members are told of
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
var errBlank = errors.New("this node has lost its copy of the record and has no part in raft until a leader takes it in anew")

// beginLife looks whether the raft folder is the one that this node had, and
// raises the life. A folder that is not is put aside, and the node is blank.
func (n *node) beginLife(dir string) error {
	in, err := readLife(dir)
	if err != nil {
		return err
	}
	if in < n.m.RaftLife {
		n.log.Error("the raft folder is gone, or older than it was: this node does not vote before a leader has taken it in anew",
			"folder", dir, "life", in, "was", n.m.RaftLife, "kept", n.cfg.Paths.oldRaft())
		n.m.Blank = true
		if err := n.m.save(n.cfg.Paths); err != nil {
			return err
		}
		if err := putAside(dir, n.cfg.Paths.oldRaft()); err != nil {
			return err
		}
	}
	n.blank.Store(n.m.Blank)
	n.m.Life = max(n.m.Life, in) // a power cut may have taken the last node.json along
	return n.age(dir)
}

// age raises the life: first in the folder, so that it is never behind node.json
// by itself. The folder's disk may hang: nobody else shall wait for it.
func (n *node) age(dir string) error {
	n.mu.Lock()
	life := n.m.Life + 1
	n.mu.Unlock()
	if err := writeWhole(filepath.Join(dir, lifeFile), []byte(strconv.FormatUint(life, 10)+"\n")); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.m.RaftLife > life {
		return nil // found out meanwhile to have been put back
	}
	n.m.Life, n.m.RaftLife = life, life
	return n.m.save(n.cfg.Paths)
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
func (n *node) putAway(dir string) error {
	if !n.m.Blank {
		if err := putAside(dir, n.cfg.Paths.oldRaft()); err != nil {
			return err
		}
	}
	if err := discard(dir); err != nil {
		return fmt.Errorf("make room for a new record: %w", err)
	}
	return nil
}

// writeWhole replaces a file as a whole and durably, and makes its folder.
func writeWhole(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := durable.Write(path, content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// acquaint tells a member of this node's life, once in each life of either, and
// learns whether it knows of a higher one. No raft passes between the two before.
func (n *node) acquaint(ctx context.Context, id launcher.NodeID) error {
	if n.blank.Load() {
		return errBlank
	}
	n.mu.Lock()
	life := n.m.Life
	done := n.told[id] == life
	n.mu.Unlock()
	if done {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, acquaintWithin)
	defer cancel()
	res, err := wire.Seen.Call(ctx, n.dial.Client(id), wire.SeenRequest{Life: life})
	if err != nil {
		return fmt.Errorf("tell node %s of this one's life: %w", id, err)
	}
	if res.Life > life {
		return n.wasPutBack(n.hostOf(id), res.Life)
	}
	n.mu.Lock()
	n.told[id] = life
	n.mu.Unlock()
	return nil
}

// acquaints keeps at it, so that an election need not wait for it, and raises
// the life from time to time.
func (n *node) acquaints(ctx context.Context) error {
	older := time.NewTicker(lifeEvery)
	defer older.Stop()
	retry := time.NewTicker(5 * time.Second)
	defer retry.Stop()
	for {
		_, changed := n.present.Watch()
		alive := n.gossipAlive()
		for _, s := range n.raft.Members().Servers { // others never share a raft with it
			id := launcher.NodeID(s.ID)
			if id == n.m.Node || !alive[id] || n.blank.Load() || !n.hasPart(n.m.Node) {
				continue
			}
			if err := n.acquaint(ctx, id); err != nil {
				n.log.Debug("acquaint", "node", id, "error", err)
			}
		}
		select {
		case <-changed:
		case <-retry.C:
		case <-older.C:
			if n.blank.Load() {
				continue
			}
			if err := n.age(n.cfg.Paths.raft()); err != nil {
				n.log.Warn("raise the life of this node's state", "error", err) // next time, then
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wasPutBack is for a state that a member has seen in a later life: it was
// restored from a backup. It goes on without its copy of the record.
func (n *node) wasPutBack(host string, life uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := fmt.Errorf("this node's state is older than %s knows it (life %d, not %d): it was put back to a backup", host, life, n.m.Life)
	n.log.Error("begin without the copy of the record", "error", err)
	m := n.m
	m.Life, m.RaftLife = max(m.Life, life), life+1 // above that of the folder: beginLife puts it aside
	if saveErr := m.save(n.cfg.Paths); saveErr != nil {
		return errors.Join(err, saveErr)
	}
	n.m.Life, n.m.RaftLife = m.Life, m.RaftLife
	n.blank.Store(true)
	n.reopenOnce.Do(func() { close(n.reopen) })
	return err
}

// livesOf notes the life that a member tells, durably before it is answered, and
// gives the highest one that it has ever told.
func (n *node) livesOf(id launcher.NodeID, life uint64) (uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if life <= n.m.Lives[id] {
		return n.m.Lives[id], nil
	}
	lives := maps.Clone(n.m.Lives)
	if lives == nil {
		lives = map[launcher.NodeID]uint64{}
	}
	if _, known := n.record.Node(id); known {
		maps.DeleteFunc(lives, func(old launcher.NodeID, _ uint64) bool {
			_, member := n.record.Node(old)
			return !member
		})
	}
	lives[id] = life
	m := n.m
	m.Lives = lives
	if err := m.save(n.cfg.Paths); err != nil {
		return 0, err
	}
	n.m.Lives = lives
	return life, nil
}

// takeInAnew lets members that have lost their copy begin again, once a majority
// has confirmed that they have no part in raft any more.
func (n *node) takeInAnew(ctx context.Context, links *wire.Links, roster rendezvous.Roster) {
	for _, m := range roster {
		if !m.Ready || !m.Blank || n.hasPart(m.ID) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, acquaintWithin)
		err := n.raft.Verify(ctx)
		if err == nil && !n.hasPart(m.ID) {
			err = wire.BeginAnew.Call(ctx, n.dial.Client(m.ID), wire.Empty{})
		}
		cancel()
		if err == nil {
			links.Reopen(m.ID) // its next hello says so; a stream that the node ended might count as lost
		}
		n.log.Info("take a node in anew that has lost its copy of the record", "node", m.Host, "error", err)
	}
}

func (n *node) hasPart(id launcher.NodeID) bool {
	for _, s := range n.raft.Members().Servers {
		if s.ID == string(id) && s.Role != consensus.Outside {
			return true
		}
	}
	return false
}

// beginAnew is the leader's word that this node's lost vote counts nowhere.
func (n *node) beginAnew(_ context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if c.Node != n.leaderID() {
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.m.Blank {
		return wire.Empty{}, nil
	}
	m := n.m
	m.Blank = false
	if err := m.save(n.cfg.Paths); err != nil {
		return wire.Empty{}, err
	}
	n.m.Blank = false
	n.blank.Store(false)
	n.log.Info("begin with an empty copy of the record", "leader", c.Host)
	return wire.Empty{}, nil
}

// admitsRaft judges a raft connection that a member has opened.
func (n *node) admitsRaft(id launcher.NodeID) bool {
	err := n.acquaint(n.life, id)
	if err != nil {
		n.log.Debug("refuse a raft connection", "node", id, "error", err)
	}
	return err == nil
}

// dialRaft opens a raft connection to a member.
func (n *node) dialRaft(ctx context.Context, id string) (net.Conn, error) {
	if err := n.acquaint(ctx, launcher.NodeID(id)); err != nil {
		return nil, err
	}
	return n.dial.Dial(ctx, id, raftProto(n.opened))
}
