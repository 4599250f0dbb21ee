// Package sampler keeps what this machine uses, for all who look.
//
// It decides when the machine is read: when somebody looks, at most once a second; every few seconds while ranks run on
// a machine with a GPU; else once a minute, for its past.
//
// It must not judge what was read, nor send it anywhere: who looks asks.
package sampler

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a sampler. All of it is needed.
type Config struct {
	Self launcher.NodeID
	Host string
	// Began is when the agent was started, Links are the last changes of the machine's ports.
	Began     time.Time
	Links     func() []envgen.LinkChange
	Reader    Reader
	SMI       SMI
	Inventory *rendezvous.Latest[envgen.Inventory]
	Counters  Counters
	Ranks     Ranks
}

// Reader reads the machine, all but its ports.
type Reader interface {
	Read(ledger []launcher.LedgerEntry) usage.Machine
}

// SMI is nvidia-smi, which runs while it is wanted.
type SMI interface {
	Run(context.Context) error
	Want(time.Duration)
	Fresh(ctx context.Context, patience time.Duration)
}

// Counters are those of RDMA devices and interfaces.
type Counters interface {
	Totals(context.Context) (devices, interfaces map[string]map[string]uint64)
}

// Ranks are this node's.
type Ranks interface {
	Ledger() []launcher.LedgerEntry
	Events() (next func(context.Context) (launcher.Event, error), cancel func())
}

const (
	// shared is for how long a reading serves further questions.
	shared = time.Second
	// looks is for how long nvidia-smi goes on after a question: who looks asks again by then.
	looks = 5 * time.Second
	// glance is how long it runs for one reading: it tells of no process only by silence.
	glance = 3 * time.Second
	// patience is how long a reading waits for nvidia-smi to start.
	patience = time.Second

	restEvery = time.Minute
	// busyEvery is the time between two readings that nobody asked for, while ranks run beside a GPU.
	busyEvery = 5 * time.Second
)

// Sampler reads the machine.
type Sampler struct {
	cfg Config

	mu   sync.Mutex // of one reading at a time
	last usage.Machine
	was  totals
	past past
}

// New makes it.
func New(cfg Config) *Sampler { return &Sampler{cfg: cfg} }

// Calls are what it answers.
func (s *Sampler) Calls() []wire.Call {
	return slices.Concat(wire.Usage.Serve(s.usage), wire.UsagePast.Serve(s.usagePast))
}

func (s *Sampler) usage(ctx context.Context, _ wire.Caller, _ wire.Empty) (wire.NodeUsage, error) {
	now, err := s.Now(ctx)
	return wire.NodeUsage{ID: s.cfg.Self, Host: s.cfg.Host, Machine: now, Began: s.cfg.Began, Links: s.cfg.Links()}, err
}

func (s *Sampler) usagePast(context.Context, wire.Caller, wire.Empty) (wire.NodeUsagePast, error) {
	return wire.NodeUsagePast{ID: s.cfg.Self, Host: s.cfg.Host, Minutes: s.Past()}, nil
}

// Past is what the machine used in each of the last minutes, the oldest first.
func (s *Sampler) Past() []usage.Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.past.minutes)
}

// Run reads the machine from time to time.
func (s *Sampler) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	started := make(chan struct{}, 1)
	g.Go(func() error { return s.cfg.SMI.Run(ctx) })
	g.Go(func() error { return s.listen(ctx, started) })
	g.Go(func() error { return s.sample(ctx, started) })
	return g.Wait()
}

// listen tells when ranks may have been started.
func (s *Sampler) listen(ctx context.Context, started chan<- struct{}) error {
	next, cancel := s.cfg.Ranks.Events()
	defer cancel()
	for {
		ev, err := next(ctx)
		if err != nil {
			return err
		}
		if ev.Kind == launcher.Started {
			select {
			case started <- struct{}{}:
			default:
			}
		}
	}
}

func (s *Sampler) sample(ctx context.Context, started <-chan struct{}) error {
	every := restEvery
	if s.runs() {
		every = busyEvery
	}
	due := time.NewTimer(every)
	defer due.Stop()
	at := time.Now().Add(every)
	for {
		select {
		case <-started: // most launches are over before the machine is read
			if soon := time.Now().Add(busyEvery); soon.Before(at) {
				at = soon
				due.Reset(busyEvery)
			}
			continue
		case <-due.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		wanted := glance
		if s.runs() {
			wanted = 2 * busyEvery
		}
		every = restEvery
		if now := s.read(ctx, wanted); len(now.GPUs) > 0 && s.runs() {
			every = busyEvery
		}
		at = time.Now().Add(every)
		due.Reset(every)
	}
}

// runs tells whether ranks run here.
func (s *Sampler) runs() bool {
	return slices.ContainsFunc(s.cfg.Ranks.Ledger(), func(e launcher.LedgerEntry) bool {
		return e.Phase == launcher.PhaseStarted
	})
}

// Now is what the machine uses, at most a second old. Who asks again and again is somebody who looks.
func (s *Sampler) Now(ctx context.Context) (usage.Machine, error) {
	return s.read(ctx, looks), ctx.Err()
}

// Scrape is the same for who asks now and then.
func (s *Sampler) Scrape(ctx context.Context) usage.Machine { return s.read(ctx, glance) }

// Totals are what devices and interfaces had counted at the last reading.
func (s *Sampler) Totals() (devices, interfaces map[string]map[string]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.was.devices, s.was.interfaces
}

// read gives a reading that is at most a second old, and has nvidia-smi run for a while from now.
func (s *Sampler) read(ctx context.Context, wanted time.Duration) usage.Machine {
	s.cfg.SMI.Want(wanted)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.last.At.IsZero() && time.Since(s.last.At) < shared {
		return s.last
	}
	s.cfg.SMI.Fresh(ctx, patience)
	m := s.cfg.Reader.Read(s.cfg.Ranks.Ledger())
	// Others may get the same answer.
	now := totals{}
	now.devices, now.interfaces = s.cfg.Counters.Totals(context.WithoutCancel(ctx))
	m.Ports = ports(s.cfg.Inventory.Load(), now, s.was, m.Over)
	s.last, s.was = m, now
	s.past.add(m)
	return m
}
