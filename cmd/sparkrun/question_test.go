package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// vLLM is asked in the image as it is: a recipe's mods are not there, and a job's name is its own.
func TestQuestionBringsNothing(t *testing.T) {
	var o launchOptions
	e := engine.Usual()
	o.workload, o.box.image = e.Name, "i"
	o.request.Setup, o.request.Job.Name, o.request.Job.Nodes = `cd "$SPARKRUN_STAGE/mods/fix"`, "n", 2
	o.request.Serve.Model = "m"
	spec, err := (&app{getwd: os.Getwd, environ: []string{"SPARKRUN_STATE=" + t.TempDir()}}).spec(o.question(e))
	if err != nil {
		t.Fatal(err)
	}
	want := []launcher.Value{launcher.Lit("vllm"), launcher.Lit("serve"), launcher.Lit("--help=all")}
	if d := cmp.Diff(want, spec.MainStage().Command()); d != "" || spec.Name != "" || spec.Nodes != 1 {
		t.Errorf("name %q on %d: %s", spec.Name, spec.Nodes, d)
	}
}
