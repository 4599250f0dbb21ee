package doctor

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

// A fabric with links and without addresses is an error that a list of machines can tell without asking any of
// them; a machine that is away is told as away, and not by what it was last.
func TestCounts(t *testing.T) {
	t.Parallel()
	spark := func(host, mgmt string, fabric ...string) Node {
		inv := cabled()
		inv.Host = host
		inv.NICs[0].Addresses = []netip.Prefix{netip.MustParsePrefix(mgmt + "/24")}
		for i := range inv.NICs[1:] {
			inv.NICs[i+1].MTU = 9000
			if len(fabric) > 0 {
				addr := netip.MustParsePrefix(fabric[i] + "/24")
				inv.NICs[i+1].Addresses = []netip.Prefix{addr}
				inv.Devices[i].GIDs = []envgen.GID{{Index: 3, Type: "RoCE v2", Addr: netip.AddrFrom16(addr.Addr().As16())}}
			}
		}
		return Node{ID: "id-" + host, Host: host, State: "ready", Addr: netip.MustParseAddr(mgmt), Inventory: inv}
	}
	bare := Cluster{Leader: "spark1", Nodes: []Node{spark("spark1", "10.0.0.1"), spark("spark2", "10.0.0.2")}}
	// The one of the cluster: its fabric joins nobody.
	if diff := cmp.Diff(map[string]Tally{"": {Warnings: 1}, "spark1": {Errors: 1}, "spark2": {Errors: 1}}, bare.Counts()); diff != "" {
		t.Errorf("without addresses: -want +got:\n%s\n%+v", diff, bare.Known())
	}
	for _, f := range bare.Known() {
		if f.Severity == envgen.SeverityError && f.Code != topology.CodeNoIPv4 {
			t.Errorf("%+v", f)
		}
	}
	bare.Nodes[1].State = "away"
	if got := bare.Counts(); got["spark2"] != (Tally{}) || got["spark1"].Errors != 1 {
		t.Errorf("one is away: %v", got)
	}
	whole := Cluster{Leader: "spark1", Nodes: []Node{spark("spark1", "10.0.0.1", "192.168.10.1", "192.168.11.1"),
		spark("spark2", "10.0.0.2", "192.168.10.2", "192.168.11.2")}}
	if got := whole.Counts(); len(got) != 0 {
		t.Errorf("of a sound pair: %v: %+v", got, whole.Known())
	}
}
