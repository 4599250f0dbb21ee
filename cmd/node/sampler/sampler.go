// Package sampler keeps what this machine uses, for all who look.
//
// It decides when the machine is read: once a second while somebody looks or a job with a GPU runs, else once a minute.
//
// It must not judge what was read, nor send it anywhere: who looks asks.
package sampler

import (
	"context"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a sampler. All of it is needed.
type Config struct {
	Self launcher.NodeID
	Host string
	Proc proc.FS
	// Began is when the agent was started, Links are the last changes of the machine's ports.
	Began time.Time
	Links func() []envgen.LinkChange
}

// Sampler reads the machine.
type Sampler struct {
	cfg Config
}

// New makes it.
func New(cfg Config) *Sampler { return &Sampler{cfg: cfg} }

// Calls are what it answers.
func (s *Sampler) Calls() []wire.Call { return wire.Usage.Serve(s.usage) }

func (s *Sampler) usage(ctx context.Context, _ wire.Caller, _ wire.Empty) (wire.NodeUsage, error) {
	now, err := s.Now(ctx)
	return wire.NodeUsage{ID: s.cfg.Self, Host: s.cfg.Host, Machine: now, Began: s.cfg.Began, Links: s.cfg.Links()}, err
}

// Now is what the machine uses, at most a second old. Who asks again and again is somebody who looks.
func (s *Sampler) Now(context.Context) (usage.Machine, error) {
	m := usage.Machine{At: time.Now()}
	if mem, err := s.cfg.Proc.Memory(); err == nil {
		m.Memory = &usage.Memory{Total: mem.Total, Available: mem.Available, Cache: mem.Cached, Swap: mem.Swap,
			SwapUsed: mem.SwapUsed, CMA: mem.CMA, CMAFree: mem.CMAFree}
	}
	return m, nil
}
