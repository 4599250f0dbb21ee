package main

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// atHomeOf is an app whose user has only this home, and answers a dry run with these machines.
func atHomeOf(t *testing.T, nodes ...wire.NodePlan) (home string, run func(args ...string) (int, string, string)) {
	t.Helper()
	home = t.TempDir()
	b := apptest.Agent(&apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1),
		apptest.Ended(apptest.Rejected)), OnExplain: func(_ context.Context,
		r wire.LaunchRequest) (wire.ExplainResponse, error) {
		if r.Model == "" {
			for i := range nodes {
				nodes[i].Model = nil // nobody asked
			}
		}
		return wire.ExplainResponse{Plan: rendezvous.Plan{World: len(nodes), Head: netip.MustParseAddr("192.168.0.1")},
			Nodes: nodes}, nil
	}}, &apptest.FakeCluster{})
	return home, func(args ...string) (int, string, string) {
		return cliIn(t, b, []string{"PATH=/bin", "HOME=" + home}, args...)
	}
}

func write(t *testing.T, text string, path ...string) {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A model that this machine does not have is looked at where it is; who lacks it is told.
func TestServeLooksAtTheMachinesModels(t *testing.T) {
	const g = 1 << 30
	config := []byte(`{"num_attention_heads":6,"num_key_value_heads":6,"head_dim":64,"num_hidden_layers":24}`)
	free := func(n int64) *int64 { return &n }
	memory := &wire.NodeMemory{Total: 120 * g, Available: 118 * g, GPU: true}
	has := launcher.ModelCopy{Dir: "/hub/abc", Found: true, Config: config, Bytes: 60 * g, Whole: 60 * g,
		Free: free(900 * g)}
	lacks := launcher.ModelCopy{Dir: "/hub/abc", Found: true, Config: config, Free: free(800 * g)}
	_, run := atHomeOf(t, wire.NodePlan{Host: "spark1", Memory: memory, Model: &lacks},
		wire.NodePlan{Host: "spark2", Memory: memory, Model: &has})
	code, out, _ := run("launch", "vllm", "--nodes", "2", "--dry-run", "--json", "org/model")
	if code != 0 || strings.Contains(out, "config") || !strings.Contains(out, `"/hub/abc"`) {
		t.Errorf("code %d: %s", code, out)
	}
	has.Config, lacks.Config = config, config // which the JSON left out
	code, _, said := run("launch", "vllm", "--nodes", "2", "--dry-run", "org/model")
	for _, want := range []string{
		"spark1: has no org/model in /hub/abc: the server fetches it, 60.0 GiB; 800.0 GiB are free there",
		"spark2: has org/model in /hub/abc, 60.0 GiB", "weights 30.0 GiB of 60.0 GiB",
	} {
		if code != 0 || !strings.Contains(said, want) {
			t.Errorf("code %d, not said %q:\n%s", code, want, said)
		}
	}
	has.Config, lacks.Config = config, config
	if code, _, said = run("launch", "vllm", "--nodes", "4", "--tp", "4", "--dry-run", "org/model"); code != 125 ||
		!strings.Contains(said, "6") || !strings.Contains(said, "--pp") {
		t.Errorf("6 heads do not divide by 4: code %d: %s", code, said)
	}
	has.Config, lacks.Config, lacks.Free = config, config, free(10*g)
	if code, _, said = run("launch", "vllm", "--nodes", "2", "--dry-run", "org/model"); code != 125 ||
		!strings.Contains(said, "spark1: no room: it would fetch 60.0 GiB of org/model into /hub/abc") {
		t.Errorf("a full disk: code %d: %s", code, said)
	}
}

func TestServeSaysWhatItTakes(t *testing.T) {
	const g = 1 << 30
	home, run := atHomeOf(t, wire.NodePlan{Host: "spark1",
		Memory: &wire.NodeMemory{Total: 120 * g, Available: 100 * g, GPU: true}})
	code, _, said := run("launch", "vllm", "--dry-run", "org/model")
	for _, want := range []string{
		"image nvcr.io/nvidia/vllm:26.05-py3 (sparkrun's own for vllm;",
		"no config.json of org/model was found: heads, size and memory are unchecked",
		"memory of spark1: 100.0 GiB of 120.0 GiB free; vLLM takes 108.0 GiB",
		"the launch would be refused: spark1: no room: vLLM wants 108.0 GiB",
	} {
		if code != 125 || !strings.Contains(said, want) {
			t.Errorf("code %d, not said %q:\n%s", code, want, said)
		}
	}

	// One that sleeps at first starts when others have gone.
	code, _, said = run("launch", "vllm", "--dry-run", "--on-demand", "org/model")
	if strings.Contains(said, "no room") {
		t.Errorf("on demand: code %d: %s", code, said)
	}
	code, _, said = run("launch", "vllm", "--dry-run", "--on-demand", "--memory", "130G", "org/model")
	if !strings.Contains(said, "no room: vLLM wants 130.0 GiB") {
		t.Errorf("more than the machine has: code %d: %s", code, said)
	}

	// The user's file names an image, and the cache has the model.
	write(t, "vllm: vllm-node:mine\n", home, ".config/sparkrun/images.yaml")
	write(t, "abc\n", home, ".cache/huggingface/hub/models--org--model/refs/main")
	write(t, `{"model_type":"m","num_attention_heads":12,"num_key_value_heads":4,"head_dim":64,"num_hidden_layers":24}`, home, ".cache/huggingface/hub/models--org--model/snapshots/abc/config.json")
	write(t, `{"metadata":{"total_size":34359738368}}`, home,
		".cache/huggingface/hub/models--org--model/snapshots/abc/model.safetensors.index.json")
	code, _, said = run("launch", "vllm", "--nodes", "8", "--dry-run", "org/model", "--", "--gpu-memory-utilization",
		"0.8")
	for _, want := range []string{
		"image vllm-node:mine (" + home + "/.config/sparkrun/images.yaml;",
		"shown is --backend native; a launch asks vLLM first",
		"--tp 4 --pp 2: the model's 12 attention heads do not divide by 8",
		"weights 4.0 GiB of 32.0 GiB; vLLM takes 96.0 GiB (--gpu-memory-utilization 0.8)",
	} {
		if code != 0 || !strings.Contains(said, want) {
			t.Errorf("code %d, not said %q:\n%s", code, want, said)
		}
	}
	if code, _, said = run("launch", "vllm", "--nodes", "3", "--tp", "3", "--dry-run", "--runtime", "host",
		"org/model"); code != 125 || !strings.Contains(said, "4 heads of keys and values cannot be dealt out to 3") {
		t.Errorf("4 heads do not divide by 3: code %d: %s", code, said)
	}
	if code, _, said = run("launch", "vllm", "--nodes", "5", "--tp", "5", "--dry-run", "--runtime", "host",
		"org/model"); code != 125 || !strings.Contains(said, "nearest that works on 5 machines: --pp 5") {
		t.Errorf("12 heads do not divide by 5: code %d: %s", code, said)
	}
	for text, want := range map[string]string{
		"vlm: x\n":    `"vlm" is no workload that serves a model`,
		"- vllm: x\n": "not all of it is lines of a workload and its image", "vllm: [a]\n": "not all of it is lines",
		"vllm: {\n": "line ",
	} {
		write(t, text, home, ".config/sparkrun/images.yaml")
		if code, _, said = run("launch", "vllm", "--dry-run", "org/model"); code != 125 ||
			!strings.Contains(said, "images.yaml: ") || !strings.Contains(said, want) ||
			!strings.Contains(said, "want lines such as vllm:") || strings.Contains(said, "struct") ||
			strings.Contains(said, "map[") {
			t.Errorf("a file with a slip: code %d, want %q: %s", code, want, said)
		}
	}
}

// A machine without a GPU has a memory, too: what cannot lie in it is refused there, what may be short is
// told, by the launch as by its dry run.
func TestServeFitsWithoutGPU(t *testing.T) {
	const g = 1 << 30
	config := []byte(`{"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"num_hidden_layers":64}`)
	size, model := int64(66*g), &launcher.ModelCopy{}
	spark := func(host string) wire.NodePlan {
		return wire.NodePlan{Host: host, Memory: &wire.NodeMemory{Total: 24 * g, Available: 17 * g}, Model: model}
	}
	_, run := atHomeOf(t, spark("spark1"))
	has := func() { *model = launcher.ModelCopy{Dir: "/m", Found: true, Config: config, Bytes: size, Whole: size} }
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"--dry-run": {125,
			"the launch would be refused: spark1: no room: its part of the weights is 66.0 GiB, and it has 24.0 GiB of memory: more machines take smaller parts; nearest that works: --nodes 4, with 16.5 GiB on each"},
		"":                  {125, "sparkrun: spark1: no room: its part of the weights is 66.0 GiB"},
		"--dry-run --force": {0, "warning: spark1: no room: its part of the weights is 66.0 GiB"},
	} {
		has()
		if code, _, said := run(append([]string{"launch", "vllm", "/m"},
			strings.Fields(line)...)...); code != want.code || !strings.Contains(said, want.says) {
			t.Errorf("%q: code %d: %s", line, code, said)
		}
	}
	size = 1 << 20
	const short = "warning: memory of spark1: vLLM wants 21.6 GiB (--gpu-memory-utilization 0.9 of 24.0 GiB), and 17.0 GiB are free now: end what runs there, or give it less: `-- --gpu-memory-utilization 0.58`"
	for _, line := range []string{"--dry-run", ""} {
		has()
		code, _, said := run(append([]string{"launch", "vllm", "/m"}, strings.Fields(line)...)...)
		if line == "--dry-run" && (code != 0 || !strings.Contains(said, "weights 1.0 MiB")) ||
			!strings.Contains(said, short) {
			t.Errorf("%q: code %d: %s", line, code, said)
		}
	}
}

