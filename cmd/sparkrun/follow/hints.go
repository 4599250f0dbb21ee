package follow

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

// rayHints say how to use a Ray cluster that is ready.
func rayHints(spec launcher.Spec, head string, p rendezvous.Progress) []string {
	gcs, known := p.Ports[workloads.RayGCS]
	if spec.Workload != "ray" || spec.MainStage().Name != workloads.RayHead || !known {
		return nil
	}
	name := string(spec.ID)
	if spec.Name != "" {
		name = spec.Name
	}
	submit := fmt.Sprintf("submit with: sparkrun exec %s -- %s job submit -- COMMAND",
		name, app.Quote(rayProgram(spec)))
	if !rayTakesJobs(spec) {
		submit = "it runs without the dashboard, which is what takes jobs (ray job submit): drivers connect to " +
			"RAY_ADDRESS"
	}
	return []string{fmt.Sprintf("RAY_ADDRESS=%s:%d", head, gcs.First), submit}
}

// rayProgram is `ray` as the cluster's own stages run it: with its path where that was
// given.
func rayProgram(spec launcher.Spec) string {
	if argv := spec.Stages[0].Command(); len(argv) > 0 && len(argv[0]) == 1 {
		return argv[0][0].Lit
	}
	return "ray"
}

// rayTakesJobs tells whether the head serves `ray job`, which the dashboard does. Of a
// repeated flag the last one counts.
func rayTakesJobs(spec launcher.Spec) bool {
	takes := true
	argv := spec.Stages[0].Command()
	for i, v := range argv {
		if len(v) != 1 {
			continue
		}
		name, value, given := strings.Cut(v[0].Lit, "=")
		if name != "--include-dashboard" {
			continue
		}
		if !given && i+1 < len(argv) && len(argv[i+1]) == 1 {
			value = argv[i+1][0].Lit
		}
		if yes, err := strconv.ParseBool(strings.ToLower(value)); err == nil {
			takes = yes
		}
	}
	return takes
}

// tryIt is the command that asks a service that answers at addr for something; empty: what it serves is not known.
func tryIt(spec launcher.Spec, addr string) string {
	switch v := spec.Service; {
	case v == nil || addr == "":
		return ""
	case v.Model != "":
		key := ""
		for _, s := range spec.Secrets {
			if strings.HasSuffix(s.Name, "_API_KEY") {
				key = ` -H "Authorization: Bearer $` + s.Name + `"`
			}
		}
		model, _ := json.Marshal(v.Model) // cannot fail: it is a string
		return fmt.Sprintf("curl http://%s/v1/chat/completions -H 'Content-Type: application/json'%s -d %s", addr, key,
			app.Quote(fmt.Sprintf(`{"model": %s, "messages": [{"role": "user", "content": "Hello"}]}`, model)))
	case v.Health != "":
		return "curl http://" + addr + v.Health
	}
	return ""
}

// atGateway says under which name the one address for all models has a service that answers; empty: it is not known at
// once.
func (f *Follower) atGateway(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	g, err := wire.ShowGateway.Call(ctx, f.Agent, wire.Empty{})
	i := slices.IndexFunc(g.Backends, func(b rendezvous.Backend) bool { return b.Job == f.Spec.ID })
	if err != nil || g.Port == 0 || i < 0 || len(g.Backends[i].Models) == 0 {
		return ""
	}
	also := "also "
	if f.Spec.OnDemand() != nil {
		also = ""
	}
	text := fmt.Sprintf(also+"at http://127.0.0.1:%d/v1 of every machine, as model %s", g.Port, g.Backends[i].Models[0])
	switch behind := f.Spec.Service.Behind && len(f.Spec.Publish) == 0; {
	case len(g.Keys) > 0:
		text += ", with a key"
	case behind && !g.Open:
		text += "; other hosts reach it once there is a key: `sudo sparkrun gateway key create NAME`"
	}
	return text
}
