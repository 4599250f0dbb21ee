package engine

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

var update = flag.Bool("update", false, "write the goldens anew")

func named(t *testing.T, workload string) Engine {
	t.Helper()
	e, is := Named(workload)
	if !is {
		t.Fatalf("no engine %q", workload)
	}
	return e
}

// serving is a request to serve on a number of machines.
func serving(nodes int, s workloads.Serve) workloads.Request {
	return workloads.Request{
		Job:     launcher.Spec{ID: "abcd234567", Nodes: nodes},
		Workdir: "/home/ada/run",
		Environ: []string{"PATH=/usr/bin:/bin", "HOME=/home/ada", "LANG=C.UTF-8", "HF_TOKEN=hf_x", "CUDA_HOME=", "BATCH=32"},
		Home:    "/home/ada",
		Serve:   s,
	}
}

// What each machine would run, to the word.
func TestServeGolden(t *testing.T) {
	boxed := func(r workloads.Request) workloads.Request {
		r.Container, r.Workdir = &launcher.Container{Image: "vllm-node"}, ""
		return r
	}
	tests := map[string]struct {
		workload string
		req      workloads.Request
	}{
		"vllm":        {"vllm", serving(1, workloads.Serve{Model: "org/model", Args: []string{"--max-model-len", "4096"}})},
		"vllm-native": {"vllm", serving(2, workloads.Serve{Model: "org/model", Port: 8001, Args: []string{"--gpu-memory-utilization=0.8"}})},
		"vllm-copies": {"vllm", serving(2, workloads.Serve{Model: "/models/m", DP: 2, Host: "0.0.0.0"})},
		"vllm-ray":    {"vllm", serving(2, workloads.Serve{Model: "org/model", Backend: workloads.BackendRay, Program: "/opt/venv/bin/vllm"})},
		"vllm-recipe": {"vllm", serving(2, workloads.Serve{
			Model: "org/model", Env: []string{"VLLM_USE_V1=1", "VLLM_HOST_IP=1.2.3.4"},
			Command: strings.Fields("vllm serve org/model --served-model-name m -tp 4 --host 0.0.0.0 --port=9000 --distributed-executor-backend ray --max-num-seqs 8"),
		})},
		"sglang": {"sglang", serving(2, workloads.Serve{Model: "org/model"})},
		"sglang-recipe": {"sglang", serving(2, workloads.Serve{
			Model: "org/model", Command: strings.Fields("sglang serve --model-path org/model --tp 4 --context-length 131072 --mem-fraction-static 0.81 --host 0.0.0.0 --port 8000"),
		})},
		"exo":            {"exo", serving(2, workloads.Serve{Model: "mlx-community/model", Args: []string{"--offline"}})},
		"exo-tensor":     {"exo", serving(2, workloads.Serve{Model: "mlx-community/model", TP: 2, Host: "0.0.0.0", Port: 9000, Program: "/opt/exo/bin/exo"})},
		"exo-alone":      {"exo", serving(1, workloads.Serve{})},
		"exo-boxed":      {"exo", boxed(serving(1, workloads.Serve{Model: "mlx-community/model"}))},
		"trtllm":         {"trtllm", serving(1, workloads.Serve{Model: "org/model"})},
		"trtllm-several": {"trtllm", serving(2, workloads.Serve{Model: "org/model", Program: "/opt/venv/bin/trtllm-serve", Args: []string{"--max_batch_size", "4", "--media_io_kwargs", `{"video": {"num_frames": 4}}`}})},
		"trtllm-several-recipe": {"trtllm", serving(2, workloads.Serve{
			Model: "org/model", Command: strings.Fields("trtllm-llmapi-launch trtllm-serve org/model --tp_size 2 --backend pytorch --extra_llm_api_options /x.yml --host 0.0.0.0 --port 9000"),
		})},
		"trtllm-recipe": {"trtllm", serving(1, workloads.Serve{
			Model: "org/model", Command: strings.Fields("trtllm-serve serve org/model --tp_size 2 --max_batch_size 8 --trust_remote_code --host 0.0.0.0 --port 9000"),
			Args: []string{"--log_level", "info"},
		})},
	}
	fetched := func(s workloads.Serve) workloads.Serve {
		s.Model, s.Cache = "org/model", "/var/lib/sparkrun/models"
		s.Snapshot = s.Cache + "/models--org--model/snapshots/abc"
		return s
	}
	type test = struct {
		workload string
		req      workloads.Request
	}
	tests["vllm-fetched"] = test{"vllm", boxed(serving(2, fetched(workloads.Serve{})))}
	tests["sglang-fetched"] = test{"sglang", serving(1, fetched(workloads.Serve{Args: []string{"--served-model-name", "m"}}))}
	tests["trtllm-fetched-recipe"] = test{"trtllm", serving(1, fetched(workloads.Serve{
		Command: strings.Fields("trtllm-serve org/model --revision v2 --tokenizer=org/model --backend pytorch")}))}
	tests["vllm-boxed"] = test{"vllm", boxed(serving(1, workloads.Serve{Model: "/models/m"}))}
	tests["trtllm-boxed"] = test{"trtllm", boxed(serving(3, workloads.Serve{Model: "/models/m"}))}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { golden(t, name, tc.workload, tc.req) })
	}
}