// What the machines say of a model, and of the room there, they are asked for once; a dry run shows what they say of
// the launch as it has become.
func TestServeAsksTheMachinesOnce(t *testing.T) {
	const g = 1 << 30
	config := `{"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"num_hidden_layers":64}`
	for line, want := range map[string]int{"": 1, "--wait": 1, "--dry-run": 2} {
		asked := 0
		r := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Ended(apptest.Rejected)),
			OnExplain: func(_ context.Context, r wire.LaunchRequest) (wire.ExplainResponse, error) {
				asked++
				n := wire.NodePlan{Host: "spark1", Memory: &wire.NodeMemory{Total: 120 * g, Available: 118 * g, GPU: true}}
				if r.Model != "" {
					n.Model = &launcher.ModelCopy{Dir: "/m", Found: true, Config: []byte(config), Bytes: g, Whole: g}
				}
				return wire.ExplainResponse{Nodes: []wire.NodePlan{n}}, nil
			}}
		_, _, said := cliIn(t, apptest.Agent(r, &apptest.FakeCluster{}), []string{"PATH=/bin", "HOME=" + t.TempDir()},
			append([]string{"launch", "vllm", "/m"}, strings.Fields(line)...)...)
		if asked != want || strings.Contains(said, "unchecked") || len(r.Launched) > 0 == (line == "--dry-run") {
			t.Errorf("%q: asked %d times, launched %v: %s", line, asked, r.Launched, said)
		}
	}
}

