package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func TestNodeRemove(t *testing.T) {
	c := &fakeCluster{passing: 3} // who leads passes that on first
	code, o, e := cli(t, &backend{cluster: c}, "node", "remove", "spark3", "--force", "--yes")
	if code != 0 || o != "spark3 is out of the cluster\n" || !strings.Contains(e, "leave --force") {
		t.Errorf("code %d, stdout %q, stderr %q", code, o, e)
	}
	want := wire.RemoveNodeRequest{Host: "spark3", Force: true}
	if diff := cmp.Diff([]any{want, want, want}, c.requests); diff != "" {
		t.Error(diff)
	}
	c = &fakeCluster{removed: wire.RemoveNodeResponse{Told: true}}
	if code, o, e := cli(t, &backend{cluster: c}, "node", "remove", "spark3", "--yes"); code != 0 || e != "" {
		t.Errorf("code %d, stdout %q, stderr %q", code, o, e)
	}
	c = &fakeCluster{}
	if code, _, e := cli(t, &backend{cluster: c}, "node", "remove", "spark3"); code != 2 || len(c.requests) != 0 || !strings.Contains(e, "--yes") {
		t.Errorf("without a terminal: code %d, stderr %q, %d requests", code, e, len(c.requests))
	}
}
