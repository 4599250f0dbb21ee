package main

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Of a job in stages a dry run shows each one's command and variables, on the machines that have it.
func TestDryRunOfStages(t *testing.T) {
	rank := func(n int, words ...string) launcher.RankPlan {
		return launcher.RankPlan{Rank: n, Argv: words, Env: []launcher.Setting{{Name: "OF", Value: words[0], Source: "ray"}}}
	}
	res := wire.ExplainResponse{
		Plan: rendezvous.Plan{World: 3,
			Nodes: []rendezvous.Place{{Host: "spark1", Ranks: 2}, {Host: "spark2", FirstRank: 2, Ranks: 1}}},
		Nodes: []wire.NodePlan{
			{Host: "spark1", Ranks: []launcher.RankPlan{rank(0, "ray", "--head", "--port=<port:ray-head.gcs>"),
				rank(1, "train.py")}},
			{Host: "spark2", Ranks: []launcher.RankPlan{rank(2, "ray", "--address")}},
		},
	}
	b := apptest.Agent(&apptest.FakeCluster{}, apptest.Explains(res))
	code, out, errs := cli(t, b, "launch", "ray", "--nodes", "2", "--workdir", "/w", "--dry-run", "--", "train.py")
	if code != 0 || errs != "" {
		t.Fatalf("code %d, stderr %q", code, errs)
	}
	_, shown, _ := strings.Cut(out, "\n\n")
	want := `spark1: ranks 0 to 1
  stage ray-head, rank 0
  in /w
  $ ray --head '--port=<port:ray-head.gcs>'
    OF=ray  # ray
  stage command, rank 1
  in /w
  $ train.py
    OF=train.py  # ray

spark2: rank 2
  stage ray-workers, rank 2
  in /w
  $ ray --address
    OF=ray  # ray
`
	if shown != want {
		t.Errorf("got\n%s\nwant\n%s", shown, want)
	}
}
