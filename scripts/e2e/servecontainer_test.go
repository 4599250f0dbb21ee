package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A recipe of version 1 with a mod, as those of eugr/spark-vllm-docker are written.
const containerRecipe = `recipe_version: "1"
name: Stand-in
model: org/model
container: lab/vllm
mods:
  - mods/loud
defaults:
  port: 8000
  host: 0.0.0.0
  tensor_parallel: 2
  max_model_len: 64
command: |
  vllm serve org/model \
    --tensor-parallel-size {tensor_parallel} \
    --max-model-len {max_model_len} \
    --host {host} \
    --port {port}
`

// vllmImage has the image lab/vllm on these hosts: lab/bare with the stand-in as its vllm.
func (l *lab) vllmImage(hosts ...string) {
	l.t.Helper()
	tree := scratch(l.t)
	if err := os.MkdirAll(filepath.Join(tree, "opt/bin"), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(standin(l.t, python), filepath.Join(tree, "opt/bin/vllm")); err != nil {
		l.t.Fatal(err)
	}
	for i, h := range hosts { // made once: an image made on each would have an ID of its own
		if i == 0 {
			l.on(h, "sh", "-ec", "c=$(docker create lab/bare true); docker cp $0/opt $c:/; docker commit --change 'ENV PATH=/opt/bin:/usr/bin' $c lab/vllm; docker rm $c; docker save lab/vllm > $0/image", tree).must(l.t)
		} else {
			l.on(h, "sh", "-c", "docker load < $0/image", tree).must(l.t)
		}
	}
}

// A recipe is run as it lies: its image is asked how its vLLM spreads, its mod changes the
// image's vLLM on each host, and the service goes on while the engine of either host is
// started anew, with live-restore, and the agent there, too.
func TestRecipeServesInContainers(t *testing.T) {
	t.Parallel()
	folder := scratch(t)
	for name, text := range map[string]string{
		"recipes/stand-in.yaml": containerRecipe,
		"mods/loud/run.sh":      "#!/bin/bash\nset -e\nsed -i 's/^MODS = .*/MODS = [\"loud\"]/' \"$(command -v vllm)\"\n",
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l := up(t, 3)
	hosts := []string{"spark1", "spark2"}
	l.do(append([]string{"engine", "--live-restore"}, hosts...)...)
	l.vllmImage(hosts...)
	for _, h := range hosts {
		l.on(h, "sh", "-c", "mkdir -p /etc/sparkrun; echo 'containers: {users: [root]}' > /etc/sparkrun/policy.yaml").must(t)
	}
	// The registries are in a folder of the test's own: the hosts share their user's home with this machine.
	config := "XDG_CONFIG_HOME=" + scratch(t)
	l.on("spark1", "env", config, "sparkrun", "recipe", "add", folder, "--name", "own").must(t)
	if r := l.on("spark1", "env", config, "sparkrun", "run", "stand-in", "--mount", "/usr:/usr:ro"); r.code == 0 || !strings.Contains(r.err, "--trust-recipe") || !strings.Contains(r.err, "mods") {
		t.Errorf("a mod without consent: %s", r)
	}
	launch := l.start("spark1", "env", config, "sparkrun", "run", "stand-in", "--trust-recipe", "--name", "served", "--on", "spark1,spark2", "-o", "max_model_len=32", "--mount", "/usr:/usr:ro")
	if r := launch.wait(); r.code != 0 || !strings.Contains(r.err, "asking vLLM how it spreads") || !strings.Contains(r.err, "loud changes the image") {
		t.Fatalf("launch of the recipe: %s", r)
	}
	first := l.serves("spark3", "served", 1)
	got := l.ask(t, "spark3", first.Service.URL)
	want := []string{"serve", "org/model", "--max-model-len", "32", "--tensor-parallel-size", "2", "--nnodes", "2", "--node-rank", "0", "--master-addr", "192.168.100.11"}
	if len(got.Argv) < len(want) || cmp.Diff(want, got.Argv[:len(want)]) != "" {
		t.Errorf("vLLM's arguments: %q, want %q and more", got.Argv, want)
	}
	if d := cmp.Diff([]string{"loud"}, got.Mods); d != "" {
		t.Errorf("what the mod did to the image: %s", d)
	}
	if d := cmp.Diff([]any{"192.168.100.12"}, got.Met); d != "" {
		t.Errorf("the worker's own address: %s", d)
	}

	boxes := func(host string) string {
		return l.on(host, "sh", "-c", "docker inspect -f '{{.Id}} {{.State.Pid}} {{.State.StartedAt}}' $(docker ps -q)").must(t).out
	}
	for _, h := range hosts {
		before := boxes(h)
		l.do("engine", "--stop", h)
		l.ask(t, "spark3", first.Service.URL)
		l.do("kill", h, "--agent") // whose next life finds its containers without an engine
		l.do("start", h, "--agent")
		l.on(h, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "90s").must(t)
		l.ask(t, "spark3", first.Service.URL)
		l.do("engine", "--live-restore", h)
		if after := boxes(h); after != before {
			t.Errorf("%s: containers\n%swere\n%s", h, after, before)
		}
		l.serves("spark3", "served", 1)
	}
	l.ask(t, "spark3", first.Service.URL)
	l.on("spark3", "sparkrun", "stop", "served").must(t)
	l.noContainerLeft(hosts...)
	l.assertNothingLeft("spark3")
}