// golden compares what each machine would run with what is kept of it.
func golden(t *testing.T, name, workload string, r workloads.Request) {
	t.Helper()
	e := named(t, workload)
	spec, err := e.Spec(r)
	if err != nil {
		t.Fatal(err)
	}
	got := render(t, spec)
	if c := spec.MainStage().Container; c != nil {
		got += fmt.Sprintf("\nmounts: %v\n", c.Mounts)
	}
	got += fmt.Sprintf("\nservice: %+v\ntakes GPUs: %s\n", *spec.Service, spec.GPUs)
	for _, note := range e.Notes(r) {
		got += "note: " + note + "\n"
	}
	file := filepath.Join("testdata", "serve-"+name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s -want +got:\n%s", file, d)
	}
}

func TestServeRefuses(t *testing.T) {
	words := strings.Fields
	wedged := func(r *workloads.Request) {
		r.Job.Service = &launcher.Service{OnWedge: launcher.WedgeRestart, Restarts: 3, Per: time.Hour}
	}
	tests := map[string]struct {
		workload string
		serve    workloads.Serve
		nodes    int
		change   func(*workloads.Request)
		want     string
	}{
		"no model":           {"vllm", workloads.Serve{}, 1, nil, "vllm: invalid: no model"},
		"two a machine":      {"vllm", workloads.Serve{Model: "m"}, 1, func(r *workloads.Request) { r.RanksPerNode = 2 }, "a Spark has one GPU"},
		"any number":         {"vllm", workloads.Serve{Model: "m"}, 3, func(r *workloads.Request) { r.Job.MinNodes = 2 }, "--nodes 2:3"},
		"said twice":         {"vllm", workloads.Serve{Model: "m", TP: 2, Args: words("-tp 1")}, 2, nil, "--tensor-parallel-size 1 stands after --"},
		"host twice":         {"vllm", workloads.Serve{Model: "m", Host: "::", Args: words("--host=0.0.0.0")}, 1, nil, "--host 0.0.0.0 stands after --"},
		"a port":             {"vllm", workloads.Serve{Model: "m", Args: words("--port http")}, 1, nil, "want 1 to 65535"},
		"a size":             {"vllm", workloads.Serve{Model: "m", Args: words("--tensor_parallel_size two")}, 1, nil, "want 1 to 1024"},
		"sizes beyond all":   {"vllm", workloads.Serve{Model: "m", TP: 1 << 32, PP: 1 << 32}, 0, nil, "--tensor-parallel-size 4294967296: invalid: want 1 to 1024"}, // their product is 0
		"two of them":        {"vllm", workloads.Serve{Model: "m", PP: 1 << 62, Args: words("-tp 4")}, 0, nil, "want 1 to 1024"},
		"machines":           {"vllm", workloads.Serve{Model: "m"}, 1e9, nil, "1000000000 machines: invalid: a model is served on 1024 at most"},
		"machines by sizes":  {"vllm", workloads.Serve{Model: "m", TP: 64, PP: 64}, 0, nil, "4096 machines"},
		"backend":            {"vllm", workloads.Serve{Model: "m", Backend: "mpi"}, 2, nil, "want ray or native"},
		"backends":           {"vllm", workloads.Serve{Model: "m", Backend: "native", Args: words("--distributed-executor-backend ray")}, 2, nil, "stands after --"},
		"copies by Ray":      {"vllm", workloads.Serve{Model: "m", Backend: "ray", DP: 2}, 2, nil, "--backend native does"},
		"secret":             {"vllm", workloads.Serve{Model: "m", Env: []string{"HF_TOKEN=x"}}, 1, nil, "--secret HF_TOKEN"},
		"a key":              {"vllm", workloads.Serve{Model: "m", Args: words("--api_key=sesame")}, 1, nil, "--api-key: invalid: a secret has no place in a command, which the cluster's record keeps and others see: give it with --secret VLLM_API_KEY"},
		"a token":            {"sglang", workloads.Serve{Model: "m", Args: words("--hf-token sesame")}, 1, nil, "--secret HF_TOKEN"},
		"another key":        {"sglang", workloads.Serve{Model: "m", Args: words("--admin-api sesame")}, 1, nil, "--admin-api-key: invalid: a secret"},
		"a password":         {"sglang", workloads.Serve{Model: "m", Args: words("--ssl-keyfile-password=sesame")}, 1, nil, "--ssl-keyfile-password: invalid: a secret"},
		"TLS":                {"vllm", workloads.Serve{Model: "m", Args: words("--ssl-keyfile k --ssl-certfile c")}, 1, nil, "--ssl-certfile: invalid: vllm would answer by TLS, and sparkrun looks at it by http on its port: leave it out, and put a proxy before it"},
		"a recipe's TLS":     {"sglang", workloads.Serve{Command: words("sglang serve --model-path m --ssl_keyfile=k")}, 1, nil, "--ssl-keyfile: invalid: sglang"},
		"a socket":           {"vllm", workloads.Serve{Model: "m", Args: words("--uds /tmp/s")}, 1, nil, "on a socket in a folder"},
		"one's address":      {"sglang", workloads.Serve{Model: "m", Host: "10.0.0.11"}, 2, nil, "--host 10.0.0.11: invalid: SGLang listens on every machine"},
		"one's, after --":    {"sglang", workloads.Serve{Model: "m", Args: words("--host spark1")}, 2, nil, "--host 0.0.0.0, or leave it out"},
		"copies by SGLang":   {"sglang", workloads.Serve{Model: "m", DP: 2}, 2, nil, "sglang does not spread over machines that way"},
		"mpirun on one":      {"trtllm", workloads.Serve{Model: "m"}, 1, func(r *workloads.Request) { r.MPI.Mpirun = "/m" }, "--mpirun /m: invalid: on one machine there is no mpirun"},
		"copies by trtllm":   {"trtllm", workloads.Serve{Model: "m", DP: 2}, 2, nil, "trtllm does not spread over machines that way"},
		"too few for trtllm": {"trtllm", workloads.Serve{Model: "m", TP: 4}, 2, nil, "nearest that works on 2 machines: --tp 2"},
		"exo, a folder":      {"exo", workloads.Serve{Model: "/models/m"}, 2, nil, "--env EXO_MODELS_READ_ONLY_DIRS=/models"},
		"exo, both ways":     {"exo", workloads.Serve{Model: "m", TP: 2, PP: 2}, 4, nil, "exo cuts a model one way, over all machines: on 4 machines --pp 4 or --tp 4"},
		"exo, a part":        {"exo", workloads.Serve{Model: "m", PP: 2}, 3, nil, "on 3 machines --pp 3 or --tp 3"},
		"exo, its API":       {"exo", workloads.Serve{Model: "m", Args: words("--no-a")}, 2, nil, "--no-api: invalid: it is not for the arguments after --"},
		"exo, its port":      {"exo", workloads.Serve{Model: "m", Args: words("--api-port=3")}, 2, nil, "--port names the port of the API"},
		"exo, beyond all":    {"exo", workloads.Serve{Model: "m", TP: 1 << 32, PP: 1 << 32}, 0, nil, "--tp 4294967296: invalid: want 1 to 1024"}, // their product is 0
		"exo, layers":        {"exo", workloads.Serve{Model: "m", PP: 1 << 62}, 0, nil, "--pp 4611686018427387904: invalid: want 1 to 1024"},
		"exo, machines":      {"exo", workloads.Serve{Model: "m"}, 1e9, nil, "1000000000 machines: invalid: a model is served on 1024 at most"},
		"exo, last port":     {"exo", workloads.Serve{Model: "m", Port: 65535}, 1, nil, "want 1 to 65534"},
		"exo, a name":        {"exo", workloads.Serve{Model: "m", Host: "spark1"}, 1, nil, "--host spark1: invalid: want an address"},
		"exo, two":           {"exo", workloads.Serve{Model: "m"}, 1, func(r *workloads.Request) { r.RanksPerNode = 2 }, "one GPU, and one exo"},
		"exo, a token":       {"exo", workloads.Serve{Model: "m"}, 1, func(r *workloads.Request) { r.Job.Service = &launcher.Service{Probe: launcher.ProbeGenerate} }, "/v1/completions"},
		"exo, a wedge":       {"exo", workloads.Serve{Model: "m"}, 1, wedged, "--on-wedge restart: invalid: exo has no metrics"},
		"a wedge":            {"trtllm", workloads.Serve{Model: "m"}, 1, wedged, "--on-wedge restart: invalid: trtllm has no metrics that are read; --probe generate tells"},
		"exo, any number":    {"exo", workloads.Serve{Model: "m"}, 3, func(r *workloads.Request) { r.Job.MinNodes = 2 }, "--nodes 2:3"},
		"a count":            {"vllm", workloads.Serve{Model: "m", Args: words("--nnodes 3 --node-rank 1")}, 2, nil, "--nnodes stands after --: invalid: --nodes N (or --on HOST,HOST) says how many machines there are"},
		"a count in short":   {"vllm", workloads.Serve{Model: "m", Args: words("-n=3")}, 1, nil, "--nnodes stands after --"},
		"a rank":             {"vllm", workloads.Serve{Model: "m", Args: words("--node_rank=1")}, 2, nil, "--node-rank stands after --: invalid: --on HOST,HOST says which machines these are, and in which order"},
		"an address":         {"vllm", workloads.Serve{Model: "m", Args: words("--master-addr 1.2.3.4")}, 2, nil, "--master-addr stands after --: invalid: --on HOST,HOST says which machines these are"},
		"no API":             {"vllm", workloads.Serve{Model: "m", Args: words("--headless")}, 2, nil, "--headless stands after --: invalid: each machine gets its own value: leave it out"},
		"SGLang's count":     {"sglang", workloads.Serve{Model: "m", Args: words("--nnodes 3")}, 2, nil, "--nnodes stands after --"},
		"SGLang's address":   {"sglang", workloads.Serve{Model: "m", Args: words("--dist-init-addr=h:1")}, 2, nil, "--dist-init-addr stands after --"},
		"three segments":     {"vllm", workloads.Serve{Model: "a/b/c"}, 1, nil, "model a/b/c: invalid: it is no name on Hugging Face (OWNER/NAME); a folder is named by its full path"},
		"SGLang's key":       {"sglang", workloads.Serve{Model: "m", Args: words("--api-key k")}, 1, nil, "SGLang takes it in no other way: leave it out, and put a proxy"},
		"TensorRT's key":     {"trtllm", workloads.Serve{Model: "m", Args: words("--api-key k")}, 1, nil, "trtllm-serve asks for none"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := serving(tc.nodes, tc.serve)
			if tc.change != nil {
				tc.change(&r)
			}
			if _, err := named(t, tc.workload).Spec(r); err == nil || !strings.Contains(err.Error(), tc.want) || !errors.Is(err, launcher.ErrInvalid) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// The script calls the Python of its PATH: where that cannot be the one beside it, launch says so.
func TestTRTLLMPathIsTold(t *testing.T) {
	const program = "/opt/x/bin/trtllm-serve"
	for name, tc := range map[string]struct {
		nodes  int
		change func(*workloads.Request)
		told   bool
	}{
		"known":                 {2, func(*workloads.Request) {}, false},
		"from a client":         {2, func(r *workloads.Request) { r.Away = true }, true},
		"in an image":           {2, func(r *workloads.Request) { r.Container = &launcher.Container{Image: "i"} }, true},
		"no PATH":               {2, func(r *workloads.Request) { r.Environ = nil }, true},
		"one machine":           {1, func(r *workloads.Request) { r.Away = true }, false},
		"a name":                {2, func(r *workloads.Request) { r.Away, r.Serve.Program = true, "trtllm-serve" }, false},
		"the user's":            {2, func(r *workloads.Request) { r.Away, r.Env = true, []string{"PATH=/opt/x/bin:/bin"} }, false},
		"the user's, unchanged": {2, func(r *workloads.Request) { r.Away, r.Env = true, []string{"PATH"} }, false},
		"a recipe's": {2, func(r *workloads.Request) {
			r.Container, r.Serve.Env = &launcher.Container{Image: "i"}, []string{"PATH=/opt/x/bin:/bin"}
		}, false},
	} {
		r := serving(tc.nodes, workloads.Serve{Model: "org/model", Program: program})
		r.Environ = append(r.Environ, "PATH=/usr/bin")
		tc.change(&r)
		const want = "/opt/x/bin/trtllm-llmapi-launch calls the python and python3 of its PATH, which is not known here, so that those of /opt/x/bin are not put first: give --env PATH=/opt/x/bin:... for that"
		if got := slices.Contains(named(t, "trtllm").Notes(r), want); got != tc.told {
			t.Errorf("%s: %q", name, named(t, "trtllm").Notes(r))
		}
	}
}

// A recipe's command says on how many machines it runs, where nobody else does.
func TestServeNodesFromCommand(t *testing.T) {
	command := strings.Fields("vllm serve m --tensor-parallel-size 2 --pipeline_parallel_size=2")
	for nodes, want := range map[int]string{0: "4 --tp 2 --pp 2", 4: "4 --tp 2 --pp 2", 2: "2 --tp 2", 1: "1 --tp 1", 3: "3 --pp 3"} {
		z, n, err := named(t, "vllm").Sizes(serving(nodes, workloads.Serve{Model: "m", Command: command}))
		if got := fmt.Sprint(n, " ", z); err != nil || got != want {
			t.Errorf("--nodes %d: %s, %v, want %s", nodes, got, err, want)
		}
	}
}

// SGLang over several machines may listen where each of them can.
func TestSGLangListensOnAll(t *testing.T) {
	for host, nodes := range map[string]int{"0.0.0.0": 2, "::": 2, "127.0.0.1": 2, "localhost": 2, "10.0.0.11": 1} {
		if _, err := named(t, "sglang").Spec(serving(nodes, workloads.Serve{Model: "m", Host: host})); err != nil {
			t.Errorf("--host %s on %d: %v", host, nodes, err)
		}
	}
}

// Compiled code has a place of each engine that compiles; the user's word on it is the last, a recipe's the one before.
func TestServeKeepsCompiledCode(t *testing.T) {
	const at = "<compile-cache>/"
	for name, own := range map[string]string{"vllm": "VLLM_CACHE_ROOT", "sglang": "SGLANG_JIT_CACHE_DIR", "trtllm": "TRTLLM_CACHE_DIR"} {
		r := serving(1, workloads.Serve{Model: "m", Env: []string{"FLASHINFER_WORKSPACE_BASE=/recipe", "CUDA_CACHE_PATH=/recipe"}})
		r.Env = []string{"TRITON_CACHE_DIR=/mine", "CUDA_CACHE_PATH=/mine"}
		spec, err := named(t, name).Spec(r)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, v := range spec.MainStage().Env { // of which the last counts
			got[v.Name] = v.Value.String()
		}
		for v, want := range map[string]string{own: at + own, "TORCHINDUCTOR_CACHE_DIR": at + "TORCHINDUCTOR_CACHE_DIR",
			"FLASHINFER_WORKSPACE_BASE": "/recipe", "TRITON_CACHE_DIR": "/mine", "CUDA_CACHE_PATH": "/mine"} {
			if got[v] != want {
				t.Errorf("%s: %s=%s, want %s", name, v, got[v], want)
			}
		}
		if !spec.Compiles() {
			t.Errorf("%s compiles nothing", name)
		}
	}
	spec, err := named(t, "llamacpp").Spec(serving(1, workloads.Serve{Model: "/m.gguf"}))
	if err != nil || spec.Compiles() {
		t.Errorf("llama.cpp compiles when it is built: %v", err)
	}
}

// Weights are looked for where the server looks, and another user's folders are not guessed.
func TestServeShowsCaches(t *testing.T) {
	const std = "/home/ada/.cache/huggingface"
	for name, tc := range map[string]struct {
		change func(*workloads.Request)
		cache  string
		own    bool // the caller's own
	}{
		"the caller's":         {func(*workloads.Request) {}, std, true},
		"HF_HOME of the shell": {func(r *workloads.Request) { r.Environ = append(r.Environ, "HF_HOME=/shell") }, "/shell", true},
		"--env HF_HOME": {func(r *workloads.Request) {
			r.Environ = append(r.Environ, "HF_HOME=/shell")
			r.Env = []string{"HF_HOME=/data/hf"}
		}, "/data/hf", true},
		"--env, from a client":  {func(r *workloads.Request) { r.Away, r.Env = true, []string{"HF_HOME=/data/hf"} }, "/data/hf", true},
		"another user's":        {func(r *workloads.Request) { r.Job.User, r.Environ = "alice", append(r.Environ, "HF_HOME=/root/hf") }, "", false},
		"another's, and a flag": {func(r *workloads.Request) { r.Job.User, r.Container.ModelCache = "alice", "/models" }, "/models", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := serving(1, workloads.Serve{Model: "org/model"})
			r.Container, r.Workdir = &launcher.Container{Image: "i"}, ""
			tc.change(&r)
			spec, err := named(t, "vllm").Spec(r)
			if err != nil {
				t.Fatal(err)
			}
			st := spec.MainStage()
			if c := st.Container; c.ModelCache != tc.cache || len(c.Mounts) > 0 || c.CacheOffered != tc.own {
				t.Errorf("cache %q (offered %t), mounts %v", c.ModelCache, c.CacheOffered, c.Mounts)
			}
			seen := "" // by the server, of which the last counts
			for _, v := range st.Env {
				if v.Name == "HF_HOME" {
					seen = v.Value.String()
				}
			}
			if tc.cache != std && tc.own && seen != tc.cache || !tc.own && seen != "" {
				t.Errorf("HF_HOME is %q", seen)
			}
		})
	}
}

// Each server's own names of its flags are read after --, and no other's.
func TestArgsSay(t *testing.T) {
	for line, want := range map[string]workloads.Serve{
		"vllm --tensor-parallel-s 4 -pp=2 -dp 3 --port 1 --host a --distributed-executor-backend mp": {TP: 4, PP: 2, DP: 3, Port: 1, Host: "a", Backend: workloads.BackendNative},
		"vllm --distributed_executor_backend=ray --port nine":                                        {Backend: workloads.BackendRay, Port: 1},
		"sglang --tp 2 --pp-size 3 --port 7 -dp 2 --distributed-executor-backend ray":                {TP: 2, PP: 3, Port: 7},
		"trtllm --tp_size 2 --host b --data-parallel-size 2":                                         {TP: 2, Host: "b"},
		"vllm --enforce-eager": {},
	} {
		words := strings.Fields(line)
		if diff := cmp.Diff(want, named(t, words[0]).ArgsSay(words[1:])); diff != "" {
			t.Errorf("%s:\n%s", line, diff)
		}
	}
}

// render shows what each rank would be exec'd with, and what makes it ready.
func render(t *testing.T, spec launcher.Spec) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "workload %s  stdin %s  node time-out %s\n", spec.Workload, spec.MainStage().Stdin, spec.NodeTimeout)
	first := 0
	for node := range spec.Nodes {
		a := launcher.Assignment{
			Key: launcher.Key{Job: spec.ID, Generation: 1}, Spec: spec.Only(""), Host: fmt.Sprintf("spark%d", node+1),
			NodeRank: node, NodeCount: spec.Nodes, FirstRank: first, Ranks: spec.RanksOn(node), World: spec.WorldOf(spec.Nodes),
			Head: netip.MustParseAddr("192.168.0.1"), Addr: netip.MustParseAddr(fmt.Sprintf("192.168.0.%d", node+1)),
			Management: netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", node+1)),
		}
		for other := 1; other < spec.Nodes; other++ {
			a.Rest = append(a.Rest, netip.MustParseAddr(fmt.Sprintf("192.168.0.%d", other+1)))
		}
		for local := range a.Ranks {
			_, st, placement := a.Local(local)
			next := uint16(20000)
			placement.CompileCache = "/compiled"
			placement.Ports, placement.HeadPorts = map[string]launcher.Ports{}, map[string]launcher.Ports{}
			for _, s := range spec.Steps() {
				for _, p := range s.Ports {
					count := uint16(max(p.Count, 1))
					placement.Ports[p.Name] = launcher.Ports{First: next, Last: next + count - 1}
					next += count
				}
			}
			placement.HeadPorts = placement.Ports
			argv, err := placement.Argv(st)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "\nrank %d, stage %s: %q\n", first+local, st.Name, argv)
			if st.PIDsOf != "" {
				fmt.Fprintf(&b, "  sees the processes of %s\n", st.PIDsOf)
			}
			for _, v := range st.Env {
				text, err := placement.Resolve(v.Value)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "  %s=%s  (%s)\n", v.Name, text, v.Source)
			}
			for _, p := range st.Ready {
				fmt.Fprintf(&b, "  ready: %s %s, on the head %t, port %s, match %q, want %s, %v\n", p.Kind, p.What, p.Head, p.Port, p.Match, p.Want, p.Argv)
			}
		}
		first += a.Ranks
	}
	return b.String()
}

