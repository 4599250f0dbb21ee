package why

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// knocked is how a machine that is away takes a connection to its agent; empty: it was not tried.
type knocked string

const (
	takes   knocked = "its kernel takes connections, its agent does not answer"
	refuses knocked = "the machine lives, and no agent runs"
	mute    knocked = "it does not answer at all: power, or the management cable"
)

// of adds it to what is said of a machine that is away.
func (k knocked) of(f wire.WhyFinding) wire.WhyFinding {
	f.Evidence = append(f.Evidence, nonempty(string(k))...)
	switch k {
	case takes:
		f.Remedy = "systemctl status sparkrun   # on " + f.Host
	case refuses:
		f.Remedy = "systemctl start sparkrun   # on " + f.Host
	}
	return f
}

func (w *Why) knock(ctx context.Context, id launcher.NodeID) knocked {
	at, err := w.cfg.Dial.Locate(id)
	if err != nil {
		return ""
	}
	return knock(ctx, at)
}

func knock(ctx context.Context, at netip.AddrPort) knocked {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "tcp", at.String())
	switch {
	case err == nil:
		_ = c.Close()
		return takes
	case errors.Is(err, unix.ECONNREFUSED):
		return refuses
	}
	return mute
}

// chosen is from where on ports are not a server's own: sparkrun's and the kernel's choice begin there.
const chosen = 20000

// wrongPort is a service that starts without an end: it waits for requests, and not where it should.
func (e Evidence) wrongPort() []wire.WhyFinding {
	if e.Job == nil || e.Job.Spec.Service == nil || len(e.Job.Spec.Steps()) > 1 {
		return nil
	}
	state, _ := e.Job.ServiceState()
	want, err := netip.ParseAddrPort(e.Job.ServiceAddr())
	if state != string(rendezvous.StateStarts) || err != nil {
		return nil
	}
	var all []wire.RankLook
	var at []netip.AddrPort
	var who wire.RankLook
	for _, l := range e.Looks {
		for _, r := range l.Ranks {
			r.Host = l.Host
			all = append(all, r)
			for _, a := range r.Listens {
				switch {
				case a.Port() == want.Port():
					return nil
				case !a.Addr().IsLoopback() && a.Port() < chosen && int(a.Port()) != r.Port:
					at, who = append(at, a), r
				}
			}
		}
	}
	if len(at) == 0 || slices.ContainsFunc(all, func(r wire.RankLook) bool { return r.CPU >= 2*quiet }) {
		return nil
	}
	text := fmt.Sprintf("rank %d on %s listens on %d, and not on %d, where --serve has it", who.Rank, who.Host, at[0].Port(),
		want.Port())
	if !e.lasted(all) {
		return []wire.WhyFinding{{Text: text + ", which has not been seen for a whole minute: ask again if that goes on"}}
	}
	return []wire.WhyFinding{{Code: "wrong-port", Sure: 85, Rank: new(who.Rank), Host: who.Host, Text: text,
		Evidence: []string{where(who)}, Remedy: "sparkrun logs " + string(e.Job.Spec.ID)}}
}
