package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func TestNodeRemove(t *testing.T) {
	c := &apptest.FakeCluster{Passing: 3} // who leads passes that on first
	code, o, e := cli(t, apptest.Agent(c), "node", "remove", "spark3", "--force", "--yes")
	if code != 0 || o != "spark3 is out of the cluster\n" || !strings.Contains(e, "leave --force") {
		t.Errorf("code %d, stdout %q, stderr %q", code, o, e)
	}
	want := wire.RemoveNodeRequest{Host: "spark3", Force: true}
	if diff := cmp.Diff([]any{want, want, want}, c.Requests); diff != "" {
		t.Error(diff)
	}
	c = &apptest.FakeCluster{Removed: wire.RemoveNodeResponse{Told: true}}
	if code, o, e := cli(t, apptest.Agent(c), "node", "remove", "spark3", "--yes"); code != 0 || e != "" {
		t.Errorf("code %d, stdout %q, stderr %q", code, o, e)
	}
	members := func(wire.StatusRequest) (wire.Status, error) {
		return wire.Status{Leader: "spark1", Nodes: []wire.NodeStatus{{Host: "spark1"}, {Host: "spark3"}}}, nil
	}
	for host, want := range map[string]struct {
		code int
		says string
	}{
		"spark3": {2, "--yes"}, // there is no terminal to ask
		"spark9": {1, "remove spark9: no such node: the cluster has spark1, spark3\n"},
	} {
		c = &apptest.FakeCluster{OnStatus: members}
		code, _, e := cli(t, apptest.Agent(c), "node", "remove", host)
		if diff := cmp.Diff([]any{wire.StatusRequest{}}, c.Requests); code != want.code ||
			!strings.Contains(e, want.says) || diff != "" {
			t.Errorf("%s: code %d, stderr %q, requests %s", host, code, e, diff)
		}
	}
	c = &apptest.FakeCluster{}
	if code, _, e := cli(t, apptest.Agent(c), "node", "remove", "zeta@spark3", "--yes"); code != 2 ||
		len(c.Requests) != 0 || !strings.Contains(e, "--uninstall") {
		t.Errorf("a user and no ssh: code %d, stderr %q, %d requests", code, e, len(c.Requests))
	}
}

// A machine that is not logged in to stays a member.
func TestNodeRemoveUninstallWithoutSSH(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	port, config := nobodyListens(t, "Host spark3\n\tHostName 127.0.0.1\n")
	c := &apptest.FakeCluster{OnStatus: func(wire.StatusRequest) (wire.Status, error) {
		return wire.Status{Leader: "spark1", Nodes: []wire.NodeStatus{{Host: "spark1"}, {Host: "spark3"}}}, nil
	}}
	code, o, e := cli(t, apptest.Agent(c), "node", "remove", "zeta@spark3", "--yes", "--uninstall",
		"--ssh-config", config)
	if code != 1 || asksRemoval(c) || !strings.Contains(o+e, "connect to 127.0.0.1:"+port) {
		t.Errorf("code %d, stdout %q, stderr %q, requests %v", code, o, e, c.Requests)
	}
}

// nobodyListens gives a port, and an ssh configuration that has a host at it.
func nobodyListens(t *testing.T, host string) (port, config string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, port, err = net.SplitHostPort(l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	config = filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, fmt.Appendf(nil, "%s\tPort %s\n", host, port), 0o600); err != nil {
		t.Fatal(err)
	}
	return port, config
}

func asksRemoval(c *apptest.FakeCluster) bool {
	return slices.ContainsFunc(c.Requests, func(r any) bool { _, is := r.(wire.RemoveNodeRequest); return is })
}

// A machine may be named by its address, and is logged in to by the one that the
// cluster has where its name means nothing here.
func TestNodeRemoveByAddress(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	members := func(wire.StatusRequest) (wire.Status, error) {
		return wire.Status{Leader: "spark1",
			Nodes: []wire.NodeStatus{{Host: "spark1.invalid", Addr: netip.MustParseAddr("127.0.0.1")}}}, nil
	}
	c := &apptest.FakeCluster{OnStatus: members, Removed: wire.RemoveNodeResponse{Told: true}}
	if code, o, e := cli(t, apptest.Agent(c), "node", "remove", "127.0.0.1", "--yes"); code != 0 ||
		o != "spark1.invalid is out of the cluster\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, o, e)
	}
	port, config := nobodyListens(t, "Host *\n")
	c = &apptest.FakeCluster{OnStatus: members}
	code, o, e := cli(t, apptest.Agent(c), "node", "remove", "zeta@spark1.invalid", "--yes", "--uninstall",
		"--ssh-config", config)
	if code != 1 || asksRemoval(c) || !strings.Contains(o+e, "connect to 127.0.0.1:"+port) {
		t.Errorf("code %d, stdout %q, stderr %q, requests %v", code, o, e, c.Requests)
	}
}
