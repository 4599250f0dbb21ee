package lead

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// backends are the services that have not ended, and those that have failed, as the gateway sees them. Each run writes
// its own after each turn of its loop, and no other job touches them: those who wait for a change sleep through all
// launches that are no service's.
type backends struct {
	mu      sync.Mutex
	all     map[launcher.JobID]rendezvous.Backend
	changed chan struct{} // closed by the next change; nil: nobody waits
}

func (b *backends) put(s rendezvous.Backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, known := b.all[s.Job]; known && old.Equal(s) {
		return
	}
	if s.Failed() && b.serves(s.Models) {
		return
	}
	maps.DeleteFunc(b.all, func(_ launcher.JobID, other rendezvous.Backend) bool {
		return other.Failed() && alike(other.Models, s.Models)
	})
	if b.all == nil {
		b.all = map[launcher.JobID]rendezvous.Backend{}
	}
	b.all[s.Job] = s
	b.wake()
}

// serves tells whether there is a service of one of these models that has not failed.
func (b *backends) serves(models []string) bool {
	for _, other := range b.all {
		if !other.Failed() && alike(other.Models, models) {
			return true
		}
	}
	return false
}

// alike tells whether two services have a model in common.
func alike(a, b []string) bool {
	return slices.ContainsFunc(a, func(m string) bool { return slices.Contains(b, m) })
}

func (b *backends) remove(id launcher.JobID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.all[id]; known {
		delete(b.all, id)
		b.wake()
	}
}

func (b *backends) wake() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// Backends lists the services that have not ended, and those that have failed while no other one serves their model, by
// job, and gives a channel that the next change of one closes. What an earlier leader started is "planned" until its
// machine has told of it.
func (l *Leader) Backends() ([]rendezvous.Backend, <-chan struct{}) {
	b := &l.backends
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	byJob := func(x, y rendezvous.Backend) int { return cmp.Compare(x.Job, y.Job) }
	return slices.SortedFunc(maps.Values(b.all), byJob), b.changed
}

// offerFailed tells the gateway why a service has failed, until another one serves its model.
func (l *Leader) offerFailed(job rendezvous.Job) {
	if out := job.Outcome; job.Spec.Service != nil && out.End == rendezvous.Failed && time.Since(out.At) < rendezvous.FailedFor {
		l.backends.put(rendezvous.StatusOf(job).Backend(time.Now()))
	}
}

// offer tells the gateway how the service is now. It is called by the loop, or before that begins.
func (r *run) offer() {
	if r.job.Spec.Service == nil {
		return
	}
	now := rendezvous.StatusOf(r.job)
	r.status(&now)
	r.l.backends.put(now.Backend(time.Now()))
}
