package lead

import (
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A restored record is older than the nodes. Of a job that had not ended in it
// nothing is begun any more: what its nodes have in this very generation goes on
// to its end; where they have no trace of it, it has ended in some way that
// nobody can tell; and what runs there of a later generation, or of a job that
// the record does not know at all, is left alone, named, and ended when a
// person says so.

// tellWithin is how long a restored job without a trace waits for somebody who
// knows better: a machine with a newer copy of the record gives it when it gives
// way.
const tellWithin = time.Minute

// traceless names the nodes that have told all they know and have nothing of
// the job's generation; empty until all have been heard.
func (r *run) traceless() string {
	if r.job.Restored == nil || !r.allKnown() {
		return ""
	}
	var hosts []string
	for _, p := range r.placements {
		if p.phase < launcher.PhaseStarted {
			hosts = append(hosts, p.Host)
		}
	}
	return strings.Join(hosts, ", ")
}

// stray tells whether what a node has of a job is nothing that the record can
// judge: it does not know the job, or only knew it at an earlier time. l.mu is
// held.
func (l *Leader) stray(e launcher.LedgerEntry) bool {
	if e.Phase != launcher.PhaseStarted {
		return false
	}
	job, known := l.cfg.Record.Job(e.Job)
	return !known || job.Restored != nil && e.Generation > job.Plan.Generation
}

// StopStrays ends what runs of a job beside the record, on a person's word, and
// names the hosts that were told to.
func (l *Leader) StopStrays(id launcher.JobID, grace time.Duration, reason string) (hosts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.cfg.Record.Nodes() {
		m := l.members[n.ID]
		if m == nil || !m.ready {
			continue
		}
		for k := range m.strays {
			if k.Job == id {
				l.cfg.Send(n.ID, launcher.Order{Fence: l.cfg.Fence, End: &launcher.End{Key: k, Grace: grace, Reason: reason}})
				l.swept[sweeping{n.ID, k}] = true // Event lets the node forget it
				hosts = append(hosts, n.Host)
			}
		}
	}
	return hosts
}

// strayEnds notes that a stray has ended by itself or was ended. l.mu is held.
func (l *Leader) strayEnds(ev launcher.Event) {
	m := l.members[ev.Node]
	if m == nil || ev.Kind != launcher.Ended || !m.strays[ev.Key] {
		return
	}
	delete(m.strays, ev.Key)
	l.swept[sweeping{ev.Node, ev.Key}] = true
	l.memberChanged()
	l.poke()
}