// Engines are workloads among the others, which stay in order.
func TestWorkloads(t *testing.T) {
	all := Workloads()
	for _, name := range []string{"exec", "vllm", "exo"} {
		if w, err := workloads.Find(all, name); err != nil || w.Name != name {
			t.Errorf("Find(%q) = %q, %v", name, w.Name, err)
		}
	}
	const want = `unknown workload "vlm": did you mean vllm? known: exec, exo, ib-test, `
	if _, err := workloads.Find(all, "vlm"); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v\nwant %s", err, want)
	}
	for _, e := range All() {
		if e.Title == "" || e.Port == 0 || e.Help.Short == "" || e.Help.Example == "" || e.Program.Name == "" || e.decide == nil || e.stages == nil {
			t.Errorf("%s: its row is not whole: %+v", e.Name, e)
		}
		if n := len(e.Signs.Metrics.Progress); (e.noMetrics == "") != (n > 0) || n > launcher.MaxProgress {
			t.Errorf("%s: %d series, of which one grows with work alone; room for %d; %q", e.Name, n, launcher.MaxProgress, e.noMetrics)
		}
		l := e.Signs.Log
		for _, p := range append([]string{l.Prefix, l.Elsewhere, l.Died, l.Vague, l.Struck, l.Dead}, l.Causes...) {
			if _, err := regexp.Compile(p); err != nil {
				t.Errorf("%s: %v", e.Name, err)
			}
		}
	}
}
