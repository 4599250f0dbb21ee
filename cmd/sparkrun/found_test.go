package main

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
)

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

var (
	pinA = strings.Repeat("A", 43)
	pinB = strings.Repeat("B", 43)
	idA  = "65a59063-4d7b-4c93-8fa5-4ecc3df44c65"
	idC  = "75a59063-4d7b-4c93-8fa5-4ecc3df44c65"

	genuine = discover.Cluster{ID: idA, CA: pinA, Members: []discover.Found{{Host: "spark1", Addr: at("10.0.0.1:7940")}, {Host: "spark2", Addr: at("10.0.0.2:7941")}}}
	lookals = discover.Cluster{ID: idA, CA: pinB, Members: []discover.Found{{Host: "spark1", Addr: at("10.0.0.66:7940")}}}
	another = discover.Cluster{ID: idC, CA: pinB, Members: []discover.Found{{Host: "zeta", Addr: at("[fd00::1]:7940")}}}

	sshHosts = []discover.Instance{{Host: "spark1.local", Addr: at("10.0.0.1:22"), Link: "eth0"}, {Host: "a??2J.local", Addr: at("10.0.0.2:2222"), Link: "wlan0"},
		{Host: "spark3.local", Addr: at("[fd00::3]:22"), Link: "eth0"}}
)

// finding is an app of a command line at which those were found.
func finding(t *testing.T, in io.Reader, clusters []discover.Cluster, hosts []discover.Instance) (a *app, out, err *syncBuffer) {
	t.Helper()
	out, err = &syncBuffer{}, &syncBuffer{}
	return &app{in: in, out: out, err: err, environ: []string{"PATH=/bin", "HOME=" + t.TempDir()}, columns: func() int { return 100 },
		dial: func() *backend { t.Error("something was connected to"); return nil },
		find: func(context.Context, node.Config) (node.Finding, error) {
			return node.Finding{NIC: "enP7s7", Clusters: clusters}, nil
		},
		browseSSH: func(context.Context) ([]discover.Instance, error) { return hosts, nil },
	}, out, err
}

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
		"a flood": {line: "join", clusters: slices.Repeat([]discover.Cluster{another}, maxShown+7),
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

// types has somebody at a terminal answer each prompt as it comes.
func types(t *testing.T, errs *syncBuffer, keyboard *os.File, answers ...[2]string) {
	t.Helper()
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		seen := 0
		for _, a := range answers {
			for until := time.Now().Add(30 * time.Second); !strings.Contains(errs.String()[seen:], a[0]); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(until) {
					t.Errorf("%q is not asked: %q", a[0], errs)
					return
				}
			}
			seen = len(errs.String())
			if _, err := keyboard.WriteString(a[1] + "\n"); err != nil {
				t.Error(err)
			}
		}
	}()
}

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

	// Nothing chosen is nothing done, and the token is not even asked for.
	for line, prompt := range map[string]string{"join": which, "up": whichHosts} {
		keyboard, screen = pty(t)
		a, _, errs = finding(t, screen, clusters, sshHosts)
		types(t, errs, keyboard, [2]string{prompt, ""})
		if code := a.run(t.Context(), []string{line}); code != exitFailure || !strings.Contains(errs.String(), errNoneChosen.Error()) || strings.Contains(errs.String(), "token:") {
			t.Errorf("%s: exit %d, %s", line, code, errs)
		}
	}
	a, _, _ = finding(t, screen, nil, nil)
	a.find = func(context.Context, node.Config) (node.Finding, error) {
		return node.Finding{}, errors.New("port 5353")
	}
	if _, err := a.chooseCluster(t.Context(), node.Config{}, nil); err == nil {
		t.Error("no error")
	}
}
