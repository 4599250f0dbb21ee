package rendezvous

import (
	"cmp"
	"crypto/subtle"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

func compareStrings[S ~string](a, b S) int { return strings.Compare(string(a), string(b)) }

// Changed is closed by the next entry that changes the record.
func (r *Record) Changed() <-chan struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.changed
}

// Cluster gives the cluster's UUID, epoch, and the index of the last entry;
// the UUID is empty while the cluster has not been founded.
func (r *Record) Cluster() (uuid string, epoch, index uint64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.Cluster, r.s.N, r.s.Index
}

// Epoch is that of the record; zero while the cluster has not been founded.
func (r *Record) Epoch() launcher.Epoch {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.Epoch
}

// Nodes lists the members by name, as a person counts: spark2 before spark10.
// It is the order of ranks: stable, and known without asking.
func (r *Record) Nodes() []Node {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.SortedFunc(maps.Values(r.s.Nodes), func(a, b Node) int {
		return cmp.Or(compareNatural(a.Host, b.Host), compareStrings(a.ID, b.ID))
	})
}

// compareNatural compares texts with runs of digits as numbers; texts that
// differ only in leading zeros are settled byte by byte.
func compareNatural(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		dx, dy := digits(x), digits(y)
		if dx > 0 && dy > 0 {
			nx, ny := strings.TrimLeft(x[:dx], "0"), strings.TrimLeft(y[:dy], "0")
			if c := cmp.Or(cmp.Compare(len(nx), len(ny)), cmp.Compare(nx, ny)); c != 0 {
				return c
			}
			x, y = x[dx:], y[dy:]
			continue
		}
		if c := cmp.Compare(x[0], y[0]); c != 0 {
			return c
		}
		x, y = x[1:], y[1:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(a, b))
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// Node gives one member.
func (r *Record) Node(id launcher.NodeID) (Node, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n, ok := r.s.Nodes[id]
	return n, ok
}

// TokenByHash finds the token a newcomer's secret belongs to.
func (r *Record) TokenByHash(hash []byte) (Token, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, t := range r.s.Tokens {
		if subtle.ConstantTimeCompare(t.Hash, hash) == 1 {
			return t, nil
		}
	}
	return Token{}, ErrTokenUnknown
}

// Jobs lists all jobs, oldest first.
func (r *Record) Jobs() []Job {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return sortedJobs(r.s.Jobs)
}

// Job gives one job by its exact id.
func (r *Record) Job(id launcher.JobID) (Job, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	j, ok := r.s.Jobs[id]
	return j, ok
}

// Find resolves what a user typed for a job: a whole id; a name, which means the
// job of that name that has not ended, else the latest; or the beginning of one
// id. Several jobs that run under one name have to be told apart by their ids.
func (r *Record) Find(text string) (Job, error) {
	if text == "" {
		return Job{}, fmt.Errorf("job \"\": %w: name one: `sparkrun ps --all` lists them", ErrNoJob)
	}
	if j, ok := r.Job(launcher.JobID(text)); ok {
		return j, nil
	}
	jobs := r.Jobs()
	found := slices.DeleteFunc(slices.Clone(jobs), func(j Job) bool { return j.Spec.Name != text || j.Outcome != nil })
	if len(found) == 0 {
		for _, j := range slices.Backward(jobs) {
			if j.Spec.Name == text {
				return j, nil
			}
		}
		found = slices.DeleteFunc(slices.Clone(jobs), func(j Job) bool { return !strings.HasPrefix(string(j.Spec.ID), text) })
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Job{}, fmt.Errorf("job %q: %w: `sparkrun ps --all` lists them", text, ErrNoJob)
	}
	ids := make([]string, len(found))
	for i, j := range found {
		ids[i] = string(j.Spec.ID)
	}
	return Job{}, fmt.Errorf("job %q: %w: it could be %s", text, ErrNoJob, strings.Join(ids, ", "))
}
