package lead

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A job that takes GPUs has the GPUs of its nodes and spare nodes to itself, from its first plan to its recorded end,
// also between two attempts. Those that say what memory they take (--memory) share them with each other, as long as
// all of them fit. Jobs that take no GPUs, and those with --share, neither hold GPUs nor wait for them.

// busyError refuses a job for what others hold.
type busyError struct{ why, remedy string }

func (e *busyError) Error() string {
	return fmt.Sprintf("%v: %s; use %s", rendezvous.ErrCannotPlace, e.why, e.remedy)
}

func (e *busyError) Unwrap() error { return rendezvous.ErrCannotPlace }

// remedyFor says what else the user of a job may do.
func remedyFor(spec launcher.Spec) string {
	if spec.Memory != nil {
		return "--wait to queue, or a smaller --memory"
	}
	return "--wait to queue, --memory SIZE to have a part of a machine's memory, or --share to share the GPUs"
}

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

// occupies tells whether others may be in the way of a job on a node, and it in theirs. l.mu is held.
func (l *Leader) occupies(spec launcher.Spec, id launcher.NodeID) bool {
	return spec.Memory != nil || l.takes(spec, id)
}

// whole tells whether a job has a node to itself, of those that occupy it: it takes the GPUs, and does not say how much
// memory. On a machine where both are one it may take all. l.mu is held.
func (l *Leader) whole(spec launcher.Spec, id launcher.NodeID) bool {
	return spec.Memory == nil && l.takes(spec, id)
}

// holders gives the runs that occupy each node, except own and gone. l.mu is held.
func (l *Leader) holders(own *run, gone ...*run) map[launcher.NodeID][]*run {
	held := map[launcher.NodeID][]*run{}
	for _, r := range l.runs {
		if r == own || slices.Contains(gone, r) {
			continue
		}
		var plans []rendezvous.Plan
		if !r.idle() {
			plans = append(plans, r.job.Plan)
		}
		if r.pending != nil {
			plans = append(plans, *r.pending)
		}
		for _, p := range plans {
			for _, id := range p.Has() {
				if l.occupies(r.job.Spec, id) && !slices.Contains(held[id], r) {
					held[id] = append(held[id], r)
				}
			}
		}
	}
	for _, runs := range held {
		slices.SortFunc(runs, cameBefore)
	}
	return held
}

// inTheWay says what of a node a job needs and others hold; empty: nothing. l.mu is held.
func (l *Leader) inTheWay(spec launcher.Spec, id launcher.NodeID, others []*run) string {
	var planned []launcher.Memory
	var names []string
	for _, r := range others {
		has := r.job.Spec
		if l.whole(spec, id) || l.whole(has, id) {
			return "by " + describe(r.job)
		}
		if has.Memory != nil {
			planned = append(planned, *has.Memory)
			names = append(names, fmt.Sprintf("%s (%s)", describe(r.job), has.Memory))
		}
	}
	room := l.members[id].memory
	if spec.Memory == nil || room == 0 || launcher.TakenBy(append(planned, *spec.Memory)) <= room {
		return ""
	}
	return fmt.Sprintf("by %s, of %s for jobs", strings.Join(names, ", "), launcher.Size(room))
}

// free is the roster without the nodes of which the job needs what other jobs hold; taken says which jobs those are,
// and which nodes are free. gone hold nothing any more. l.mu is held.
func (l *Leader) free(spec launcher.Spec, own *run, roster rendezvous.Roster, gone ...*run) (free rendezvous.Roster,
	taken string) {
	held := l.holders(own, gone...)
	free = slices.Clone(roster)
	var texts, idle []string
	for i, m := range roster {
		if !m.Ready || m.Drained != "" || m.Witness || !l.occupies(spec, m.ID) {
			continue
		}
		by := l.inTheWay(spec, m.ID, held[m.ID])
		if by != "" {
			free[i].Ready = false
		}
		switch asked := (len(spec.On) == 0 || slices.Contains(spec.On, m.Host)) && !slices.Contains(spec.Exclude, m.Host); {
		case by == "" && asked:
			idle = append(idle, m.Host)
		case by == "":
			idle = append(idle, m.Host+" (not asked for)")
		case asked:
			texts = append(texts, m.Host+" "+by)
		}
	}
	if len(texts) == 0 {
		return free, ""
	}
	if len(idle) == 0 {
		idle = []string{"none"}
	}
	what := "GPUs are"
	if spec.Memory != nil {
		what = "memory is"
	}
	return free, what + " taken: " + strings.Join(texts, ", ") + "; free: " + strings.Join(idle, ", ")
}

// tooSmall drains the nodes that would never have the memory that a job plans, whatever else runs there. l.mu is
// held.
func (l *Leader) tooSmall(spec launcher.Spec, roster rendezvous.Roster) {
	if spec.Memory == nil {
		return
	}
	for i, m := range roster {
		if s := l.members[m.ID]; s != nil && m.Drained == "" && s.memory > 0 && spec.Memory.Most() > s.memory {
			roster[i].Drained = fmt.Sprintf("it has %s for jobs, and --memory wants %s", launcher.Size(s.memory),
				launcher.Size(spec.Memory.Most()))
		}
	}
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
	return cmp.Or(a.came().Compare(b.came()), cmp.Compare(a.job.Spec.ID, b.job.Spec.ID))
}

// came is since when a job wants its nodes.
func (r *run) came() time.Time {
	if r.queued && !r.woken.IsZero() {
		return r.woken
	}
	return r.job.Planned
}

// inQueue is the place of a run in the queue, from 1, and the run that is first; nil if
// there is none. Every queued run calls it at every turn, so nothing is sorted. A service on demand waits for no job
// that could not begin if all of them slept: they go once it can. l.mu is held.
func (l *Leader) inQueue(r *run) (place int, first *run) {
	place = 1
	for _, other := range l.runs {
		if !other.queued || l.letsPass(other, r) {
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

// letsPass tells whether a job that waits is not in the way of a run. l.mu is held.
func (l *Leader) letsPass(job, r *run) bool {
	if r == nil || r.job.Spec.OnDemand() == nil || job.job.Spec.OnDemand() != nil {
		return false
	}
	_, err := l.room(job, time.Time{})
	return err != nil
}

// before is the run that has to be placed before a job that takes GPUs or memory: the first of the
// queue, even if this job needs fewer nodes, because otherwise wide jobs would wait for
// ever. A job that has its nodes does not queue. l.mu is held.
func (l *Leader) before(spec launcher.Spec, r *run, roster rendezvous.Roster) *run {
	occupies := func(m rendezvous.Member) bool { return l.occupies(spec, m.ID) }
	if r != nil && !r.queued || !slices.ContainsFunc(roster, occupies) {
		return nil
	}
	if _, first := l.inQueue(r); first != r {
		return first
	}
	return nil
}
