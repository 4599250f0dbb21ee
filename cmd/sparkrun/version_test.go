package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func TestVersionCluster(t *testing.T) {
	node := func(host, state, version string, protocol int) wire.NodeStatus {
		return wire.NodeStatus{Host: host, State: state, Version: version, Protocol: protocol}
	}
	for name, tt := range map[string]struct {
		nodes     []wire.NodeStatus
		problem   string
		out, errs string
	}{
		"all alike": {
			nodes: []wire.NodeStatus{node("spark1", "ready", "1.2.3", 1), node("spark2", "ready", "1.2.3", 1)},
			out:   "HOST     VERSION   PROTOCOL   STATE\nspark1   1.2.3     1          ready\nspark2   1.2.3     1          ready\n",
		},
		"half way": {
			nodes: []wire.NodeStatus{node("spark1", "ready", "1.2.3", 2), node("spark2", "ready", "1.1.0", 1),
				node("spark3", "ready", "1.2.3", 2), node("spark4", "away", "", 0)},
			out: "HOST     VERSION   PROTOCOL   STATE\nspark1   1.2.3     2          ready\nspark2   1.1.0     1          ready\n" +
				"spark3   1.2.3     2          ready\nspark4   -         -          away\n",
			errs: "sparkrun: the agents' versions differ: 1.2.3 on spark1, spark3; 1.1.0 on spark2\n" +
				"sparkrun: the cluster keeps to protocol 1 until all agents speak 2\n",
		},
		"a command of another version, no leader": {
			nodes:   []wire.NodeStatus{node("spark1", "unknown", "1.2.2", 1), node("spark2", "unknown", "", 0)},
			problem: "no leader: spark2 is off",
			out:     "HOST     VERSION   PROTOCOL   STATE\nspark1   1.2.2     1          unknown\nspark2   -         -          unknown\n",
			errs: "sparkrun: this command is sparkrun 1.2.3, which no agent runs\n" +
				"sparkrun: no leader: spark2 is off: the others' versions are not known here\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := apptest.Agent(&apptest.FakeCluster{OnStatus: func(wire.StatusRequest) (wire.Status, error) {
				return wire.Status{Nodes: tt.nodes, Problem: tt.problem}, nil
			}})
			code, out, errs := cli(t, b, "version", "--cluster")
			if code != 0 || out != tt.out || errs != tt.errs {
				t.Errorf("exit %d\n%s%s\nwant\n%s%s", code, out, errs, tt.out, tt.errs)
			}
			_, out, _ = cli(t, b, "version", "--cluster", "--json")
			var got struct {
				Version string
				Nodes   []struct {
					Host    string
					Version *string
				}
			}
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatal(err)
			}
			if got.Version != "1.2.3" || len(got.Nodes) != len(tt.nodes) {
				t.Errorf("--json: %s", out)
			}
			for i, n := range got.Nodes {
				if (n.Version == nil) != (tt.nodes[i].Version == "") || strings.Contains(out, `""`) {
					t.Errorf("--json: %s has the version %v: unknown is null", n.Host, n.Version)
				}
			}
		})
	}
}

// Half of this is distribution/reference's expressions, which read image names as docker does, and a seventh is oras',
// which asks registries.
func TestStartsWithLittleWork(t *testing.T) {
	apptest.Startup(t, 980_000, "version") // 917,952 on the day that this was written
}
