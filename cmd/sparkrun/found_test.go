package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
)

// Without a terminal what was found is told, with what to type, and nothing is done.
func TestFoundWithoutATerminal(t *testing.T) {
	for name, c := range map[string]struct {
		line     string
		clusters []discover.Cluster
		hosts    []discover.Instance
		out      []string
		err      string
	}{
		"one cluster": {line: "join --witness --token-file - --fabric-port 0 --fabric-port 1",
			clusters: []discover.Cluster{apptest.Genuine},
			out: []string{"  1  cluster  " + apptest.IdA, apptest.PinA, "spark1 (10.0.0.1), spark2 (10.0.0.2:7941)",
				"sudo sparkrun join 10.0.0.1 --fabric-port=0 --fabric-port=1 --token-file=- --witness\n"},
			err: "no terminal to ask on"},
		"a look-alike": {line: "join", clusters: []discover.Cluster{apptest.Genuine, apptest.Lookals, apptest.Another},
			out: []string{"  2  cluster  " + apptest.IdA, apptest.PinB, "sparkrun join 10.0.0.66", "beware",
				"  3  cluster  " + apptest.IdC, "sparkrun join fd00::1"}, err: "no terminal to ask on"},
		"a flood": {line: "join", clusters: slices.Repeat([]discover.Cluster{apptest.Another}, 57),
			out: []string{" 50  cluster", "\n7 more are not shown."}, err: "no terminal to ask on"},
		"no cluster": {line: "join", err: "no cluster announces itself on enP7s7"},
		"hosts": {line: "up --dry-run", hosts: apptest.SshHosts,
			out: []string{"  1  spark1.local   10.0.0.1        eth0\n", "10.0.0.2:2222", "fd00::3"},
			err: "sparkrun up 10.0.0.1 10.0.0.2:2222 fd00::3 --dry-run\n"},
		"no hosts":    {line: "up", err: "none announces an SSH server"},
		"JSON":        {line: "up --json", hosts: apptest.SshHosts, err: "the hosts are missing\n"},
		"too much":    {line: "join 10.0.0.1 10.0.0.2", err: `unexpected argument "10.0.0.2"`},
		"down is not": {line: "down", err: "the hosts are missing\n"},
	} {
		t.Run(name, func(t *testing.T) {
			a, out, errs := apptest.Finding(t, strings.NewReader("1\n"), c.clusters, c.hosts)
			if code := execute(t.Context(), a, strings.Fields(c.line)); code != app.ExitUsage {
				t.Errorf("exit %d, want %d", code, app.ExitUsage)
			}
			for _, want := range c.out {
				if !strings.Contains(out.String(), want) {
					t.Errorf("want %q in\n%s", want, out)
				}
			}
			if !strings.Contains(errs.String(), c.err) || len(c.out) == 0 && out.String() != "" {
				t.Errorf("stdout %q, stderr %q, want %q", out, errs, c.err)
			}
		})
	}
	a, _, errs := apptest.Finding(t, strings.NewReader(""), nil, nil)
	a.Find = func(context.Context, node.Config) (node.Finding, error) {
		return node.Finding{}, membership.ErrEnrolled
	}
	if code := execute(t.Context(), a, []string{"join"}); code != app.ExitFailure ||
		!strings.Contains(errs.String(), "takes it out of its cluster first") {
		t.Errorf("a member: exit %d, %s", code, errs)
	}
}

// Nothing chosen is nothing done, and the token is not even asked for.
func TestFoundNothingChosen(t *testing.T) {
	clusters := []discover.Cluster{apptest.Genuine, apptest.Lookals, apptest.Another}
	for line, prompt := range map[string]string{"join": "Number of the cluster to join", "up": "Numbers of the hosts"} {
		keyboard, screen := apptest.PTY(t)
		a, _, errs := apptest.Finding(t, screen, clusters, apptest.SshHosts)
		apptest.Types(t, errs, keyboard, [2]string{prompt, ""})
		if code := execute(t.Context(), a, []string{line}); code != app.ExitFailure ||
			!strings.Contains(errs.String(), "nothing was chosen, and nothing is changed") ||
			strings.Contains(errs.String(), "token:") {
			t.Errorf("%s: exit %d, %s", line, code, errs)
		}
	}
}
