package why

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A machine whose agent hangs, one without an agent and one that is off are told apart; and it is seen where a process
// listens.
func TestKnock(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing is asked
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	if got := knock(t.Context(), at); got != takes {
		t.Errorf("who listens: %q", got)
	}
	if _, listens := connsOf(proc.Here, []int{os.Getpid()}, nil, connections(), nil); len(listens) != 1 || listens[0] != at {
		t.Errorf("it listens at %s, want %s", listens, at)
	}
	_ = l.Close()
	if got := knock(t.Context(), at); got != refuses {
		t.Errorf("who does not: %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as when its time is over
	if got := knock(ctx, at); got != mute {
		t.Errorf("nobody: %q", got)
	}
	if f := refuses.of(wire.WhyFinding{Host: "spark2"}); f.Remedy != "systemctl start sparkrun   # on spark2" ||
		len(f.Evidence) != 1 {
		t.Errorf("%+v", f)
	}
}
