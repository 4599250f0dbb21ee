package virtualip

import (
	"context"

	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

var vip = netip.MustParsePrefix("10.0.0.100/24")

// fakeNetwork is one machine's; its kernel drops an address that is not renewed.
type fakeNetwork struct {
	mu        sync.Mutex
	until     time.Time
	holders   []string
	announced int
}

func (f *fakeNetwork) Has(netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Before(f.until)
}

func (f *fakeNetwork) Put(_ netip.Prefix, d time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until = time.Now().Add(d)
	return nil
}

func (f *fakeNetwork) Drop(netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until = time.Time{}
	return nil
}

func (f *fakeNetwork) Holders(context.Context, netip.Addr) ([]string, error) {
	time.Sleep(1600 * time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holders, nil
}

func (f *fakeNetwork) Announce(netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.announced++
	return nil
}

func recordOf(t *testing.T, machines int) *rendezvous.Record {
	r := rendezvous.NewRecord()
	index := uint64(0)
	add := func(e rendezvous.Entry) {
		index++
		b, err := e.Encode()
		if err == nil {
			err, _ = r.Apply(index, b).(error)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	node := func(i int) rendezvous.Node {
		return rendezvous.Node{ID: launcher.NodeID(rune('a' + i)), Host: string(rune('a' + i))}
	}
	add(rendezvous.Entry{Kind: rendezvous.KindFound, Found: &rendezvous.Found{Cluster: "c", Epoch: 1, First: node(0)}})
	add(rendezvous.Entry{Kind: rendezvous.KindToken, Token: &rendezvous.Token{ID: "t", Uses: 9, Expires: time.Now().Add(time.Hour)}})
	for i := 1; i < machines; i++ {
		add(rendezvous.Entry{Kind: rendezvous.KindJoin, At: time.Now(), Join: &rendezvous.Join{TokenID: "t", Node: node(i)}})
	}
	add(rendezvous.GatewayChange{VirtualIP: &vip}.Entry())
	return r
}

// holder runs one machine's part until end is called.
func holder(t *testing.T, r *rendezvous.Record, f *fakeNetwork, prove func(context.Context) error) (h *Holder, end func()) {
	h = New(Config{Record: r, Network: f, Prove: prove, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = h.Run(ctx)
	}()
	return h, func() {
		cancel()
		<-over
	}
}

func leads(context.Context) error { return nil }

// The address is taken once an earlier holder has lost it, is announced twice, renewed, and dropped with the leadership.
func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeNetwork{}
		h, end := holder(t, recordOf(t, 3), f, leads)
		time.Sleep(Lifetime - unheard - time.Millisecond)
		if f.Has(vip.Addr()) {
			t.Error("it was taken while an earlier holder may have had it")
		}
		time.Sleep(2 * time.Millisecond)
		if held, why := h.State(); !f.Has(vip.Addr()) || !held || why != "" {
			t.Errorf("then it is held: %v, %q", held, why)
		}
		time.Sleep(time.Minute)
		if !f.Has(vip.Addr()) || f.announced != 2 {
			t.Errorf("a minute later: held %v, announced %d times", f.Has(vip.Addr()), f.announced)
		}
		end()
		if held, _ := h.State(); f.Has(vip.Addr()) || held {
			t.Error("it is held after the leadership")
		}
	})
}

// A machine that cannot prove that it leads does not renew: the kernel drops the address by itself.
func TestLosesItByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		f := &fakeNetwork{}
		h, end := holder(t, recordOf(t, 3), f, func(ctx context.Context) error {
			if !cut.Load() {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		defer end()
		time.Sleep(time.Minute)
		cut.Store(true)
		time.Sleep(Lifetime + time.Millisecond)
		if f.Has(vip.Addr()) {
			t.Error("it has it still")
		}
		time.Sleep(renew + proveWithin)
		if held, why := h.State(); held || why != "this machine could not prove that it leads" {
			t.Errorf("held: %v, %q", held, why)
		}
		cut.Store(false)
		time.Sleep(again + 4*time.Second)
		if !f.Has(vip.Addr()) {
			t.Error("it was not taken again")
		}
	})
}

// An address that somebody answers for is left alone, and why is told; in a pair it is on neither machine.
func TestLeavesItAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeNetwork{holders: []string{"02:00:00:00:00:01"}}
		h, end := holder(t, recordOf(t, 3), f, leads)
		defer end()
		time.Sleep(time.Minute)
		if held, why := h.State(); held || why != "10.0.0.100 is another machine's: 02:00:00:00:00:01 answers for it" {
			t.Errorf("held: %v, %q", held, why)
		}
		f.mu.Lock()
		f.holders = nil
		f.mu.Unlock()
		time.Sleep(again + 2*time.Second)
		if held, why := h.State(); !held {
			t.Errorf("once it is free: %q", why)
		}

		pair := &fakeNetwork{}
		h2, end2 := holder(t, recordOf(t, 2), pair, leads)
		defer end2()
		time.Sleep(time.Minute)
		if held, why := h2.State(); held || pair.Has(vip.Addr()) || why != "the cluster has fewer than 3 machines" {
			t.Errorf("in a pair: %v, %q", held, why)
		}
	})
}

// Another setting of the gateway leaves it alone.
func TestOtherSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := &fakeNetwork{}, recordOf(t, 3)
		_, end := holder(t, r, f, leads)
		defer end()
		time.Sleep(time.Minute)
		open := rendezvous.GatewayChange{Open: new(true)}
		b, err := open.Entry().Encode()
		if err == nil {
			err, _ = r.Apply(99, b).(error)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			synctest.Wait()
			if !f.Has(vip.Addr()) {
				t.Fatal("it was dropped")
			}
			time.Sleep(time.Second)
		}
		if f.announced != 2 {
			t.Errorf("it was announced %d times", f.announced)
		}
	})
}

// It is dropped at once when the setting goes, and no machine waits for one without a setting.
func TestSettingGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := &fakeNetwork{}, recordOf(t, 3)
		h, end := holder(t, r, f, leads)
		defer end()
		time.Sleep(time.Minute)
		none := rendezvous.GatewayChange{VirtualIP: &netip.Prefix{}}
		b, err := none.Entry().Encode()
		if err == nil {
			err, _ = r.Apply(99, b).(error)
		}
		synctest.Wait()
		held, why := h.State()
		if err != nil || f.Has(vip.Addr()) || held || why != "" {
			t.Errorf("%v; it has it: %v, %q", err, f.Has(vip.Addr()), why)
		}
	})
}
