package model

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// vLLM is asked in the image as it is: a recipe's mods are not there, and a job's name is its own.
func TestQuestionBringsNothing(t *testing.T) {
	var o launch.Options
	e := engine.Usual()
	o.Workload, o.Container.Image = e.Name, "i"
	o.Request.Setup, o.Request.Job.Name, o.Request.Job.Nodes = `cd "$SPARKRUN_STAGE/mods/fix"`, "n", 2
	o.Request.Serve.Model = "m"
	spec, err := launch.Spec(&app.App{Getwd: os.Getwd, Environ: []string{"SPARKRUN_STATE=" + t.TempDir()}}, question(o, e))
	if err != nil {
		t.Fatal(err)
	}
	want := []launcher.Value{launcher.Lit("vllm"), launcher.Lit("serve"), launcher.Lit("--help=all")}
	if d := cmp.Diff(want, spec.MainStage().Command()); d != "" || spec.Name != "" || spec.Nodes != 1 {
		t.Errorf("name %q on %d: %s", spec.Name, spec.Nodes, d)
	}
}