// A folder that is not there is told of all machines at once, before vLLM is asked anything.
func TestServeLooksBeforeItAsks(t *testing.T) {
	none := &launcher.ModelCopy{Dir: "/models/x"}
	_, run := atHomeOf(t, wire.NodePlan{Host: "spark1", Model: none}, wire.NodePlan{Host: "spark2", Model: none})
	code, _, said := run("launch", "vllm", "--nodes", "2", "--runtime", "host", "/models/x")
	if code != 125 || !strings.Contains(said,
		"spark1, spark2: /models/x: invalid: it is not there: copy the model to every machine") ||
		strings.Contains(said, "asking vLLM") {
		t.Errorf("code %d: %s", code, said)
	}
}

// An image that is still to be pulled is no reason to refuse.
func TestDryRunBeforeThePull(t *testing.T) {
	rank := launcher.RankPlan{Argv: []string{"vllm", "serve"}, Docker: []string{"--name", "x", "an/image"}, Pulls: true}
	_, run := atHomeOf(t, wire.NodePlan{Host: "spark1", Ranks: []launcher.RankPlan{rank}})
	code, out, said := run("launch", "vllm", "--dry-run", "--image", "an/image", "org/model")
	if code != 0 || strings.Count(out, "image an/image is not here: it will be pulled") != 1 ||
		!strings.Contains(out, "docker run") || strings.Contains(said, "refuse") {
		t.Errorf("code %d: %s%s", code, out, said)
	}
}

