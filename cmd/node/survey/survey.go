// Package survey knows this node's hardware and cabling as they are now, and the
// variables that follow from them for ranks.
//
// It decides what this node's inventory is: what the kernel shows, what the cable probe
// hears, and what is dropped with a link that has gone.
//
// It must not decide what a port is for or what is wrong with it (envgen does), or
// ask another node.
package survey

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// countEvery is how often the devices' counters are read: each read is a request to
	// the card's firmware.
	countEvery = 10 * time.Second
	// countKept readings are kept: what is told is the increase over the last minute.
	countKept = 7
	// linksKept changes of ports are kept: enough for hours of a cable that comes and goes each few minutes.
	linksKept = 64
)

// Config of a survey.
type Config struct {
	Self    launcher.NodeID
	Host    string
	Cluster string
	Boot    string // the id of this boot of the machine
	// Reader reads the hardware; First is what it has read already.
	Reader *fabric.Reader
	First  envgen.Inventory
	// FabricPorts are as the user asked; see envgen.Inventory.
	FabricPorts []string
	// Trust is the folder with the cluster's gossip keys, by which the cable probe signs:
	// whoever has them is a member.
	Trust  string
	Logger *slog.Logger
}

// Survey keeps the inventory of this node up to date.
type Survey struct {
	// Inventory is written only here.
	Inventory rendezvous.Latest[envgen.Inventory]

	cfg    Config
	probe  *fabric.Probe
	warned string // the last warning about --fabric-port

	mu       sync.Mutex
	heard    *envgen.Cabling     // the probe's last answer, part of the inventory; nil before the first
	readings []fabric.Reading    // of the devices' counters, oldest first
	links    []envgen.LinkChange // oldest first
}

// Open begins with what has been read already.
func Open(cfg Config) (*Survey, error) {
	probe, err := fabric.NewProbe(fabric.ProbeConfig{
		Cluster: cfg.Cluster, Node: string(cfg.Self), Host: cfg.Host, Boot: cfg.Boot, Log: cfg.Logger,
		Keys: func() ([][]byte, error) {
			keyring, err := trust.LoadGossipKeys(cfg.Trust)
			return keyring.Keys(), err
		},
	})
	if err != nil {
		return nil, err
	}
	s := &Survey{cfg: cfg, probe: probe}
	s.Inventory.Store(cfg.First)
	return s, nil
}

// Run keeps the inventory up to date until ctx ends.
func (s *Survey) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.cfg.Reader.Run(ctx, s.surveyed) })
	g.Go(func() error { return s.probe.Run(ctx, s.cabled) })
	g.Go(func() error { return s.count(ctx) })
	return g.Wait()
}

// surveyed takes the hardware as it is now. What was heard over a link that is gone is
// dropped at once; the probe itself follows later.
func (s *Survey) surveyed(inv envgen.Inventory) {
	inv.FabricPorts = s.cfg.FabricPorts
	s.warnOfPorts(inv)
	s.probe.Follow(inv)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(inv)
}

// cabled takes what the probe hears now.
func (s *Survey) cabled(c envgen.Cabling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = &c
	s.tell(s.Inventory.Load())
}

// tell publishes the inventory: the hardware and what the probe heard last. It needs
// s.mu.
func (s *Survey) tell(inv envgen.Inventory) {
	if s.heard != nil {
		c := *s.heard
		c.Pulled = inv.PulledSince(s.Inventory.Load().Cabling)
		inv = inv.WithCabling(c)
	}
	for _, c := range envgen.LinkChanges(s.Inventory.Load(), inv, time.Now()) {
		if c.Up == nil && c.SpeedMbps > 0 && c.SpeedMbps == s.lastSpeed(c.Slot) {
			continue // a link that came back is as it was: its speed is known a moment after it
		}
		s.links = append(s.links, c)
	}
	s.links = s.links[max(0, len(s.links)-linksKept):]
	s.Inventory.Store(inv)
}

// lastSpeed of a port that a change has told; 0: none has. It needs s.mu.
func (s *Survey) lastSpeed(slot string) int {
	for _, c := range slices.Backward(s.links) {
		if c.Slot == slot && c.SpeedMbps > 0 {
			return c.SpeedMbps
		}
	}
	return 0
}

// Links are the last changes of this node's ports, oldest first.
func (s *Survey) Links() []envgen.LinkChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.links)
}

// warnOfPorts logs once which ports of --fabric-port do not exist. Only surveyed calls
// it.
func (s *Survey) warnOfPorts(inv envgen.Inventory) {
	warning := inv.UnknownFabricPort()
	if warning != "" && warning != s.warned {
		s.cfg.Logger.Warn("fabric port", "problem", warning)
	}
	s.warned = warning
}

// count keeps the last minute of the counters. They are not in the inventory, which must
// not change while nothing happens.
func (s *Survey) count(ctx context.Context) error {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		now := s.cfg.Reader.Counters()
		s.mu.Lock()
		s.readings = append(s.readings, now)
		s.readings = s.readings[max(0, len(s.readings)-countKept):]
		s.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Counted is what this node's devices counted since the oldest reading.
func (s *Survey) Counted() []envgen.Counters {
	now := s.cfg.Reader.Counters()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.readings) == 0 {
		return nil
	}
	return now.Since(s.readings[0])
}

// Totals are what the RDMA devices and the interfaces have counted since they are up, by their names. No interfaces: the
// kernel did not say.
func (s *Survey) Totals(ctx context.Context) (devices, interfaces map[string]map[string]uint64) {
	devices = s.cfg.Reader.Counters().Counts
	interfaces, err := s.cfg.Reader.Bytes(ctx)
	if err != nil { // without these the RDMA counters are still useful
		interfaces = nil
	}
	return devices, interfaces
}

// Counters answers what the devices have counted, in the last minute and since they are
// up.
func (s *Survey) Counters(ctx context.Context, _ wire.Caller, _ wire.Empty) (wire.NodeCounters, error) {
	totals, bytes := s.Totals(ctx)
	maps.Copy(totals, bytes)
	res := wire.NodeCounters{Counters: s.Counted(), Totals: totals}
	if m, err := proc.ReadMemory(); err == nil {
		res.MemAvailable = uint64(m.Available) //nolint:gosec // 0 where it is not known, never negative
	}
	return res, nil
}

// Capture reads the machine as files, with the inventory that follows from them; what the
// probe heard and the user declared is in no file, so it is added here.
func (s *Survey) Capture(ctx context.Context) (map[string][]byte, error) {
	return Captured(ctx, s.cfg.Reader, func(inv *envgen.Inventory) {
		whole := s.Inventory.Load()
		whole.NICs, whole.Devices = inv.NICs, inv.Devices
		*inv = whole
	})
}

// Captured reads a machine as files; complete may add to the inventory.
func Captured(ctx context.Context, r *fabric.Reader, complete func(*envgen.Inventory)) (map[string][]byte, error) {
	taken, err := r.Capture(ctx)
	if err != nil {
		return nil, err
	}
	complete(&taken.Inventory)
	return taken.Files()
}

// Memory is this machine's memory; nil where the kernel does not say.
func Memory() *wire.NodeMemory {
	m, err := proc.ReadMemory()
	if err != nil {
		return nil
	}
	return &wire.NodeMemory{Total: m.Total, Available: m.Available, GPU: proc.Here.GPUs() > 0}
}
