package web

import (
	"context"
	"html/template"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// askEach is how often machines are asked what they use, and the leader what jobs do, while somebody looks.
	askEach = time.Second
	// allEach is how often it is asked for the jobs that have ended, too: there may be hundreds, of many machines each.
	allEach = 30 * time.Second
	// lingers is how long it goes on after the last page was closed: the next one is opened in its place, as a rule.
	lingers = 5 * time.Second
	// trailLen is how many readings of a machine are drawn.
	trailLen = 60
)

// seen is what all pages show, at one moment. Nobody changes it.
type seen struct {
	Status wire.Status
	Usage  map[launcher.NodeID]wire.NodeUsage
	Trails map[launcher.NodeID][]float64 // of how busy it was, 0 to 1, the newest last
	Jobs   []rendezvous.JobStatus        // the newest first
	Known  func() known                  // works it out, once
	// Problem is why some of it may be old, JobsProblem why jobs are.
	Problem, JobsProblem string
	has                  has
}

// known is what the inventories show by themselves.
type known struct {
	Findings []envgen.Finding
	Tallies  map[string]doctor.Tally // by host
	Picture  func() template.HTML    // draws it, once
}

// has are the questions that have been answered.
type has struct{ status, usage, jobs bool }

// gatherer asks for all pages at once, while there is one.
type gatherer struct {
	to  *wire.Client
	now rendezvous.Latest[*seen]
	all time.Time // when all jobs were asked for; askJobs' own

	mu      sync.Mutex
	viewers rendezvous.Latest[int]
}

func newGatherer(to *wire.Client) *gatherer {
	g := &gatherer{to: to}
	g.now.Store(&seen{Known: func() known { return knownOf(wire.Status{}) }})
	return g
}

// watch has it ask until done is called.
func (g *gatherer) watch() (done func()) {
	g.add(1)
	return sync.OnceFunc(func() { g.add(-1) })
}

func (g *gatherer) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.viewers.Store(g.viewers.Load() + n)
}

