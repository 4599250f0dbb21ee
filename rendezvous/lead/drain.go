package lead

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A process that the kernel does not let die keeps its memory, its GPU and its port. The job does not wait for it
// and gets its outcome. The node is drained until the process is gone: what runs there goes on, and nothing new is
// placed there. This is in the node's ledger, so the next leader knows it too. A node with an attempt that is not
// in the record is drained as well (restored.go).

// drain handles events about processes that cannot be killed, of any job, also of one whose end is recorded. l.mu
// is held.
func (l *Leader) drain(ev launcher.Event) {
	m := l.members[ev.Node]
	if m == nil {
		return
	}
	switch _, known := m.stuck[ev.Key]; {
	case ev.Kind == launcher.Stuck:
		m.stuck[ev.Key] = ev.Text
		l.cfg.Logger.Warn("node drained", "node", ev.Node, "job", ev.Job, "why", ev.Text)
	case ev.Kind == launcher.Ended && known:
		delete(m.stuck, ev.Key)
		l.cfg.Logger.Info("process that could not be killed is gone", "node", ev.Node, "job", ev.Job)
	default:
		return
	}
	l.memberChanged()
	l.poke()
}

// drained says why a node gets no ranks; empty if it may get some.
func (m *member) drained() string {
	var texts []string
	for _, k := range slices.SortedStableFunc(maps.Keys(m.stuck),
		func(a, b launcher.Key) int { return strings.Compare(a.String(), b.String()) }) {
		texts = append(texts, fmt.Sprintf("job %s: %s", k.Job, m.stuck[k]))
	}
	for _, k := range slices.SortedStableFunc(maps.Keys(m.strays),
		func(a, b launcher.Key) int { return strings.Compare(a.String(), b.String()) }) {
		texts = append(texts, fmt.Sprintf("job %[1]s runs there, and the record, which was restored, does not know its attempt %[2]d: `sudo sparkrun stop %[1]s` ends it", k.Job, k.Generation))
	}
	return strings.Join(texts, "; ")
}

// isStuck notes and reports what a node could not kill.
func (r *run) isStuck(p *placement, text string) {
	if text == "" || p.stuck == text {
		return
	}
	p.stuck = text
	r.tell(rendezvous.Progress{Step: rendezvous.StepStuck, Host: p.Host, Text: p.trouble()})
}

func (p *placement) trouble() string { return fmt.Sprintf("on %s %s", p.Host, p.stuck) }

// anyStuck finds a node with a rank that does not exit although this run is not being ended: the node itself tried
// to end it, or its shim died.
func (r *run) anyStuck() *placement {
	return r.find(func(p *placement) bool {
		return p.stuck != "" && len(r.exitsOf(p)) < p.Ranks && p.phase != launcher.PhaseEnded
	})
}

// leftovers lists what could not be killed, for the job's outcome.
func (r *run) leftovers() (texts []string) {
	for _, p := range r.placements {
		if p.stuck != "" && p.phase != launcher.PhaseEnded {
			texts = append(texts, p.trouble())
		}
	}
	return texts
}
