package lead

import (
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A restored record is older than what the nodes know. A job that has not ended in it
// begins nothing any more. What nodes run of exactly the recorded generation goes on to
// its end. If no node has a trace of the job, it has ended, and nobody knows how. What
// runs of a later generation, or of a job that is not in the record, is left alone and
// reported, and ended only if a person asks for it.

// tellWithin is how long a restored job without a trace waits for a machine with a newer
// copy of the record, which it hands over when it gives way.
const tellWithin = time.Minute

// traceless names the nodes that know nothing of the job's generation; empty until all
// ledgers are there.
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

// stray tells whether the record cannot decide about what a node runs: it lacks the job,
// or has only an earlier generation. l.mu is held.
func (l *Leader) stray(e launcher.LedgerEntry) bool {
	if e.Phase != launcher.PhaseStarted {
		return false
	}
	job, known := l.cfg.Record.Job(e.Job)
	return !known || job.Restored != nil && e.Generation > job.Plan.Generation
}

// StopStrays ends, at a person's request, a job's attempts that are not in the record,
// and names the hosts that were told to.
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
				l.swept[sweeping{n.ID, k}] = true // Event then tells the node to forget it
				hosts = append(hosts, n.Host)
			}
		}
	}
	return hosts
}

// strayEnds notes that a stray attempt has ended by itself or was ended. l.mu is held.
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
