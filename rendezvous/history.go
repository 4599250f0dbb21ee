package rendezvous

import (
	"reflect"
	"slices"
	"time"
	"unique"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// prune bounds the memory and snapshot space of ended jobs on each node. Beyond MaxHistory the user with the most
// jobs loses the one that ended first, so that one user's many jobs do not push out another user's few. Beyond
// MaxWhole a job keeps only what is shown of it: no environment, which is half of a small job and up to
// MaxEntryBytes of a large one.
func (s *state) prune() {
	type end struct {
		id   launcher.JobID
		at   time.Time
		user string
		slim bool
	}
	ended := make([]end, 0, len(s.Jobs))
	for id, j := range s.Jobs {
		if j.Outcome != nil {
			ended = append(ended, end{id, j.Outcome.At, j.Spec.User, j.isSlim()})
		}
	}
	slices.SortFunc(ended, func(a, b end) int { // first ended first
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return compareStrings(a.id, b.id)
	})
	room := max(MinEnded, MaxHistory-(len(s.Jobs)-len(ended)))
	for _, e := range launcher.Beyond(ended, int64(room), func(e end) string { return e.user },
		func(end) int64 { return 1 }) {
		delete(s.Jobs, e.id)
	}
	old := ended[:max(0, len(ended)-MaxWhole)]
	for i, e := range old {
		if j, kept := s.Jobs[e.id]; kept && !e.slim {
			j = j.slim()
			if i > 0 {
				j.likeIn(s.Jobs[old[i-1].id])
			}
			s.Jobs[e.id] = j
		}
	}
}

// likeIn makes a job share another's memory for what is the same in both: a program that runs again and again on
// the same nodes is kept once.
func (j *Job) likeIn(other Job) {
	if alike(j.Plan.Nodes, other.Plan.Nodes) {
		j.Plan.Nodes = other.Plan.Nodes
	}
	if alike(j.Spec.Stages, other.Spec.Stages) {
		j.Spec.Stages = other.Spec.Stages
	}
}

// alike tells whether two lists are equal but not the same memory.
func alike[T any](a, b []T) bool {
	return len(a) == len(b) && len(a) > 0 && &a[0] != &b[0] && reflect.DeepEqual(a, b)
}

// What only a job's start needed. For a job on management the paths show whether it had a fabric (a ring), and stay.
func ofStart(s launcher.Stage) bool   { return s.Env != nil || s.Ready != nil }
func (j *Job) ofStartAt(p Place) bool { return p.Addrs != nil || p.Entry.Paths != nil && j.onFabric() }
func (j *Job) onFabric() bool         { return j.Plan.Network == string(envgen.NetworkFabric) }

// isSlim tells whether slim has nothing to do.
func (j *Job) isSlim() bool {
	return j.Spec.Secrets == nil && !slices.ContainsFunc(j.Spec.Stages, ofStart) &&
		!slices.ContainsFunc(j.Plan.Nodes, j.ofStartAt)
}

// slim is the job without what only its start needed. Nothing is changed in place, because readers may hold parts
// of the job.
func (j Job) slim() Job {
	j.Spec.Secrets = nil
	j.Spec.Stages, j.Plan.Nodes = slices.Clone(j.Spec.Stages), slices.Clone(j.Plan.Nodes)
	for i := range j.Spec.Stages {
		j.Spec.Stages[i].Env, j.Spec.Stages[i].Ready = nil, nil
	}
	for i := range j.Plan.Nodes {
		j.Plan.Nodes[i].Addrs = nil
		if j.onFabric() {
			j.Plan.Nodes[i].Entry.Paths = nil
		}
	}
	return j
}

// share makes a job that was just decoded, and that nobody else reads yet, share memory with other jobs for equal
// strings: hosts, boots and networks are the same in 500 jobs.
func (j *Job) share() {
	spec, plan := &j.Spec, &j.Plan
	spec.Stages, plan.Nodes = slices.Clone(spec.Stages), slices.Clone(plan.Nodes) // the decoder leaves room for more
	one(&spec.Workload)
	one(&spec.User)
	one(&spec.Near)
	one(&plan.Network)
	one(&plan.Why)
	for i := range spec.Stages {
		one(&spec.Stages[i].Name)
		one(&spec.Stages[i].Workdir)
	}
	for i := range plan.Nodes {
		p := &plan.Nodes[i]
		one(&p.Node)
		one(&p.Host)
		one(&p.Boot)
		one(&p.Entry.ID)
		one(&p.Entry.Host)
		one(&p.Entry.Kind)
		one(&p.Entry.NIC)
		one(&p.Entry.Shape)
	}
}

// one interns a string.
func one[S ~string](s *S) { *s = S(unique.Make(string(*s)).Value()) }
