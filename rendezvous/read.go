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

// Removals counts the members that were ever removed from the cluster.
func (r *Record) Removals() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.s.Removed)
}

// WasRemoved tells whether a node was a member and has been removed.
func (r *Record) WasRemoved(id launcher.NodeID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.Removed[id]
}

// Epoch is that of the record; zero while the cluster has not been founded.
func (r *Record) Epoch() launcher.Epoch {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.Epoch
}

// Nodes lists the members by name in natural order: spark2 before spark10. It is the
// order of ranks: stable, and known without asking anybody.
func (r *Record) Nodes() []Node {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.SortedStableFunc(maps.Values(r.s.Nodes), func(a, b Node) int {
		return cmp.Or(compareNatural(a.Host, b.Host), compareStrings(a.ID, b.ID))
	})
}

// compareNatural compares texts with runs of digits as numbers; texts that differ only in
// leading zeros are compared byte by byte.
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

// TokensOf counts the client tokens of a user in the record, also those that are used up
// or have expired.
func (r *Record) TokensOf(user string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := 0
	for _, t := range r.s.Tokens {
		if t.User == user {
			n++
		}
	}
	return n
}

// TokenByHash finds the token that a newcomer's secret belongs to.
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

// Secretive lists, in no order, the specs of unfinished jobs that have secrets.
func (r *Record) Secretive() (out []launcher.Spec) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, j := range r.s.Jobs {
		if j.Outcome == nil && len(j.Spec.Secrets) > 0 {
			out = append(out, j.Spec)
		}
	}
	return out
}

// Job gives one job by its exact id.
func (r *Record) Job(id launcher.JobID) (Job, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	j, ok := r.s.Jobs[id]
	return j, ok
}

// Find resolves a user's text to a job of the record.
func (r *Record) Find(user, text string) (Job, error) {
	if j, ok := r.Job(launcher.JobID(text)); ok {
		return j, nil
	}
	jobs := r.Jobs()
	i, err := FindJob(jobs, user, text)
	if err != nil {
		return Job{}, err
	}
	return jobs[i], nil
}

// FindJob gives the index of the job that a user's text names. The jobs are in the order
// in which they were placed. The text is a whole id; a name, which means the unfinished
// job of that name, else the latest, and the user's own before another's; or the beginning
// of an id. If it fits several, the user has to give an id. Every command that takes a job
// uses this, whichever machine it asks.
func FindJob(jobs []Job, user, text string) (int, error) {
	if text == "" {
		return 0, fmt.Errorf("job \"\": %w: give one: `sparkrun ps --all` lists them", ErrNoJob)
	}
	all := func(is func(Job) bool) (found []int) {
		for i, j := range jobs {
			if is(j) {
				found = append(found, i)
			}
		}
		return found
	}
	if found := all(func(j Job) bool { return string(j.Spec.ID) == text }); len(found) > 0 {
		return found[0], nil
	}
	named := all(func(j Job) bool { return j.Spec.Name == text && j.Spec.User == user })
	if len(named) == 0 {
		named = all(func(j Job) bool { return j.Spec.Name == text })
	}
	found := slices.DeleteFunc(slices.Clone(named), func(i int) bool { return jobs[i].Outcome != nil })
	switch {
	case len(found) == 0 && len(named) > 0:
		return named[len(named)-1], nil
	case len(found) == 0:
		found = all(func(j Job) bool { return strings.HasPrefix(string(j.Spec.ID), text) })
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return 0, fmt.Errorf("job %q: %w: `sparkrun ps --all` lists them", text, ErrNoJob)
	}
	ids := make([]string, len(found))
	for i, at := range found {
		ids[i] = string(jobs[at].Spec.ID)
	}
	return 0, &ambiguousError{text, ids}
}

// ambiguousError is an ErrNoJob because the text fits more than one job.
type ambiguousError struct {
	text string
	ids  []string
}

func (e *ambiguousError) Error() string {
	return fmt.Sprintf("job %q: it could be %s: give the id of one", e.text, strings.Join(e.ids, ", "))
}
func (e *ambiguousError) Unwrap() error { return ErrNoJob }
