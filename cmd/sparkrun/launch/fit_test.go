package launch

import (
	"context"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// An election is waited for, as by the launch itself.
func TestFitWaitsForLeader(t *testing.T) {
	asked := 0
	b := apptest.Agent(&apptest.FakeRunner{OnExplain: func(context.Context,
		wire.LaunchRequest) (wire.ExplainResponse, error) {
		if asked++; asked == 1 {
			return wire.ExplainResponse{}, wire.ErrRetry
		}
		return wire.ExplainResponse{}, nil
	}})
	o := Options{Workload: engine.Usual().Name, Model: "m", Fit: func(wire.ExplainResponse, bool) error { return nil }}
	if err := o.fits(t.Context(), b, launcher.Spec{}); err != nil || asked != 2 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}
