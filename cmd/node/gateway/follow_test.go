package gateway_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// world is a cluster whose leaders come and go: what they have recorded, and the services.
type world struct {
	t        *testing.T
	record   *rendezvous.Record
	index    uint64
	backends rendezvous.Latest[[]rendezvous.Backend]
	here     *wire.ToLeader
	leads    rendezvous.Latest[launcher.NodeID]
	view     rendezvous.Latest[gateway.View]
	mu       sync.Mutex
	views    []string // that came, in words
	roster   rendezvous.Latest[rendezvous.Roster]
	seals    trust.Sealer
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, record: rendezvous.NewRecord()}
	w.here = wire.NewToLeader(wire.ToLeaderConfig{Host: "spark1", Leader: w.leader})
	w.apply(rendezvous.Entry{Kind: rendezvous.KindFound, Found: &rendezvous.Found{Cluster: "c", Epoch: 1}})
	var err error
	if w.seals, err = trust.NewSealer(trust.Keyring{trust.NewGossipKey(0)}, nil); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) apply(e rendezvous.Entry) error {
	data, err := e.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	w.index++
	err, _ = w.record.Apply(w.index, data).(error)
	return err
}

// Gateway is the Recorder.
func (w *world) Gateway(_ context.Context, c rendezvous.GatewayChange) error {
	return w.apply(c.Entry())
}

func (w *world) leader() (wire.Leader, error) { return wire.Leader{}, wire.ErrNoLeader }

// lead has this node lead until end.
func (w *world) lead() (end func()) {
	ctx, stop := context.WithCancel(w.t.Context())
	l := gateway.Lead(ctx, gateway.LeaderConfig{Host: "spark1", Port: 7942, Backends: w.backends.Watch, Record: w.record, Recorder: w,
		VirtualIP: func() (bool, string) { return false, "" }, Roster: w.roster.Watch, Sealer: func() (trust.Sealer, error) { return w.seals, nil },
		OnlyHere: func(context.Context) string { return "" }, Logger: slog.New(slog.DiscardHandler)})
	over := w.here.Lead(l.Calls()...)
	return func() {
		over()
		stop()
	}
}

// follow runs a follower, and notes what it writes.
func (w *world) follow(host string) (end func()) {
	ctx, stop := context.WithCancel(w.t.Context())
	f := gateway.NewFollower(gateway.FollowerConfig{Self: "id", Host: host, Here: w.here, Leader: w.leader, Leads: &w.leads,
		Elected: func() <-chan struct{} { return nil }, Map: &w.view, Logger: slog.New(slog.DiscardHandler)})
	done := make(chan error, 2)
	go func() { done <- f.Run(ctx) }()
	go func() {
		for {
			v, changed := w.view.Watch()
			w.mu.Lock()
			if text := viewText(v); len(w.views) == 0 || w.views[len(w.views)-1] != text {
				w.views = append(w.views, text)
			}
			w.mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
				done <- nil
				return
			}
		}
	}()
	return func() {
		stop()
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				w.t.Error(err)
			}
		}
	}
}

func viewText(v gateway.View) string {
	if v.Since.IsZero() {
		return "none"
	}
	text := fmt.Sprintf("%d keys", len(v.Gateway.Keys))
	for _, b := range v.Backends {
		text += fmt.Sprintf(" %s=%s", b.Job, b.State)
		if !b.Ready {
			text += "-"
		}
	}
	if v.Cut {
		text += " cut"
	}
	return text
}

// came checks what has come since it was asked last.
func (w *world) came(want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := strings.Join(w.views, "; "); got != strings.Join(want, "; ") {
		w.t.Errorf("came %q, want %q", got, strings.Join(want, "; "))
	}
	w.views = nil
}

func serviceOf(job launcher.JobID, state string) rendezvous.Backend {
	return rendezvous.Backend{Job: job, State: state, Ready: state == "ready", Host: "spark1",
		Addr: netip.MustParseAddrPort("10.0.0.1:8000")}
}

func keyOf(name string) rendezvous.GatewayChange {
	return rendezvous.GatewayChange{Key: &rendezvous.NamedGatewayKey{Name: name,
		GatewayKey: rendezvous.GatewayKey{Hash: sha256.Sum256([]byte(name))}}}
}

// A member has every change at once, and nothing twice; without a leader it keeps the last map and says so, and the
// next leader's follows when that knows how the services are.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		end := w.follow("spark1")
		defer func() { end() }()
		time.Sleep(time.Minute)
		w.came("none")
		down := w.lead()
		time.Sleep(time.Second)
		w.came("0 keys")
		w.backends.Store([]rendezvous.Backend{serviceOf("aaaa", "starting")})
		w.came("0 keys aaaa=starting-")
		if err := w.apply(keyOf("ada").Entry()); err != nil {
			t.Fatal(err)
		}
		w.backends.Store([]rendezvous.Backend{serviceOf("aaaa", "ready")})
		time.Sleep(100 * time.Millisecond)
		w.came("1 keys aaaa=ready")
		w.backends.Store([]rendezvous.Backend{serviceOf("aaaa", "ready")})
		time.Sleep(time.Minute)
		w.came()

		down()
		time.Sleep(2 * time.Second)
		w.came()
		time.Sleep(2 * time.Second)
		w.came("1 keys aaaa=ready cut")
		time.Sleep(time.Hour)
		w.came()

		w.backends.Store([]rendezvous.Backend{serviceOf("aaaa", "planned"), serviceOf("bbbb", "planned")})
		down = w.lead()
		time.Sleep(time.Second)
		w.came()
		w.backends.Store([]rendezvous.Backend{serviceOf("aaaa", "ready"), serviceOf("bbbb", "planned")})
		time.Sleep(time.Second)
		w.came()
		time.Sleep(1100 * time.Millisecond)
		w.came("1 keys aaaa=ready bbbb=planned-")
		if v := w.view.Load(); time.Since(v.Since) > time.Second {
			t.Errorf("not cut since %s", v.Since)
		}
		down()
	})
}

