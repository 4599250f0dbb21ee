package lead

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A process that the kernel does not let die holds what it holds: memory, the
// GPU, a port. Its job is not kept waiting for it, and gets its outcome; its
// node is drained until it is gone: it keeps what runs there and gets nothing
// new. The node knows, by its ledger, so that the next leader does too. So is a
// node with an attempt that the record does not know (restored.go).

// drain takes what an event tells of a node's processes that stay, whatever job
// they are of: its end may have been recorded. l.mu is held.
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
		l.cfg.Logger.Info("what could not be killed is gone", "node", ev.Node, "job", ev.Job)
	default:
		return
	}
	l.memberChanged()
	l.poke()
}

// drained says why a node gets no ranks; empty where it may.
func (m *member) drained() string {
	var texts []string
	for _, k := range slices.SortedStableFunc(maps.Keys(m.stuck), func(a, b launcher.Key) int { return strings.Compare(a.String(), b.String()) }) {
		texts = append(texts, fmt.Sprintf("job %s: %s", k.Job, m.stuck[k]))
	}
	for _, k := range slices.SortedStableFunc(maps.Keys(m.strays), func(a, b launcher.Key) int { return strings.Compare(a.String(), b.String()) }) {
		texts = append(texts, fmt.Sprintf("job %[1]s runs there, and the record, which was restored, does not know its attempt %[2]d: `sudo sparkrun stop %[1]s` ends it", k.Job, k.Generation))
	}
	return strings.Join(texts, "; ")
}

// isStuck notes what a node could not kill, and tells it.
func (r *run) isStuck(p *placement, text string) {
	if text == "" || p.stuck == text {
		return
	}
	p.stuck = text
	r.tell(rendezvous.Progress{Step: rendezvous.StepStuck, Host: p.Host, Text: p.trouble()})
}

func (p *placement) trouble() string { return fmt.Sprintf("on %s %s", p.Host, p.stuck) }

// anyStuck finds a node with a rank that will not exit, though nobody had the
// gang ended: its own node did, or its shim died.
func (r *run) anyStuck() *placement {
	return r.find(func(p *placement) bool {
		return p.stuck != "" && len(r.exitsOf(p)) < p.Ranks && p.phase != launcher.PhaseEnded
	})
}

// stays lists what was left behind, for the job's outcome.
func (r *run) leftovers() (texts []string) {
	for _, p := range r.placements {
		if p.stuck != "" && p.phase != launcher.PhaseEnded {
			texts = append(texts, p.trouble())
		}
	}
	return texts
}
