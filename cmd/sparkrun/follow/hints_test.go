package follow

import (
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/workloads"
)

// What is printed of a cluster that is ready has to work as it stands.
func TestRayHints(t *testing.T) {
	for name, c := range map[string]struct {
		ray  workloads.Ray
		want string
	}{
		"by its name": {workloads.Ray{}, "submit with: sparkrun exec cl -- ray job submit -- COMMAND"},
		"by its path": {workloads.Ray{Program: "/opt/ray/bin/ray"},
			"submit with: sparkrun exec cl -- /opt/ray/bin/ray job submit -- COMMAND"},
		"without a dashboard": {workloads.Ray{HeadArgs: []string{"--include-dashboard=false"}}, "without the dashboard"},
		"the flag in two":     {workloads.Ray{HeadArgs: []string{"--include-dashboard", "False"}}, "without the dashboard"},
		"with it after all": {workloads.Ray{HeadArgs: []string{"--include-dashboard=false",
			"--include-dashboard=true"}}, "submit with"},
	} {
		w, err := workloads.Find(workloads.All(), "ray")
		if err != nil {
			t.Fatal(err)
		}
		spec, err := w.Spec(workloads.Request{Job: launcher.Spec{ID: "abcd2345", Name: "cl", Nodes: 2}, Workdir: "/",
			Ray: c.ray})
		if err != nil {
			t.Fatal(err)
		}
		got := rayHints(spec, "10.0.0.1",
			rendezvous.Progress{Ports: map[string]launcher.Ports{workloads.RayGCS: {First: 6379}}})
		if !slices.Contains(got, "RAY_ADDRESS=10.0.0.1:6379") || !strings.Contains(strings.Join(got, "\n"), c.want) ||
			strings.Contains(c.want, "without") == strings.Contains(strings.Join(got, "\n"), "submit with") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestTryIt(t *testing.T) {
	secret := []launcher.SealedSecret{{Name: "HF_TOKEN"}, {Name: "VLLM_API_KEY"}}
	for want, spec := range map[string]launcher.Spec{
		"": {},
		`curl http://10.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d ` +
			`'{"model": "Qwen/Qwen3-32B", "messages": [{"role": "user", "content": "Hello"}]}'`: {
			Service: &launcher.Service{Model: "Qwen/Qwen3-32B", Health: "/health"}},
		`curl http://10.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' ` +
			`-H "Authorization: Bearer $VLLM_API_KEY" ` +
			`-d '{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}'`: {
			Service: &launcher.Service{Model: "m"}, Secrets: secret},
		"curl http://10.0.0.1:8000/health": {Service: &launcher.Service{Health: "/health"}},
	} {
		if got := tryIt(spec, "10.0.0.1:8000"); got != want {
			t.Errorf("%+v: %s\nwant %s", spec.Service, got, want)
		}
	}
}
