package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
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
		"one cluster": {line: "join --witness --token-file - --fabric-port 0 --fabric-port 1", clusters: []discover.Cluster{genuine},
			out: []string{"  1  cluster  " + idA, pinA, "spark1 (10.0.0.1), spark2 (10.0.0.2:7941)", "sudo sparkrun join 10.0.0.1 --fabric-port=0 --fabric-port=1 --token-file=- --witness\n"},
			err: "no terminal to ask on"},
		"a look-alike": {line: "join", clusters: []discover.Cluster{genuine, lookals, another},
			out: []string{"  2  cluster  " + idA, pinB, "sparkrun join 10.0.0.66", "beware", "  3  cluster  " + idC, "sparkrun join fd00::1"}, err: "no terminal to ask on"},
		"a flood": {line: "join", clusters: slices.Repeat([]discover.Cluster{another}, 57),
			out: []string{" 50  cluster", "\n7 more are not shown."}, err: "no terminal to ask on"},
		"no cluster":  {line: "join", err: "no cluster announces itself on enP7s7"},
		"hosts":       {line: "up --dry-run", hosts: sshHosts, out: []string{"  1  spark1.local   10.0.0.1        eth0\n", "10.0.0.2:2222", "fd00::3"}, err: "sparkrun up 10.0.0.1 10.0.0.2:2222 fd00::3 --dry-run\n"},
		"no hosts":    {line: "up", err: "none announces an SSH server"},
		"JSON":        {line: "up --json", hosts: sshHosts, err: "the hosts are missing\n"},
		"too much":    {line: "join 10.0.0.1 10.0.0.2", err: `unexpected argument "10.0.0.2"`},
		"down is not": {line: "down", err: "the hosts are missing\n"},
	} {
		t.Run(name, func(t *testing.T) {
			a, out, errs := finding(t, strings.NewReader("1\n"), c.clusters, c.hosts)
			if code := a.run(t.Context(), strings.Fields(c.line)); code != exitUsage {
				t.Errorf("exit %d, want %d", code, exitUsage)
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
	a, _, errs := finding(t, strings.NewReader(""), nil, nil)
	a.find = func(context.Context, node.Config) (node.Finding, error) { return node.Finding{}, node.ErrEnrolled }
	if code := a.run(t.Context(), []string{"join"}); code != exitFailure || !strings.Contains(errs.String(), "takes it out of its cluster first") {
		t.Errorf("a member: exit %d, %s", code, errs)
	}
}

// Nothing chosen is nothing done, and the token is not even asked for.
func TestFoundNothingChosen(t *testing.T) {
	clusters := []discover.Cluster{genuine, lookals, another}
	for line, prompt := range map[string]string{"join": "Number of the cluster to join", "up": "Numbers of the hosts"} {
		keyboard, screen := pty(t)
		a, _, errs := finding(t, screen, clusters, sshHosts)
		types(t, errs, keyboard, [2]string{prompt, ""})
		if code := a.run(t.Context(), []string{line}); code != exitFailure || !strings.Contains(errs.String(), "nothing was chosen, and nothing is changed") || strings.Contains(errs.String(), "token:") {
			t.Errorf("%s: exit %d, %s", line, code, errs)
		}
	}
}
