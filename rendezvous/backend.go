package rendezvous

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Backend is the service as the gateway sees it. The model is asked for by the name that the service gives it, or where
// that is not known by the job's; what else the server answers to it lists itself.
func (s JobStatus) Backend(now time.Time) Backend {
	state, text := s.ServiceState()
	v := s.Spec.Service
	b := Backend{
		Job: s.Spec.ID, Name: s.Spec.Name, Workload: s.Spec.Workload, State: state, Text: text,
		Models:     []string{cmp.Or(v.Model, s.Spec.Name, string(s.Spec.ID))},
		Generation: s.Plan.Generation, Metrics: v.Metrics,
	}
	if s.Service != nil {
		b.Models = append(b.Models, s.Service.Models...)
	}
	if hosts := s.MainHosts(); len(hosts) > 0 {
		b.Host = hosts[0]
	}
	if s.Outcome != nil {
		b.Text = s.Outcome.Cause
		return b
	}
	b.OnDemand = v.OnDemand != nil
	if b.Moves = s.Moves; b.Moves {
		b.Comes = s.Stop == nil
		return b
	}
	if slices.Contains(s.Away, b.Host) {
		b.Text = cmp.Or(b.Text, b.Host+" does not answer")
	}
	switch launcher.ServiceState(state) {
	case launcher.ServiceReady, launcher.ServiceWedged: // one that is stuck may answer yet
		b.answersAt(s)
	case launcher.ServiceUnhealthy:
		b.Comes = s.Stop == nil && s.RecentFaults(now) < v.Restarts
	default:
		b.Comes = s.Stop == nil && s.State != StateEnds && s.State != StateAsleep
	}
	return b
}

// answersAt has it ready, if its address is one to connect to.
func (b *Backend) answersAt(s JobStatus) {
	addr, err := netip.ParseAddrPort(s.Service.Addr)
	if err != nil {
		b.Text = fmt.Sprintf("its address is not known: %q", s.Service.Addr)
		return
	}
	b.Ready, b.Addr = true, addr
	if addr.Addr().IsLoopback() && (len(s.Plan.Nodes) == 0 || addr.Addr() != s.Plan.Nodes[0].Management()) {
		b.Local = true
		b.Text = cmp.Or(b.Text, fmt.Sprintf("it listens on %s: only %s reaches it", addr.Addr(), b.Host))
	}
}
