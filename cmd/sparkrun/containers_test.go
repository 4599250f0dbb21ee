package main

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// What a leader would refuse once all machines are prepared a dry run refuses too.
func TestDryRunOfUnlikeImages(t *testing.T) {
	on := func(host, id string) wire.NodePlan {
		return wire.NodePlan{Host: host,
			Ranks: []launcher.RankPlan{{Argv: []string{"true"}, Dir: "/", Docker: []string{"--init"},
				Image: &launcher.ImageSeen{ID: id}}}}
	}
	for second, want := range map[string]string{"sha256:aaaa": "",
		"sha256:bbbb": "the launch would be refused: the machines have different images under the name vllm: spark1 has aaaa; spark2 has bbbb: bring the same one"} {
		res := wire.ExplainResponse{
			Plan: rendezvous.Plan{World: 2,
				Nodes: []rendezvous.Place{{Host: "spark1", Ranks: 1}, {Host: "spark2", FirstRank: 1, Ranks: 1}}},
			Nodes: []wire.NodePlan{on("spark1", "sha256:aaaa"), on("spark2", second)},
		}
		b := apptest.Agent(&apptest.FakeCluster{}, apptest.Explains(res))
		code, _, errs := cli(t, b, "launch", "exec", "--nodes", "2", "--image", "vllm", "--dry-run", "--", "true")
		if (code != 0) != (want != "") || !strings.Contains(errs, want) {
			t.Errorf("with %s: code %d, %q; want %q", second, code, errs, want)
		}
	}
}

// What is of containers alone is refused where there is none.
func TestContainerFlagsWithoutImage(t *testing.T) {
	for _, flags := range containerFlags {
		line := append(append([]string{"launch", "exec"}, strings.Fields(flags)...), "--", "true")
		name, _, _ := strings.Cut(strings.Fields(flags)[0], "=")
		if code, _, e := cli(t, apptest.Agent(&apptest.FakeRunner{}), line...); code != 2 && code != 125 ||
			!strings.Contains(e, name+": this is for containers: name their image with --image") {
			t.Errorf("%s: code %d, %s", flags, code, e)
		}
	}
}

// containerFlags are of containers alone.
var containerFlags = []string{"--pull always", "--mount /x", "--shm-size 1G", "--docker-arg=--add-host=db:10.0.0.9",
	"--model-cache none", "--image-map a=b"}
