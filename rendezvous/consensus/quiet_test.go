package consensus

import (
	"testing"
	"time"
)

// Nothing happens for a minute: a leader wakes each follower with as many requests as the pace of heartbeats and of
// empty entries asks for, and nobody else says anything.
func TestIdleVotersAreQuiet(t *testing.T) {
	const seconds = 60
	bubble(t, 1, func(t *testing.T) {
		s := newSim(t, 1, "", nil)
		defer s.end()
		lead := s.leader()
		time.Sleep(10 * time.Second) // the last entries spread, and snapshots are taken
		before := map[[2]string]uint64{}
		s.net.counts(before)
		time.Sleep(seconds * time.Second)
		after := map[[2]string]uint64{}
		s.net.counts(after)

		cfg := lead.cfg
		perSecond := float64(time.Second)/float64(cfg.Beat) + float64(time.Second)/float64(cfg.Commit)
		for link, n := range after {
			n -= before[link]
			most := uint64(0)
			if link[0] == lead.node.id || link[1] == lead.node.id { // a request, or its answer
				most = uint64(perSecond * seconds)
			}
			if n > most {
				t.Errorf("%d messages from %s to %s in %d s, more than %d", n, link[0], link[1], seconds, most)
			}
		}
		if s.leader() != lead {
			t.Error("the leadership has moved")
		}
	})
}

// The pace is the leader's alone: who stops leading stands for election as soon as everybody else.
func TestPaceEndsWithLeadership(t *testing.T) {
	bubble(t, 2, func(t *testing.T) {
		s := newSim(t, 2, "", nil)
		defer s.end()
		first := s.leader()
		time.Sleep(time.Second)
		cfg := first.cfg
		if got := first.r.ReloadableConfig().HeartbeatTimeout; got != beatsPerTimeout*cfg.Beat {
			t.Errorf("the leader's own time-out is %s", got)
		}
		for _, n := range s.nodes {
			s.net.block(first.node.id, n.id)
			s.net.block(n.id, first.node.id)
		}
		time.Sleep(4 * cfg.Heartbeat)
		if got := first.r.ReloadableConfig(); got.HeartbeatTimeout != cfg.Heartbeat || got.ElectionTimeout != cfg.Election {
			t.Errorf("who leads no more has the time-outs %s and %s", got.HeartbeatTimeout, got.ElectionTimeout)
		}
		s.net.calm()
		if s.awaitLeader(time.Minute) == nil {
			t.Error("nobody leads")
		}
	})
}
