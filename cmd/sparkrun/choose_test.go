package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
)

func TestFoundAtATerminal(t *testing.T) {
	const which, whichHosts, who = "Number of the cluster to join", "Numbers of the hosts", "User to log in as there"
	clusters := []discover.Cluster{genuine, lookals, another}

	keyboard, screen := pty(t)
	a, _, errs := finding(t, screen, clusters, nil)
	types(t, errs, keyboard, [2]string{which, "4"}, [2]string{which, "1 2"}, [2]string{which, "x"}, [2]string{which, "2"})
	got, err := a.chooseCluster(t.Context(), node.Config{}, nil)
	if diff := cmp.Diff(lookals, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	if strings.Contains(errs.String(), "sudo sparkrun join") || !strings.Contains(errs.String(), "spark1 (10.0.0.66)") {
		t.Errorf("shown is %s", errs)
	}

	keyboard, screen = pty(t)
	a, _, errs = finding(t, screen, nil, sshHosts)
	types(t, errs, keyboard, [2]string{whichHosts, "3,1 3"}, [2]string{whichHosts, "3, 2"}, [2]string{who, "zeta"})
	hosts, err := a.chooseHosts(t.Context(), nil)
	if diff := cmp.Diff([]string{"zeta@fd00::3", "zeta@10.0.0.2:2222"}, hosts); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}

	a, _, _ = finding(t, screen, nil, nil)
	a.find = func(context.Context, node.Config) (node.Finding, error) {
		return node.Finding{}, errors.New("port 5353")
	}
	if _, err := a.chooseCluster(t.Context(), node.Config{}, nil); err == nil {
		t.Error("no error")
	}
}
