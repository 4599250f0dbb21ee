package node

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// routed waits until a host's gateway goes by this.
func (h *host) routed(want string) {
	h.t.Helper()
	deadline := time.After(time.Minute)
	for {
		v, changed := h.now().routes.Watch()
		got := fmt.Sprintf("keys %d", len(v.Gateway.Keys))
		for _, b := range v.Backends {
			got += fmt.Sprintf(", %s on %s comes %v", b.Models, b.Host, b.Comes)
		}
		if v.Cut {
			got += ", cut"
		}
		if got == want && !v.Since.IsZero() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			h.t.Fatalf("the gateway of %s goes by %q, want %q", h.cfg.Host, got, want)
		}
	}
}

// What is changed on any machine, and every service, reaches the gateways of all, under the next leader too; a machine
// that hears none goes by what it knew.
func TestGatewaysFollowTheLeader(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.hosts[0]
	leader.waitVoters(3)
	everywhere := func(want string) {
		t.Helper()
		for _, h := range c.hosts {
			if h.up() {
				h.routed(want)
			}
		}
	}
	everywhere("keys 0")
	typed := c.hosts[2].client()
	defer typed.Close()
	key := rendezvous.NamedGatewayKey{Name: "webui", GatewayKey: rendezvous.GatewayKey{Hash: sha256.Sum256([]byte("x"))}}
	if _, err := wire.ChangeGateway.Call(t.Context(), typed, rendezvous.GatewayChange{Key: &key}); err != nil {
		t.Fatal(err)
	}
	everywhere("keys 1")
	for _, h := range []*host{leader, c.hosts[2]} {
		if !slices.ContainsFunc(h.audits("gateway"), func(l audit.Line) bool {
			return l.On == "key create webui" && l.From == c.hosts[2].cfg.Host && l.Outcome == audit.OK
		}) {
			t.Errorf("audit log of %s: %+v", h.cfg.Host, h.audits("gateway"))
		}
	}

	spec := command(1, 1, "exec sleep 600")
	spec.On = []string{c.hosts[1].cfg.Host}
	spec.Stages[0].Ports = []launcher.NamedPort{{Name: "api"}}
	spec.Service = &launcher.Service{Port: launcher.Of(launcher.PortNamed("api")), Model: "qwen"}
	launched := make(chan error, 1)
	go func() {
		launched <- wire.Launch.Call(t.Context(), typed, wire.LaunchRequest{Spec: spec},
			func(rendezvous.Progress) error { return nil })
	}()
	everywhere("keys 1, [qwen] on spark2 comes true")

	leader.halt()
	time.Sleep(10 * time.Millisecond)
	everywhere("keys 1, [qwen] on spark2 comes true")
	leader.start()
	leader.wait(3)
	everywhere("keys 1, [qwen] on spark2 comes true")
	stop := c.hosts[1].client()
	defer stop.Close()
	if _, err := wire.Stop.Call(t.Context(), stop, wire.StopRequest{Job: string(spec.ID)}); err != nil {
		t.Fatal(err)
	}
	everywhere("keys 1")
	<-launched
	for _, h := range c.hosts[:2] {
		h.halt()
	}
	c.hosts[2].routed("keys 1, cut")
}
