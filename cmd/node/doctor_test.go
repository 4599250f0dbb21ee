package node

import (
	"errors"
	"slices"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func codesAt(findings []envgen.Finding, hostName string) []string {
	var out []string
	for _, f := range findings {
		if f.Host == hostName {
			out = append(out, f.Code)
		}
	}
	return out
}

// Any member examines all; one whose agent is down is a finding and delays
// nothing else.
func TestDoctorAsksEveryMember(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	ask := func(h *host, r wire.DoctorRequest) (wire.DoctorResponse, error) {
		cl := h.client()
		defer cl.Close()
		return wire.Doctor.Call(t.Context(), cl, r)
	}
	for _, h := range c.hosts {
		res, err := ask(h, wire.DoctorRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range res.Nodes {
			if n.Error != "" || n.Facts == nil || n.Facts.Kernel == "" || n.Facts.User == "" {
				t.Errorf("%s on %s: %+v", h.cfg.Host, n.Host, n)
			}
			// All clocks are one, so a measured offset is the measuring's own error.
			if o := n.Facts.Clock.Offset; (o == nil) != (n.Host == h.cfg.Host) || o != nil && o.Abs() > *n.Facts.Clock.Bound {
				t.Errorf("%s measures the clock of %s: %+v", h.cfg.Host, n.Host, n.Facts.Clock)
			}
		}
		if got := codesAt(res.Findings, "spark2"); slices.Contains(got, "node-away") || slices.Contains(got, "port-unreachable") {
			t.Errorf("from %s: %v", h.cfg.Host, got)
		}
	}
	if res, err := ask(c.hosts[0], wire.DoctorRequest{Node: "spark3"}); err != nil || slices.ContainsFunc(res.Findings, func(f envgen.Finding) bool { return f.Host != "spark3" }) {
		t.Errorf("of spark3 alone: %v, %+v", err, res.Findings)
	}
	if _, err := ask(c.hosts[0], wire.DoctorRequest{Node: "spark9"}); !errors.Is(err, rendezvous.ErrNoNode) {
		t.Errorf("of a host that is no member: %v", err)
	}
	c.hosts[2].halt()
	res, err := ask(c.hosts[0], wire.DoctorRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := codesAt(res.Findings, "spark3"); !slices.Equal(got, []string{"node-away"}) {
		t.Errorf("of a node that is away: %v", got)
	}
}