// run asks while somebody looks, until ctx ends.
func (g *gatherer) run(ctx context.Context) error {
	for ctx.Err() == nil {
		n, changed := g.viewers.Watch()
		if n > 0 {
			g.ask(ctx)
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// ask asks until nobody has looked for a moment.
func (g *gatherer) ask(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer func() {
		cancel()
		asking.Wait()
		g.all = time.Time{}
		g.change(func(s *seen) { s.has, s.Trails = has{}, nil }) // it is old when the next one comes
	}()
	asking.Go(func() { g.follow(ctx) })
	asking.Go(func() { g.each(ctx, g.askUsage) })
	asking.Go(func() { g.each(ctx, g.askJobs) })
	for ctx.Err() == nil {
		n, changed := g.viewers.Watch()
		var late <-chan time.Time
		if n == 0 {
			late = time.After(lingers)
		}
		select {
		case <-changed:
		case <-late:
			return
		case <-ctx.Done():
		}
	}
}

func (g *gatherer) each(ctx context.Context, fn func(context.Context)) {
	for ctx.Err() == nil {
		began := time.Now()
		fn(ctx)
		wait(ctx, askEach-time.Since(began))
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// change stores the next moment.
func (g *gatherer) change(fn func(*seen)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := *g.now.Load()
	fn(&next)
	g.now.Store(&next)
}

// follow is told of each change of the cluster's state.
func (g *gatherer) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := wire.Follow.Call(ctx, g.to, wire.Empty{}, func(st wire.Status) error {
			last := g.now.Load()
			shows := last.Known
			if !reflect.DeepEqual(last.Status.Nodes, st.Nodes) {
				shows = sync.OnceValue(func() known { return knownOf(st) })
			}
			g.change(func(s *seen) { s.Status, s.Known, s.Problem, s.has.status = st, shows, st.Problem, true })
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			g.change(func(s *seen) { s.Problem, s.has.status = err.Error(), true })
		}
		wait(ctx, askEach)
	}
}

func knownOf(st wire.Status) known {
	c := checkup.Seen(st)
	return known{c.Known(), c.Counts(), sync.OnceValue(func() template.HTML {
		if len(c.Topology.Nodes) == 0 {
			return ""
		}
		return template.HTML(topology.SVG(c.Topology, st.Away()...)) //nolint:gosec // it escapes what others wrote
	})}
}

func (g *gatherer) askUsage(ctx context.Context) {
	res, err := wire.Usage.Call(ctx, g.to, wire.Empty{})
	if err != nil && ctx.Err() != nil {
		return
	}
	g.change(func(s *seen) {
		trails := map[launcher.NodeID][]float64{}
		s.Usage = map[launcher.NodeID]wire.NodeUsage{}
		for _, n := range res.Nodes {
			s.Usage[n.ID] = n
			trail := slices.Clone(s.Trails[n.ID])
			if v, of := busy(n); of != "" {
				trail = append(trail, v)
			}
			trails[n.ID] = trail[max(0, len(trail)-trailLen):]
		}
		s.Trails, s.has.usage = trails, true
	})
}

// busy is how much of a machine is in use, 0 to 1: of its GPUs, or if they do not tell of its processor; of nothing if
// that does not tell either.
func busy(n wire.NodeUsage) (v float64, of string) {
	sum, k := 0.0, 0
	for _, gpu := range n.GPUs {
		if gpu.Busy != nil {
			sum, k = sum+*gpu.Busy, k+1
		}
	}
	if k > 0 {
		return sum / float64(k), "GPU"
	}
	if n.CPU != nil && n.CPU.Used != nil && n.CPU.Cores > 0 {
		return *n.CPU.Used / float64(n.CPU.Cores), "CPU"
	}
	return 0, ""
}

// askJobs asks for the jobs that have not ended, and for all at first, once one has ended, and now and then.
func (g *gatherer) askJobs(ctx context.Context) {
	open := time.Since(g.all) < allEach
	res, err := wire.Jobs.Call(ctx, g.to, wire.JobsRequest{Open: open})
	slices.Reverse(res.Jobs)
	if err == nil && open {
		if res.Jobs, open = renewed(g.now.Load().Jobs, res.Jobs); !open {
			res, err = wire.Jobs.Call(ctx, g.to, wire.JobsRequest{})
			slices.Reverse(res.Jobs)
		}
	}
	if ctx.Err() != nil {
		return
	}
	if err == nil && !open {
		g.all = time.Now()
	}
	g.change(func(s *seen) {
		s.has.jobs = true
		if err != nil {
			s.JobsProblem = err.Error()
			return
		}
		s.JobsProblem, s.Jobs = res.Problem, res.Jobs
	})
}

// renewed is what jobs have become, by those that have not ended; false: one of them has.
func renewed(was, open []rendezvous.JobStatus) ([]rendezvous.JobStatus, bool) {
	of := map[launcher.JobID]rendezvous.JobStatus{}
	for _, j := range was {
		of[j.Spec.ID] = j
	}
	is := map[launcher.JobID]rendezvous.JobStatus{}
	var now []rendezvous.JobStatus
	for _, j := range open {
		is[j.Spec.ID] = j
		if _, known := of[j.Spec.ID]; !known {
			now = append(now, j)
		}
	}
	for _, j := range was {
		if next, ok := is[j.Spec.ID]; ok {
			j = next
		} else if j.Outcome == nil {
			return nil, false
		}
		now = append(now, j)
	}
	return now, true
}

// first gives what is known soon: for a page that is opened.
func (g *gatherer) first(ctx context.Context, within time.Duration) *seen {
	late := time.After(within)
	for {
		now, changed := g.now.Watch()
		if now.has == (has{true, true, true}) {
			return now
		}
		select {
		case <-changed:
		case <-late:
			return now
		case <-ctx.Done():
			return now
		}
	}
}
