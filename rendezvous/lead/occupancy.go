package lead

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A job that takes GPUs has the GPUs of its nodes and spare nodes to itself, from its
// first plan to its recorded end, also between two attempts. Jobs that take none, and
// those that share, neither hold GPUs nor wait for them.

// busyError refuses a job for lack of free GPUs.
type busyError struct{ why string }

func (e *busyError) Error() string {
	return fmt.Sprintf("%v: %s; use --wait to queue, or --share to share the GPUs", rendezvous.ErrCannotPlace, e.why)
}

func (e *busyError) Unwrap() error { return rendezvous.ErrCannotPlace }

// takes tells whether a job takes a node's GPUs. l.mu is held.
func (l *Leader) takes(spec launcher.Spec, id launcher.NodeID) bool {
	switch {
	case spec.GPUs == launcher.NoGPUs || spec.Share:
		return false
	case spec.GPUs == launcher.AnyGPUs:
		m := l.members[id]
		return m != nil && m.gpus > 0
	}
	return true
}

// holders gives the run that holds each node's GPUs, except own. l.mu is held.
func (l *Leader) holders(own *run) map[launcher.NodeID]*run {
	held := map[launcher.NodeID]*run{}
	for _, r := range l.runs {
		plans := []rendezvous.Plan{r.job.Plan}
		if r.pending != nil {
			plans = append(plans, *r.pending)
		}
		for _, p := range plans {
			for _, id := range p.Has() {
				if r != own && l.takes(r.job.Spec, id) {
					held[id] = r
				}
			}
		}
	}
	return held
}

// free is the roster without the nodes whose GPUs the job needs and other jobs hold;
// taken says which jobs hold them, and which nodes are free. l.mu is held.
func (l *Leader) free(spec launcher.Spec, own *run, roster rendezvous.Roster) (free rendezvous.Roster, taken string) {
	held := l.holders(own)
	free = slices.Clone(roster)
	var texts, idle []string
	for i, m := range roster {
		if !m.Ready || m.Drained != "" || m.Witness || !l.takes(spec, m.ID) {
			continue
		}
		by := held[m.ID]
		if by != nil {
			free[i].Ready = false
		}
		switch asked := (len(spec.On) == 0 || slices.Contains(spec.On, m.Host)) && !slices.Contains(spec.Exclude, m.Host); {
		case by == nil && asked:
			idle = append(idle, m.Host)
		case by == nil:
			idle = append(idle, m.Host+" (not asked for)")
		case asked:
			texts = append(texts, m.Host+" by "+describe(by.job))
		}
	}
	if len(texts) == 0 {
		return free, ""
	}
	if len(idle) == 0 {
		idle = []string{"none"}
	}
	return free, "GPUs are taken: " + strings.Join(texts, ", ") + "; free: " + strings.Join(idle, ", ")
}

func describe(j rendezvous.Job) string {
	text := "job " + string(j.Spec.ID)
	if j.Spec.Name != "" {
		text += " (" + j.Spec.Name + ")"
	}
	if j.Spec.User != "" {
		text += " of " + j.Spec.User
	}
	return text
}

// queue lists the runs that wait for their first nodes, the oldest first. Jobs keep their
// places when the leader changes, because they are in the record. l.mu is held.
func (l *Leader) queue() []*run {
	var line []*run
	for _, r := range l.runs {
		if r.queued {
			line = append(line, r)
		}
	}
	slices.SortStableFunc(line, cameBefore)
	return line
}

func cameBefore(a, b *run) int {
	return cmp.Or(a.job.Planned.Compare(b.job.Planned), cmp.Compare(a.job.Spec.ID, b.job.Spec.ID))
}

// inQueue is the place of a run in the queue, from 1, and the run that is first; nil if
// there is none. Every queued run calls it at every turn, so nothing is sorted. l.mu is
// held.
func (l *Leader) inQueue(r *run) (place int, first *run) {
	place = 1
	for _, other := range l.runs {
		if !other.queued {
			continue
		}
		if first == nil || cameBefore(other, first) < 0 {
			first = other
		}
		if r != nil && other != r && cameBefore(other, r) < 0 {
			place++
		}
	}
	return place, first
}

// before is the run that has to be placed before a job that takes GPUs: the first of the
// queue, even if this job needs fewer nodes, because otherwise wide jobs would wait for
// ever. A job that has its nodes does not queue. l.mu is held.
func (l *Leader) before(spec launcher.Spec, r *run, roster rendezvous.Roster) *run {
	takes := func(m rendezvous.Member) bool { return l.takes(spec, m.ID) }
	if r != nil && !r.queued || !slices.ContainsFunc(roster, takes) {
		return nil
	}
	if _, first := l.inQueue(r); first != r {
		return first
	}
	return nil
}