// The image is that of the workload, which of `run` the recipe says.
func TestRunTakesWorkloadsImage(t *testing.T) {
	home, run := atHomeOf(t, wire.NodePlan{Host: "spark1"})
	write(t, "model: org/m\ncommand: python3 -m sglang.launch_server --model-path org/m\n", home, "s.yaml")
	sglang, _ := engine.Named("sglang")
	if _, _, said := run("run", filepath.Join(home, "s.yaml"), "--nodes", "1", "--dry-run"); !strings.Contains(said,
		"image "+sglang.Image+" (sparkrun's own for sglang") {
		t.Errorf("said %s", said)
	}
}

func TestServiceHasNoTerminal(t *testing.T) {
	_, run := atHomeOf(t)
	for _, line := range [][]string{{"launch", "-t", "vllm", "m"}, {"launch", "-t", "exec", "--serve", "80", "--", "x"}} {
		if code, _, said := run(line...); code != 125 ||
			!strings.Contains(said, "--tty, --stdin: nobody stays to read it: launch leaves a service") {
			t.Errorf("%q: code %d: %s", line, code, said)
		}
	}
}

// The machines of a cluster that is reached from a client have a PATH of their own: launch does not know it, and says so.
func TestServeFromClientSaysWhatPathLacks(t *testing.T) {
	home, run := atHomeOf(t, wire.NodePlan{Host: "spark1"}, wire.NodePlan{Host: "spark2"})
	makeContext(t, home, "lab")
	for where, told := range map[string]bool{"lab": true, "local": false} {
		line := "--context " + where + " launch trtllm /models/m --runtime host --nodes 2 --trtllm-serve /opt/x/bin/trtllm-serve --dry-run"
		if _, _, said := run(strings.Fields(line)...); strings.Contains(said,
			"give --env PATH=/opt/x/bin:... for that") != told {
			t.Errorf("%s: %s", where, said)
		}
	}
}

// What a server that cannot say how it spreads wrote is shown: a job that is asked keeps its output nowhere else.
func TestAskingShowsWhatItSaid(t *testing.T) {
	g := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Started("spark1"),
		apptest.Ended(apptest.Failed7)),
		OnLogs: apptest.Prints(apptest.Out(0, 0, "usage\nImportError: libcudart\n"))}
	for want, g := range map[string]*apptest.FakeRunner{"its last line: [0] ImportError: libcudart;": g,
		"it said nothing;": {OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Ended(apptest.Failed7))}} {
		_, _, said := cliIn(t, apptest.Agent(g, &apptest.FakeCluster{}), []string{"PATH=/bin", "HOME=" + t.TempDir()},
			"launch", "vllm", "--nodes", "2", "--runtime", "host", "org/model")
		if !strings.Contains(said, "ended with 7; "+want) || strings.Contains(said, "sparkrun logs") {
			t.Errorf("%s is not said: %s", want, said)
		}
	}
}
