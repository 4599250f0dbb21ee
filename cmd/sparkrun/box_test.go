package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

// A script of the caller's folder is not in a container by itself.
func TestScriptOutsideOfContainers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "train.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mounts, args []string
		want         string
	}{
		"torchrun":               {nil, []string{"train.py", "--lr", "1"}, "train.py"},
		"python":                 {nil, []string{"python3", "./train.py"}, "./train.py"},
		"shown":                  {[]string{".:/workspace"}, []string{"train.py"}, ""},
		"itself shown":           {[]string{"train.py:/x/train.py:ro"}, []string{"train.py"}, ""},
		"another folder shown":   {[]string{"/data"}, []string{"train.py"}, "train.py"},
		"not here either":        {nil, []string{"other.py"}, ""},
		"an argument of options": {nil, []string{"serve", "--log", "train.py"}, ""},
		"a path of the image":    {nil, []string{"/opt/train.py"}, ""},
	} {
		if got := (boxOptions{image: "i", mounts: c.mounts}).outside(dir, c.args); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// What a leader would refuse once all machines are prepared a dry run refuses too.
func TestDryRunOfUnlikeImages(t *testing.T) {
	on := func(host, id string) wire.NodePlan {
		return wire.NodePlan{Host: host, Ranks: []launcher.RankPlan{{Argv: []string{"true"}, Dir: "/", Docker: []string{"--init"}, Image: &launcher.ImageSeen{ID: id}}}}
	}
	for second, want := range map[string]string{"sha256:aaaa": "", "sha256:bbbb": "the launch would be refused: the machines have different images under the name vllm: spark1 has aaaa; spark2 has bbbb: bring the same one"} {
		res := wire.ExplainResponse{
			Plan:  rendezvous.Plan{World: 2, Nodes: []rendezvous.Place{{Host: "spark1", Ranks: 1}, {Host: "spark2", FirstRank: 1, Ranks: 1}}},
			Nodes: []wire.NodePlan{on("spark1", "sha256:aaaa"), on("spark2", second)},
		}
		b := &backend{cluster: &fakeCluster{}, explain: func(context.Context, wire.LaunchRequest) (wire.ExplainResponse, error) { return res, nil }}
		code, _, errs := cli(t, b, "launch", "exec", "--nodes", "2", "--image", "vllm", "--dry-run", "--", "true")
		if (code != 0) != (want != "") || !strings.Contains(errs, want) {
			t.Errorf("with %s: code %d, %q; want %q", second, code, errs, want)
		}
	}
}

// What is printed of a cluster that is ready has to work as it stands.
func TestRayHints(t *testing.T) {
	for name, c := range map[string]struct {
		ray  workloads.Ray
		want string
	}{
		"by its name":         {workloads.Ray{}, "submit with: sparkrun exec cl -- ray job submit -- COMMAND"},
		"by its path":         {workloads.Ray{Program: "/opt/ray/bin/ray"}, "submit with: sparkrun exec cl -- /opt/ray/bin/ray job submit -- COMMAND"},
		"without a dashboard": {workloads.Ray{HeadArgs: []string{"--include-dashboard=false"}}, "without the dashboard"},
		"the flag in two":     {workloads.Ray{HeadArgs: []string{"--include-dashboard", "False"}}, "without the dashboard"},
		"with it after all":   {workloads.Ray{HeadArgs: []string{"--include-dashboard=false", "--include-dashboard=true"}}, "submit with"},
	} {
		w, err := workloads.Find(workloads.All(), "ray")
		if err != nil {
			t.Fatal(err)
		}
		spec, err := w.Spec(workloads.Request{Job: launcher.Spec{ID: "abcd2345", Name: "cl", Nodes: 2}, Workdir: "/", Ray: c.ray})
		if err != nil {
			t.Fatal(err)
		}
		got := rayHints(spec, "10.0.0.1", rendezvous.Progress{Ports: map[string]launcher.Ports{workloads.RayGCS: {First: 6379}}})
		if !slices.Contains(got, "RAY_ADDRESS=10.0.0.1:6379") || !strings.Contains(strings.Join(got, "\n"), c.want) || strings.Contains(c.want, "without") == strings.Contains(strings.Join(got, "\n"), "submit with") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// boxFlags are of containers alone.
var boxFlags = []string{"--pull always", "--mount /x", "--shm-size 1G", "--docker-arg=--add-host=db:10.0.0.9", "--model-cache none", "--image-map a=b"}

// What is of containers alone is refused where there is none.
func TestBoxFlagsWithoutImage(t *testing.T) {
	for _, flags := range boxFlags {
		line := append(append([]string{"launch", "exec"}, strings.Fields(flags)...), "--", "true")
		name, _, _ := strings.Cut(strings.Fields(flags)[0], "=")
		if code, _, e := cli(t, &backend{gangs: &fakeGangs{}}, line...); code != 2 && code != 125 || !strings.Contains(e, name+": it is of containers: name their image with --image") {
			t.Errorf("%s: code %d, %s", flags, code, e)
		}
	}
}
