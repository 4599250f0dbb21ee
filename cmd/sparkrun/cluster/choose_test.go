package cluster

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
)

func TestFoundAtATerminal(t *testing.T) {
	const which, whichHosts, who = "Number of the cluster to join", "Numbers of the hosts", "User to log in as there"
	clusters := []discover.Cluster{apptest.Genuine, apptest.Lookals, apptest.Another}

	keyboard, screen := apptest.PTY(t)
	a, _, errs := apptest.Finding(t, screen, clusters, nil)
	apptest.Types(t, errs, keyboard, [2]string{which, "4"}, [2]string{which, "1 2"}, [2]string{which, "x"},
		[2]string{which, "2"})
	got, err := chooseCluster(t.Context(), a, node.Config{}, nil)
	if diff := cmp.Diff(apptest.Lookals, got,
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	if strings.Contains(errs.String(), "sudo sparkrun join") || !strings.Contains(errs.String(), "spark1 (10.0.0.66)") {
		t.Errorf("shown is %s", errs)
	}

	keyboard, screen = apptest.PTY(t)
	a, _, errs = apptest.Finding(t, screen, nil, apptest.SshHosts)
	apptest.Types(t, errs, keyboard, [2]string{whichHosts, "3,1 3"}, [2]string{whichHosts, "3, 2"}, [2]string{who, "zeta"})
	hosts, err := chooseHosts(t.Context(), a, nil)
	if diff := cmp.Diff([]string{"zeta@fd00::3", "zeta@10.0.0.2:2222"}, hosts); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}

	a, _, _ = apptest.Finding(t, screen, nil, nil)
	a.Find = func(context.Context, node.Config) (node.Finding, error) {
		return node.Finding{}, errors.New("port 5353")
	}
	if _, err := chooseCluster(t.Context(), a, node.Config{}, nil); err == nil {
		t.Error("no error")
	}
}
