package failover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// NoLeader says in one line what is wrong and what helps: ErrNoLeader if waiting does not
// help, ErrRetry if an election is under way.
func (f *Failover) NoLeader() error {
	var voters, silent []string
	alive := f.present()
	for _, s := range f.raft.Members().Servers {
		if s.Role != consensus.Voter {
			continue
		}
		host := f.cfg.Dial.HostOf(launcher.NodeID(s.ID))
		voters = append(voters, host)
		if id := launcher.NodeID(s.ID); id != f.cfg.Self.ID && !alive[id] {
			silent = append(silent, host)
		}
	}
	switch {
	case f.NoVote() != "" && len(voters) == 1 && voters[0] == f.cfg.Self.Host:
		return fmt.Errorf("%w: %s, the only voter of this cluster, takes no part in the vote: %s", wire.ErrNoLeader,
			voters[0], f.NoVote())
	case time.Since(f.began) < justStarted:
		return fmt.Errorf("the agent of %s has just been started: %w", f.cfg.Self.Host, wire.ErrRetry)
	case f.blank.Load():
		return fmt.Errorf("%w: this machine has lost its copy of the record (%s is gone, or was restored from a backup) and "+
			"votes again once a leader has taken it in anew; if no machine leads, `sudo sparkrun takeover --confirm-dead %s` "+
			"on one that has a copy, or `sudo sparkrun raft restore FILE` from a snapshot",
			wire.ErrNoLeader, f.path(raftFolder), f.cfg.Self.Host)
	case len(voters) == 0:
		return fmt.Errorf("%w: this node has not reached its cluster yet: check that another node's agent runs and that the "+
			"management network joins them", wire.ErrNoLeader)
	case len(voters) == 1 && voters[0] != f.cfg.Self.Host:
		text := fmt.Sprintf("%s, the only voter of this cluster, does not answer: start its agent there; running jobs go "+
			"on meanwhile", voters[0])
		if f.HasRecord() {
			text += fmt.Sprintf("; if that machine is off, `sudo sparkrun takeover --confirm-dead %s` here", voters[0])
		}
		return fmt.Errorf("%w: %s", wire.ErrNoLeader, text)
	case 2*len(silent) >= len(voters):
		return fmt.Errorf("%w: %s", wire.ErrNoLeader, noMajority(silent, voters, f.HasRecord()))
	}
	return fmt.Errorf("an election is under way: %w", wire.ErrRetry)
}

// NoLonger turns the end of a leadership during a call into ErrRetry.
func NoLonger(err error) error {
	if errors.Is(err, lead.ErrUnknownRetry) {
		return fmt.Errorf("%w: %w", wire.ErrUnknownRetry, err)
	}
	if errors.Is(err, lead.ErrOver) || errors.Is(err, consensus.ErrNotLeader) || errors.Is(err, consensus.ErrNoLeader) {
		return fmt.Errorf("%w: %w", wire.ErrRetry, err)
	}
	return err
}

// AwaitOther returns when raft knows another leader than this one, or with ctx. That may be before the connection
// of a dead leader breaks.
func (f *Failover) AwaitOther(ctx context.Context, than launcher.NodeID) {
	for {
		changed := f.raft.LeaderChanged()
		if now, _ := f.raft.Leader(); now != "" && launcher.NodeID(now) != than {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// noMajority says which voters are silent and what helps; a node with a copy of the
// record may take over.
func noMajority(silent, voters []string, copied bool) string {
	do, start, off := "does", "its agent", "that machine is off"
	if len(silent) > 1 {
		do, start, off = "do", "their agents", "those machines are off"
	}
	text := fmt.Sprintf("%s %s not answer, and a majority of the voters (%s) is needed: start %s; running jobs go on "+
		"meanwhile",
		strings.Join(silent, ", "), do, strings.Join(voters, ", "), start)
	if copied {
		text += fmt.Sprintf("; if %s, `sudo sparkrun takeover --confirm-dead %s` here", off,
			strings.Join(silent, " --confirm-dead "))
	}
	return text
}

// justStarted is how long a node that has come up may need to learn its leader or to
// elect one.
const justStarted = 5 * time.Second
