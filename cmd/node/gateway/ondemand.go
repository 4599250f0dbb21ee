package gateway

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Services on demand run while they are used, which only the gateways see. Each tells the leader: at once where a
// request waits for one that sleeps, and of the others' use at most each tellEach, as long as there is some. Of a service
// that is being ended it tells whether requests are under way.
const (
	tellEach   = 30 * time.Second
	tellWithin = 5 * time.Second // for one call
	// wakeEach is how soon the leader is asked anew for a service that still sleeps, or waits for a place, and is told
	// again what is under way with one that is being ended: it may be another leader by then.
	wakeEach = 2 * time.Second
)

// mayWake tells whether its requests start services on demand, and keep them up.
func (k *key) mayWake() bool { return k == nil || !k.NoWake }

// use is what of a service's use the leader has to know; it outlives the indexes.
type use struct {
	underWay atomic.Int64 // of requests that keep it up
	last     atomic.Int64 // one of those came or ended then, in Unix nanoseconds; 0: none has
	told     atomic.Int64 // the leader knows of all until then
	moves    atomic.Bool  // the service is being ended, and the leader wants to know of its requests
}

// uses tells the leader.
type uses struct {
	ask  func(context.Context, wire.UseServicesRequest) (wire.UseServicesResponse, error)
	kick chan struct{} // has room for one: "there is something to tell"

	mu    sync.Mutex
	woken map[launcher.JobID]*waking // the last one of each
}

// waking is one question to the leader, for all requests that wait for a service.
type waking struct {
	done chan struct{} // closed once the leader has answered, or cannot be asked
	at   time.Time     // of that; written before done is closed, as is no
	no   string        // why it stays asleep; empty: it starts, or that is not known
}

func (w *waking) is() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// begins notes a request to a service; the function it returns, its end.
func (u *uses) begins(b *backend, k *key) (ends func()) {
	of := &b.load.use
	b.load.underWay.Add(1)
	ended := func() {
		b.load.underWay.Add(-1)
		if of.moves.Load() {
			u.stir()
		}
	}
	if !b.OnDemand || !k.mayWake() {
		return ended
	}
	note := func() {
		now := time.Now().UnixNano()
		of.last.Store(now)
		if now-of.told.Load() >= int64(tellEach) {
			u.stir()
		}
	}
	of.underWay.Add(1)
	note()
	return func() {
		of.underWay.Add(-1)
		note()
		ended()
	}
}

// wake has the leader start the first of a model's services that may, or keep it in the queue.
func (u *uses) wake(of []*backend) (w *waking) {
	for _, b := range of {
		if w = u.waking(b.Job); !w.is() || w.no == "" {
			break
		}
	}
	return w
}

// waking is the question for one service; all who ask at a time share it.
func (u *uses) waking(job launcher.JobID) *waking {
	u.mu.Lock()
	defer u.mu.Unlock()
	if w := u.woken[job]; w != nil && (!w.is() || time.Since(w.at) < wakeEach) {
		return w
	}
	w := &waking{done: make(chan struct{})}
	u.woken[job] = w
	u.stir()
	return w
}

func (u *uses) stir() {
	select {
	case u.kick <- struct{}{}:
	default:
	}
}

// tellUse tells the leader of use, until ctx ends.
func (g *Gateway) tellUse(ctx context.Context) error {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-g.uses.kick:
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if next := g.uses.tell(ctx, g.index.Load(), time.Now()); next > 0 {
			again.Reset(next)
		}
	}
}

// tell tells what the leader does not know yet, and gives when to do so again; 0: once there is something.
func (u *uses) tell(ctx context.Context, x *index, now time.Time) time.Duration {
	var req wire.UseServicesRequest
	var told []*use
	next := tellEach
	for job, n := range x.moving() {
		req.Uses = append(req.Uses, rendezvous.ServiceUse{Job: job, UnderWay: &n})
		next = wakeEach
	}
	for _, all := range x.models {
		for _, b := range all {
			of, busy := &b.load.use, b.load.use.underWay.Load() > 0
			last := of.last.Load()
			if !b.OnDemand || slices.Contains(told, of) || !busy && last <= of.told.Load() {
				continue
			}
			var ago time.Duration
			if !busy {
				ago = max(0, now.Sub(time.Unix(0, last)))
			}
			req.Uses = append(req.Uses, rendezvous.ServiceUse{Job: b.Job, Ago: &ago})
			told = append(told, of)
		}
	}
	wanted := u.wanted()
	for job := range wanted {
		req.Uses = append(req.Uses, rendezvous.ServiceUse{Job: job, Wake: true})
	}
	if len(req.Uses) == 0 {
		return 0
	}
	call, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	res, err := u.ask(call, req)
	for job, w := range wanted { // without an answer they ask anew
		w.no, w.at = res.Asleep[job], time.Now()
		close(w.done)
	}
	if err != nil {
		return wakeEach
	}
	for _, of := range told {
		of.told.Store(now.UnixNano())
	}
	return next
}

// moving are the requests that are under way with services that are being ended.
func (x *index) moving() map[launcher.JobID]int64 {
	out := map[launcher.JobID]int64{}
	for _, all := range x.models {
		for _, b := range all {
			if b.Moves {
				out[b.Job] = b.load.underWay.Load()
			}
		}
	}
	return out
}

// wanted are the questions that the leader has not been asked yet; what was answered long ago is forgotten.
func (u *uses) wanted() map[launcher.JobID]*waking {
	u.mu.Lock()
	defer u.mu.Unlock()
	wanted := map[launcher.JobID]*waking{}
	for job, w := range u.woken {
		if !w.is() {
			wanted[job] = w
		} else if time.Since(w.at) >= wakeEach {
			delete(u.woken, job)
		}
	}
	return wanted
}
