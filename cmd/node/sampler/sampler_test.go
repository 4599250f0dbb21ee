package sampler

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// machine is one whose GPU is half busy and grows hotter by a degree a reading.
type machine struct {
	reads  int
	last   time.Time
	until  time.Time // for how long nvidia-smi runs
	gpu    bool
	ledger []launcher.LedgerEntry
	events chan launcher.Event
	counts map[string]map[string]uint64
}

func (m *machine) Read([]launcher.LedgerEntry) usage.Machine {
	m.reads++
	now := usage.Machine{At: time.Now(), GPUs: m.GPUs(), CPU: &usage.CPU{Cores: 2}}
	if !m.last.IsZero() {
		now.Over, now.CPU.Used = now.At.Sub(m.last), new(float64(m.reads%2))
	}
	m.last = now.At
	return now
}
func (m *machine) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (m *machine) Want(d time.Duration)          { m.until = time.Now().Add(d) }
func (*machine) Fresh(context.Context, time.Duration) {
}
func (m *machine) GPUs() []usage.GPU {
	if !m.gpu {
		return nil
	}
	return []usage.GPU{{Busy: new(0.5), Celsius: new(50 + float64(m.reads))}}
}
func (m *machine) Totals(context.Context) (devices, interfaces map[string]map[string]uint64) {
	return m.counts, m.counts
}
func (m *machine) Ledger() []launcher.LedgerEntry { return m.ledger }
func (m *machine) Events() (func(context.Context) (launcher.Event, error), func()) {
	return func(ctx context.Context) (launcher.Event, error) {
		select {
		case ev := <-m.events:
			return ev, nil
		case <-ctx.Done():
			return launcher.Event{}, ctx.Err()
		}
	}, func() {}
}

func run(t *testing.T, m *machine) *Sampler {
	m.events = make(chan launcher.Event)
	s := New(Config{Self: "id1", Host: "spark1", Reader: m, SMI: m, Inventory: &rendezvous.Latest[envgen.Inventory]{},
		Counters: m, Ranks: m})
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	t.Cleanup(func() { end(); <-done })
	return s
}

// A machine on which nothing runs and that nobody looks at is read once a minute, by nvidia-smi for 3 s.
func TestAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{gpu: true}
		run(t, m)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if m.reads != 60 || m.until.After(time.Now().Add(3*time.Second)) {
			t.Errorf("%d readings in an hour, nvidia-smi until %v from now", m.reads, time.Until(m.until))
		}
	})
}

// Ranks beside a GPU have it read every five seconds, from five seconds after their start on, nvidia-smi all the time;
// on a machine without a GPU ranks change nothing, and neither does a launch that is over by then.
func TestWhileRanksRun(t *testing.T) {
	started := launcher.Event{Kind: launcher.Started}
	runs := []launcher.LedgerEntry{{Phase: launcher.PhaseStarted}}
	for _, tc := range []struct {
		name   string
		gpu    bool
		ledger []launcher.LedgerEntry
		want   int // readings in 10 minutes
	}{
		{"GPU", true, runs, 120}, {"no GPU", false, runs, 10}, {"over at once", true, nil, 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &machine{gpu: tc.gpu}
				run(t, m)
				synctest.Wait()
				m.ledger = tc.ledger
				m.events <- started
				time.Sleep(4 * time.Second)
				synctest.Wait()
				if m.reads != 0 {
					t.Error("a launch has the machine read at once")
				}
				for range 2 { // more launches do not put it off
					m.events <- started
					time.Sleep(time.Second / 2)
				}
				time.Sleep(10*time.Minute - 5*time.Second + time.Millisecond)
				synctest.Wait()
				if m.reads != tc.want {
					t.Errorf("%d readings, want %d", m.reads, tc.want)
				}
				if gone := time.Now().After(m.until); gone == (tc.want == 120) {
					t.Errorf("nvidia-smi has ended: %v", gone)
				}
			})
		})
	}
}

// Who looks gets a reading of less than a second ago, all who look at once the same; a scrape does not have nvidia-smi
// go on.
func TestLookers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{}
		s := run(t, m)
		var first usage.Machine
		for i := range 20 {
			now, err := s.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = now
			}
			if i == 9 && !now.At.Equal(first.At) {
				t.Error("two who look within a second have two readings")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if m.reads != 2 {
			t.Errorf("%d readings for 20 questions within 2 s", m.reads)
		}
		if left := time.Until(m.until); left < 4*time.Second {
			t.Errorf("nvidia-smi goes on for %v", left)
		}
		time.Sleep(10 * time.Second)
		s.Scrape(t.Context())
		if left := time.Until(m.until); left > 3*time.Second {
			t.Errorf("after a scrape nvidia-smi goes on for %v", left)
		}
	})
}

// The past has a mean of each minute, and an hour of them.
func TestPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{gpu: true, ledger: []launcher.LedgerEntry{{Phase: launcher.PhaseStarted}}}
		s := run(t, m)
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(2*time.Minute + time.Second)))
		got, err := s.usagePast(t.Context(), wire.Caller{}, wire.Empty{})
		if err != nil || len(got.Minutes) != 2 || got.Host != "spark1" {
			t.Fatalf("%+v %v", got, err)
		}
		second := got.Minutes[1] // readings 12 to 23
		g := second.GPUs[0]
		if d := cmp.Diff([]float64{0.5, 50 + 17.5, 0.5}, []float64{*g.Busy, *g.Celsius, *second.CPU.Used},
			cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })); d != "" {
			t.Error(d)
		}
		time.Sleep(2 * time.Hour)
		if got, _ := s.usagePast(t.Context(), wire.Caller{}, wire.Empty{}); len(got.Minutes) != 60 {
			t.Errorf("%d minutes", len(got.Minutes))
		}
	})
}

// A port is its twins together, RDMA and Ethernet apart; what is not counted is absent, and so is what was set back.
func TestPorts(t *testing.T) {
	hca := func(name, nic string, domain, function uint8) envgen.HCA {
		return envgen.HCA{Name: name, Netdev: nic, PCI: &envgen.PCIAddress{Domain: uint32(domain), Bus: 1, Function: function}}
	}
	inv := envgen.Inventory{Devices: []envgen.HCA{hca("rocep1s0f0", "enp1s0f0np0", 0, 0),
		hca("roceP2p1s0f0", "enP2p1s0f0np0", 2, 0), hca("rocep1s0f1", "", 0, 1)}}
	was := totals{
		devices: map[string]map[string]uint64{"rocep1s0f0": {"port_rcv_data": 100},
			"roceP2p1s0f0": {"port_rcv_data": 50, "port_xmit_data": 500}},
		interfaces: map[string]map[string]uint64{"enp1s0f0np0": {"rx_bytes": 10, "tx_bytes": 0}},
	}
	now := totals{
		devices: map[string]map[string]uint64{"rocep1s0f0": {"port_rcv_data": 300},
			"roceP2p1s0f0": {"port_rcv_data": 150, "port_xmit_data": 1}},
		interfaces: map[string]map[string]uint64{"enp1s0f0np0": {"rx_bytes": 30, "tx_bytes": 8}},
	}
	want := []usage.Port{
		{Name: "enp1s0f0np0", RDMAIn: new(600.), EtherIn: new(10.), EtherOut: new(4.)},
		{Name: "rocep1s0f1"},
	}
	if d := cmp.Diff(want, ports(inv, now, was, 2*time.Second)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]usage.Port{{Name: "enp1s0f0np0"}, {Name: "rocep1s0f1"}}, ports(inv, was, totals{}, 0)); d != "" {
		t.Error(d)
	}
}