// A service that listens on loopback is one for its own machine's gateway.
func TestFollowKnowsLoopback(t *testing.T) {
	for host, want := range map[string]string{"spark1": "0 keys aaaa=ready", "spark2": "0 keys aaaa=ready-"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			b := serviceOf("aaaa", "ready")
			b.Local = true
			w.backends.Store([]rendezvous.Backend{b})
			defer w.lead()()
			defer w.follow(host)()
			synctest.Wait()
			if got := viewText(w.view.Load()); got != want {
				t.Errorf("%s has %q, want %q", host, got, want)
			}
			if !w.backends.Load()[0].Ready {
				t.Error("what the leader has is changed")
			}
		})
	}
}

// A service that is stuck is asked only where there is no other.
func TestFollowSparesTheWedged(t *testing.T) {
	for text, want := range map[string]string{
		"m ready, m wedged":    "0 keys 0=ready 1=wedged-",
		"m wedged, x ready":    "0 keys 0=wedged 1=ready",
		"m starting, m wedged": "0 keys 0=starting- 1=wedged",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			var all []rendezvous.Backend
			for i, one := range strings.Split(text, ", ") {
				model, state, _ := strings.Cut(one, " ")
				b := serviceOf(launcher.JobID(fmt.Sprint(i)), state)
				b.Models, b.Ready = []string{model}, state != "starting"
				all = append(all, b)
			}
			w.backends.Store(all)
			defer w.lead()()
			defer w.follow("spark1")()
			synctest.Wait()
			if got := viewText(w.view.Load()); got != want {
				t.Errorf("%s: %q, want %q", text, got, want)
			}
		})
	}
}

// Changes are root's, on a machine of the cluster, and what would change nothing is refused.
func TestChange(t *testing.T) {
	root, ada := &wire.User{Name: "root"}, &wire.User{Name: "ada", UID: 1000}
	past := time.Now().Add(-time.Minute)
	expired := keyOf("bob")
	expired.Key.Expires = &past
	w := newWorld(t)
	defer w.lead()()
	for _, step := range []struct {
		user   *wire.User
		change rendezvous.GatewayChange
		err    error
	}{
		{ada, keyOf("webui"), wire.ErrDenied},
		{root, rendezvous.GatewayChange{}, launcher.ErrInvalid},
		{root, keyOf("webui"), nil},
		{root, keyOf("webui"), nil}, // asked twice
		{root, rendezvous.GatewayChange{Key: &rendezvous.NamedGatewayKey{Name: "webui",
			GatewayKey: rendezvous.GatewayKey{Hash: [32]byte{1}}}}, rendezvous.ErrKeyExists},
		{root, expired, launcher.ErrInvalid},
		{root, rendezvous.GatewayChange{Revoke: "nobody"}, rendezvous.ErrNoKey},
		{root, rendezvous.GatewayChange{Alias: &rendezvous.GatewayAlias{Name: "x"}}, rendezvous.ErrNoAlias},
		{root, rendezvous.GatewayChange{Alias: &rendezvous.GatewayAlias{Name: "x", Model: "m"}}, nil},
	} {
		_, err := wire.ChangeGateway.Call(t.Context(), w.here.As(wire.Caller{User: step.user}), step.change)
		if errors.Is(err, rendezvous.ErrKeyExists) && step.err == nil {
			err = nil // the recorder of a leader knows that it is done
		}
		if !errors.Is(err, step.err) || (err == nil) != (step.err == nil) {
			t.Errorf("%s by %s: %v, want %v", step.change, step.user.Name, err, step.err)
		}
	}
	g, err := wire.ShowGateway.Call(t.Context(), w.here.As(wire.Caller{User: ada}), wire.Empty{})
	if err != nil || len(g.Keys) != 1 || g.Keys[0].By != "root" || time.Since(g.Keys[0].Created) > time.Minute ||
		g.Aliases["x"] != "m" || g.Port != 7942 {
		t.Errorf("%+v, %v", g, err)
	}
}

// A virtual IP has its network's own length, and is nobody's but the virtual IP's.
func TestVirtualIPIsFitting(t *testing.T) {
	w := newWorld(t)
	defer w.lead()()
	for i, host := range []string{"spark1", "spark2", "spark3"} {
		addr := fmt.Sprintf("10.0.0.1%d", i+1)
		w.join(launcher.NodeID(host), host, addr, addr+"/24")
	}
	set := func(text string) error {
		addr := netip.MustParsePrefix(text)
		return w.changes(rendezvous.GatewayChange{VirtualIP: &addr})
	}
	for text, want := range map[string]string{
		"10.0.0.100/16": "the management network of spark1 is 10.0.0.0/24: give 10.0.0.100/24",
		"10.0.0.12/24":  "it is an address of spark2 (eth0)",
	} {
		if err := set(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if err := set("10.0.0.100/24"); err != nil {
		t.Fatal(err)
	}
	all := slices.Clone(w.roster.Load())
	nic := &all[0].Inventory.NICs[0]
	nic.Addresses = append(nic.Addresses, netip.MustParsePrefix("10.0.0.100/24"))
	w.roster.Store(all)
	if err := set("10.0.0.100/24"); err != nil {
		t.Errorf("once more, while spark1 holds it: %v", err)
	}
}
