package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

func TestWeights(t *testing.T) {
	const g = 1 << 30
	model := workloads.Request{Serve: workloads.Serve{Model: "org/model", Config: &workloads.Model{Bytes: 60 * g}}}
	free := func(n int64) *int64 { return &n }
	folder := workloads.Request{Serve: workloads.Serve{Model: "/models/m"}}
	for name, c := range map[string]struct {
		r          workloads.Request
		seen       launcher.ModelCopy
		has, fetch string
		err        string
	}{
		"whole":          {model, launcher.ModelCopy{Dir: "/hub/s", Found: true, Bytes: 60 * g, Whole: 60 * g}, "h: has org/model in /hub/s, 60.0 GiB", "", ""},
		"none":           {model, launcher.ModelCopy{Dir: "/hub", Free: free(100 * g)}, "", "h: has no org/model in /hub: the server fetches it, 60.0 GiB; 100.0 GiB are free there", ""},
		"nobody knows":   {workloads.Request{Serve: workloads.Serve{Model: "org/model"}}, launcher.ModelCopy{Dir: "/hub"}, "", "h: has no org/model in /hub: the server fetches it", ""},
		"a part":         {model, launcher.ModelCopy{Dir: "/hub/s", Found: true, Bytes: 20 * g, Whole: 60 * g, Lacks: 2, Free: free(50 * g)}, "", "h: has a part of org/model in /hub/s: the server fetches the rest, 40.0 GiB; 50.0 GiB are free there", ""},
		"its config":     {model, launcher.ModelCopy{Dir: "/hub/s", Found: true, Free: free(90 * g)}, "", "h: has no org/model in /hub/s: the server fetches it, 60.0 GiB; 90.0 GiB are free there", ""},
		"a full disk":    {model, launcher.ModelCopy{Dir: "/hub", Free: free(12 * g)}, "", "", "h: no room: it would fetch 60.0 GiB of org/model into /hub, whose file system has 12.0 GiB free"},
		"no byte free":   {model, launcher.ModelCopy{Dir: "/hub", Free: free(0)}, "", "", "has 0.0 GiB free"},
		"a folder":       {folder, launcher.ModelCopy{Dir: "/models/m", Found: true, Bytes: g}, "h: has /models/m, 1.0 GiB", "", ""},
		"no folder":      {folder, launcher.ModelCopy{Dir: "/models/m"}, "", "", "h: /models/m: invalid: it is not there: copy the model to every machine"},
		"half a folder":  {folder, launcher.ModelCopy{Dir: "/models/m", Found: true, Lacks: 3}, "", "", "lacks 3 of the files with weights"},
		"dummy weights":  {workloads.Request{Serve: workloads.Serve{Model: "org/model", Args: []string{"--load_format=dummy"}}}, launcher.ModelCopy{Dir: "/hub"}, "", "", ""},
		"a bucket":       {workloads.Request{Serve: workloads.Serve{Model: "s3://bucket/model"}}, launcher.ModelCopy{Dir: "/hub"}, "", "", ""},
		"other revision": {workloads.Request{Serve: workloads.Serve{Model: "org/model", Command: []string{"vllm", "serve", "org/model", "--revision", "v2"}}}, launcher.ModelCopy{Dir: "/hub"}, "", "h: has no org/model@v2 in /hub: the server fetches it", ""},
		"no revision":    {workloads.Request{Serve: workloads.Serve{Model: "org/model", Args: []string{"--revision=../v2"}}}, launcher.ModelCopy{Dir: "/hub"}, "", "", ""},
		"two revisions":  {workloads.Request{Serve: workloads.Serve{Model: "org/model", Args: []string{"--revision=v2", "--tokenizer-revision=v1"}}}, launcher.ModelCopy{Dir: "/hub"}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			has, fetch, err := named(t, "vllm").Weights(c.r, []NodeModel{{"silent", nil}, {"h", &c.seen}})
			if diff := cmp.Diff([]string{c.has, c.fetch}, []string{strings.Join(has, "|"), strings.Join(fetch, "|")}); diff != "" {
				t.Error("has, fetches (-want +got):\n" + diff)
			}
			if (err != nil) != (c.err != "") || err != nil && (!strings.Contains(err.Error(), c.err) || !errors.Is(err, ErrNoRoom) && !errors.Is(err, launcher.ErrInvalid)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}
