package workloads

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// serving is a request to serve on a number of machines.
func serving(nodes int, s Serve) Request {
	r := request()
	r.Job.Nodes, r.Home, r.Serve = nodes, "/home/ada", s
	return r
}

// What each machine would run, to the word.
func TestServeGolden(t *testing.T) {
	boxed := func(r Request) Request {
		r.Container, r.Workdir = &launcher.Container{Image: "vllm-node"}, ""
		return r
	}
	tests := map[string]struct {
		workload string
		req      Request
	}{
		"vllm":        {VLLM, serving(1, Serve{Model: "org/model", Args: []string{"--max-model-len", "4096"}})},
		"vllm-native": {VLLM, serving(2, Serve{Model: "org/model", Port: 8001, Args: []string{"--gpu-memory-utilization=0.8"}})},
		"vllm-copies": {VLLM, serving(2, Serve{Model: "/models/m", DP: 2, Host: "0.0.0.0"})},
		"vllm-ray":    {VLLM, serving(2, Serve{Model: "org/model", Backend: BackendRay, Program: "/opt/venv/bin/vllm"})},
		"vllm-recipe": {VLLM, serving(2, Serve{
			Model: "org/model", Env: []string{"VLLM_USE_V1=1", "VLLM_HOST_IP=1.2.3.4"},
			Command: strings.Fields("vllm serve org/model --served-model-name m -tp 4 --host 0.0.0.0 --port=9000 --distributed-executor-backend ray --max-num-seqs 8"),
		})},
		"sglang": {SGLang, serving(2, Serve{Model: "org/model"})},
		"sglang-recipe": {SGLang, serving(2, Serve{
			Model: "org/model", Command: strings.Fields("sglang serve --model-path org/model --tp 4 --context-length 131072 --mem-fraction-static 0.81 --host 0.0.0.0 --port 8000"),
		})},
		"exo":            {EXO, serving(2, Serve{Model: "mlx-community/model", Args: []string{"--offline"}})},
		"exo-tensor":     {EXO, serving(2, Serve{Model: "mlx-community/model", TP: 2, Host: "0.0.0.0", Port: 9000, Program: "/opt/exo/bin/exo"})},
		"exo-alone":      {EXO, serving(1, Serve{})},
		"exo-boxed":      {EXO, boxed(serving(1, Serve{Model: "mlx-community/model"}))},
		"trtllm":         {TRTLLM, serving(1, Serve{Model: "org/model"})},
		"trtllm-several": {TRTLLM, serving(2, Serve{Model: "org/model", Program: "/opt/venv/bin/trtllm-serve", Args: []string{"--max_batch_size", "4", "--media_io_kwargs", `{"video": {"num_frames": 4}}`}})},
		"trtllm-several-recipe": {TRTLLM, serving(2, Serve{
			Model: "org/model", Command: strings.Fields("trtllm-llmapi-launch trtllm-serve org/model --tp_size 2 --backend pytorch --extra_llm_api_options /x.yml --host 0.0.0.0 --port 9000"),
		})},
		"trtllm-recipe": {TRTLLM, serving(1, Serve{
			Model: "org/model", Command: strings.Fields("trtllm-serve serve org/model --tp_size 2 --max_batch_size 8 --trust_remote_code --host 0.0.0.0 --port 9000"),
			Args: []string{"--log_level", "info"},
		})},
	}
	type test = struct {
		workload string
		req      Request
	}
	tests["vllm-boxed"] = test{VLLM, boxed(serving(1, Serve{Model: "/models/m"}))}
	tests["trtllm-boxed"] = test{TRTLLM, boxed(serving(3, Serve{Model: "/models/m"}))}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, err := Find(tc.workload)
			if err != nil {
				t.Fatal(err)
			}
			spec, err := w.Spec(tc.req)
			if err != nil {
				t.Fatal(err)
			}
			got := render(t, spec)
			if c := spec.MainStage().Container; c != nil {
				got += fmt.Sprintf("\nmounts: %v\n", c.Mounts)
			}
			got += fmt.Sprintf("\nservice: %+v\ntakes GPUs: %s\n", *spec.Service, spec.GPUs)
			for _, note := range ServeNotes(tc.workload, tc.req) {
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
		})
	}
}

func TestSpread(t *testing.T) {
	llama, small := &Model{Heads: 32, KVHeads: 8, Layers: 32}, &Model{Heads: 4, KVHeads: 2, Layers: 2}
	tests := []struct {
		nodes int
		asked Sizes
		model *Model
		want  Sizes
		fails string // part of the error
	}{
		{1, Sizes{}, nil, Sizes{1, 1, 1}, ""},
		{2, Sizes{}, nil, Sizes{2, 1, 1}, ""},
		{3, Sizes{}, llama, Sizes{1, 3, 1}, ""},
		{4, Sizes{}, llama, Sizes{4, 1, 1}, ""},
		{6, Sizes{}, llama, Sizes{2, 3, 1}, ""},
		{8, Sizes{}, llama, Sizes{8, 1, 1}, ""},
		{4, Sizes{}, &Model{Heads: 14, KVHeads: 2, Layers: 24}, Sizes{2, 2, 1}, ""},      // 14 = 2 x 7
		{16, Sizes{}, &Model{Heads: 32, KVHeads: 8, Layers: 32}, Sizes{16, 1, 1}, ""},    // keys are copied
		{4, Sizes{}, &Model{Heads: 12, KVHeads: 6, Layers: 24}, Sizes{2, 2, 1}, ""},      // 6 cannot be dealt out to 4
		{4, Sizes{TP: 2}, llama, Sizes{2, 2, 1}, ""},                                     // the rest is a pipeline
		{4, Sizes{PP: 4}, llama, Sizes{1, 4, 1}, ""},                                     // as asked
		{4, Sizes{DP: 2}, llama, Sizes{2, 1, 2}, ""},                                     // two copies of two
		{4, Sizes{TP: 1, PP: 1}, llama, Sizes{1, 1, 4}, ""},                              // what is left
		{3, Sizes{TP: 3}, &Model{Heads: 24, KVHeads: 24, Layers: 8}, Sizes{3, 1, 1}, ""}, // it divides: as asked
		{3, Sizes{TP: 3}, llama, Sizes{}, "32 attention heads do not divide by 3; nearest that works on 3 machines: --pp 3"},
		{2, Sizes{TP: 4}, llama, Sizes{}, "takes 4 GPUs, and 2 machines have 2, one each (--nodes 4 has as many); nearest that works on 2 machines: --tp 2"},
		{4, Sizes{TP: 3}, llama, Sizes{}, "takes 3 GPUs, and 4 machines have 4, one each; nearest that works on 4 machines: --tp 4"},
		{1, Sizes{TP: 2}, nil, Sizes{}, "nearest that works on 1 machine: --tp 1"},
		{4, Sizes{TP: 2, PP: 1, DP: 1}, nil, Sizes{}, "takes 2 GPUs"},
		{8, Sizes{PP: 8}, &Model{Heads: 32, Layers: 4}, Sizes{}, "the model has 4 layers"},
		{1, Sizes{TP: 2}, nil, Sizes{}, "--tp 2: invalid: that takes 2 GPUs, and 1 machine has 1 (--nodes 2 has as many)"},
		{3, Sizes{}, small, Sizes{}, "3 machines: invalid: the model has 2 layers, and a stage of the pipeline takes one at least; nearest that works: --nodes 2, with --tp 2"},
		{3, Sizes{TP: 3}, small, Sizes{}, "--tp 3: invalid: the model's 4 attention heads do not divide by 3; nearest that works: --nodes 2, with --tp 2"},
		{3, Sizes{TP: 2}, small, Sizes{}, "3 machines have 3, one each; nearest that works: --nodes 2, with --tp 2"},
	}
	for _, tc := range tests {
		got, _, err := Spread(tc.nodes, tc.asked, tc.model)
		switch {
		case tc.fails == "" && (err != nil || got != tc.want):
			t.Errorf("%d machines, %+v, %+v: %+v, %v, want %+v", tc.nodes, tc.asked, tc.model, got, err, tc.want)
		case tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails) || !errors.Is(err, launcher.ErrInvalid)):
			t.Errorf("%d machines, %+v: %v, want %q", tc.nodes, tc.asked, err, tc.fails)
		}
	}
	if _, why, _ := Spread(3, Sizes{}, llama); !strings.Contains(why, "power of two") {
		t.Errorf("three machines are cut without a word: %q", why)
	}
}

func TestServeRefuses(t *testing.T) {
	words := strings.Fields
	wedged := func(r *Request) {
		r.Job.Service = &launcher.Service{OnWedge: launcher.WedgeRestart, Restarts: 3, Per: time.Hour}
	}
	tests := map[string]struct {
		workload string
		serve    Serve
		nodes    int
		change   func(*Request)
		want     string
	}{
		"no model":           {VLLM, Serve{}, 1, nil, "vllm: invalid: no model"},
		"two a machine":      {VLLM, Serve{Model: "m"}, 1, func(r *Request) { r.RanksPerNode = 2 }, "a Spark has one GPU"},
		"any number":         {VLLM, Serve{Model: "m"}, 3, func(r *Request) { r.Job.MinNodes = 2 }, "--nodes 2:3"},
		"said twice":         {VLLM, Serve{Model: "m", TP: 2, Args: words("-tp 1")}, 2, nil, "--tensor-parallel-size 1 stands after --"},
		"host twice":         {VLLM, Serve{Model: "m", Host: "::", Args: words("--host=0.0.0.0")}, 1, nil, "--host 0.0.0.0 stands after --"},
		"a port":             {VLLM, Serve{Model: "m", Args: words("--port http")}, 1, nil, "want 1 to 65535"},
		"a size":             {VLLM, Serve{Model: "m", Args: words("--tensor_parallel_size two")}, 1, nil, "want 1 to 1024"},
		"sizes beyond all":   {VLLM, Serve{Model: "m", TP: 1 << 32, PP: 1 << 32}, 0, nil, "--tensor-parallel-size 4294967296: invalid: want 1 to 1024"}, // their product is 0
		"two of them":        {VLLM, Serve{Model: "m", PP: 1 << 62, Args: words("-tp 4")}, 0, nil, "want 1 to 1024"},
		"machines":           {VLLM, Serve{Model: "m"}, 1e9, nil, "1000000000 machines: invalid: a model is served on 1024 at most"},
		"machines by sizes":  {VLLM, Serve{Model: "m", TP: 64, PP: 64}, 0, nil, "4096 machines"},
		"backend":            {VLLM, Serve{Model: "m", Backend: "mpi"}, 2, nil, "want ray or native"},
		"backends":           {VLLM, Serve{Model: "m", Backend: "native", Args: words("--distributed-executor-backend ray")}, 2, nil, "stands after --"},
		"copies by Ray":      {VLLM, Serve{Model: "m", Backend: "ray", DP: 2}, 2, nil, "--backend native does"},
		"secret":             {VLLM, Serve{Model: "m", Env: []string{"HF_TOKEN=x"}}, 1, nil, "--secret HF_TOKEN"},
		"a key":              {VLLM, Serve{Model: "m", Args: words("--api_key=sesame")}, 1, nil, "--api-key: invalid: a secret has no place in a command, which the cluster's record keeps and others see: give it with --secret VLLM_API_KEY"},
		"a token":            {SGLang, Serve{Model: "m", Args: words("--hf-token sesame")}, 1, nil, "--secret HF_TOKEN"},
		"another key":        {SGLang, Serve{Model: "m", Args: words("--admin-api sesame")}, 1, nil, "--admin-api-key: invalid: a secret"},
		"a password":         {SGLang, Serve{Model: "m", Args: words("--ssl-keyfile-password=sesame")}, 1, nil, "--ssl-keyfile-password: invalid: a secret"},
		"TLS":                {VLLM, Serve{Model: "m", Args: words("--ssl-keyfile k --ssl-certfile c")}, 1, nil, "--ssl-certfile: invalid: vllm would answer by TLS, and sparkrun looks at it by http on its port: leave it out, and put a proxy before it"},
		"a recipe's TLS":     {SGLang, Serve{Command: words("sglang serve --model-path m --ssl_keyfile=k")}, 1, nil, "--ssl-keyfile: invalid: sglang"},
		"a socket":           {VLLM, Serve{Model: "m", Args: words("--uds /tmp/s")}, 1, nil, "on a socket in a folder"},
		"one's address":      {SGLang, Serve{Model: "m", Host: "10.0.0.11"}, 2, nil, "--host 10.0.0.11: invalid: SGLang listens on every machine"},
		"one's, after --":    {SGLang, Serve{Model: "m", Args: words("--host spark1")}, 2, nil, "--host 0.0.0.0, or leave it out"},
		"copies by SGLang":   {SGLang, Serve{Model: "m", DP: 2}, 2, nil, "sglang does not spread over machines that way"},
		"mpirun on one":      {TRTLLM, Serve{Model: "m"}, 1, func(r *Request) { r.MPI.Mpirun = "/m" }, "--mpirun /m: invalid: on one machine there is no mpirun"},
		"copies by trtllm":   {TRTLLM, Serve{Model: "m", DP: 2}, 2, nil, "trtllm does not spread over machines that way"},
		"too few for trtllm": {TRTLLM, Serve{Model: "m", TP: 4}, 2, nil, "nearest that works on 2 machines: --tp 2"},
		"exo, a folder":      {EXO, Serve{Model: "/models/m"}, 2, nil, "--env EXO_MODELS_READ_ONLY_DIRS=/models"},
		"exo, both ways":     {EXO, Serve{Model: "m", TP: 2, PP: 2}, 4, nil, "exo cuts a model one way, over all machines: on 4 machines --pp 4 or --tp 4"},
		"exo, a part":        {EXO, Serve{Model: "m", PP: 2}, 3, nil, "on 3 machines --pp 3 or --tp 3"},
		"exo, its API":       {EXO, Serve{Model: "m", Args: words("--no-a")}, 2, nil, "--no-api: invalid: it is not for the arguments after --"},
		"exo, its port":      {EXO, Serve{Model: "m", Args: words("--api-port=3")}, 2, nil, "--port names the port of the API"},
		"exo, beyond all":    {EXO, Serve{Model: "m", TP: 1 << 32, PP: 1 << 32}, 0, nil, "--tp 4294967296: invalid: want 1 to 1024"}, // their product is 0
		"exo, layers":        {EXO, Serve{Model: "m", PP: 1 << 62}, 0, nil, "--pp 4611686018427387904: invalid: want 1 to 1024"},
		"exo, machines":      {EXO, Serve{Model: "m"}, 1e9, nil, "1000000000 machines: invalid: a model is served on 1024 at most"},
		"exo, last port":     {EXO, Serve{Model: "m", Port: 65535}, 1, nil, "want 1 to 65534"},
		"exo, a name":        {EXO, Serve{Model: "m", Host: "spark1"}, 1, nil, "--host spark1: invalid: want an address"},
		"exo, two":           {EXO, Serve{Model: "m"}, 1, func(r *Request) { r.RanksPerNode = 2 }, "one GPU, and one exo"},
		"exo, a token":       {EXO, Serve{Model: "m"}, 1, func(r *Request) { r.Job.Service = &launcher.Service{Probe: launcher.ProbeGenerate} }, "/v1/completions"},
		"exo, a wedge":       {EXO, Serve{Model: "m"}, 1, wedged, "--on-wedge restart: invalid: exo has no metrics"},
		"a wedge":            {TRTLLM, Serve{Model: "m"}, 1, wedged, "--on-wedge restart: invalid: trtllm has no metrics that are read; --probe generate tells"},
		"exo, any number":    {EXO, Serve{Model: "m"}, 3, func(r *Request) { r.Job.MinNodes = 2 }, "--nodes 2:3"},
		"a count":            {VLLM, Serve{Model: "m", Args: words("--nnodes 3 --node-rank 1")}, 2, nil, "--nnodes stands after --: invalid: how many machines there are says --nodes N (or --on HOST,HOST), and each machine is told its own"},
		"a count in short":   {VLLM, Serve{Model: "m", Args: words("-n=3")}, 1, nil, "--nnodes stands after --"},
		"a rank":             {VLLM, Serve{Model: "m", Args: words("--node_rank=1")}, 2, nil, "--node-rank stands after --: invalid: which machines these are, and in which order, says --on HOST,HOST"},
		"an address":         {VLLM, Serve{Model: "m", Args: words("--master-addr 1.2.3.4")}, 2, nil, "--master-addr stands after --: invalid: which machines these are"},
		"no API":             {VLLM, Serve{Model: "m", Args: words("--headless")}, 2, nil, "--headless stands after --: invalid: each machine is told its own: leave it out"},
		"SGLang's count":     {SGLang, Serve{Model: "m", Args: words("--nnodes 3")}, 2, nil, "--nnodes stands after --"},
		"SGLang's address":   {SGLang, Serve{Model: "m", Args: words("--dist-init-addr=h:1")}, 2, nil, "--dist-init-addr stands after --"},
		"three segments":     {VLLM, Serve{Model: "a/b/c"}, 1, nil, "model a/b/c: invalid: it is no name on Hugging Face (OWNER/NAME); a folder is named by its full path"},
		"SGLang's key":       {SGLang, Serve{Model: "m", Args: words("--api-key k")}, 1, nil, "SGLang takes it in no other way: leave it out, and put a proxy"},
		"TensorRT's key":     {TRTLLM, Serve{Model: "m", Args: words("--api-key k")}, 1, nil, "trtllm-serve asks for none"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := serving(tc.nodes, tc.serve)
			if tc.change != nil {
				tc.change(&r)
			}
			w, err := Find(tc.workload)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = w.Spec(r); err == nil || !strings.Contains(err.Error(), tc.want) || !errors.Is(err, launcher.ErrInvalid) {
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
		change func(*Request)
		told   bool
	}{
		"known":                 {2, func(*Request) {}, false},
		"from a client":         {2, func(r *Request) { r.Away = true }, true},
		"in an image":           {2, func(r *Request) { r.Container = &launcher.Container{Image: "i"} }, true},
		"no PATH":               {2, func(r *Request) { r.Environ = nil }, true},
		"one machine":           {1, func(r *Request) { r.Away = true }, false},
		"a name":                {2, func(r *Request) { r.Away, r.Serve.Program = true, "trtllm-serve" }, false},
		"the user's":            {2, func(r *Request) { r.Away, r.Env = true, []string{"PATH=/opt/x/bin:/bin"} }, false},
		"the user's, unchanged": {2, func(r *Request) { r.Away, r.Env = true, []string{"PATH"} }, false},
		"a recipe's": {2, func(r *Request) {
			r.Container, r.Serve.Env = &launcher.Container{Image: "i"}, []string{"PATH=/opt/x/bin:/bin"}
		}, false},
	} {
		r := serving(tc.nodes, Serve{Model: "org/model", Program: program})
		r.Environ = append(r.Environ, "PATH=/usr/bin")
		tc.change(&r)
		const want = "/opt/x/bin/trtllm-llmapi-launch calls the python and python3 of its PATH, which is not known here, so that those of /opt/x/bin are not put first: give --env PATH=/opt/x/bin:... for that"
		if got := slices.Contains(ServeNotes(TRTLLM, r), want); got != tc.told {
			t.Errorf("%s: %q", name, ServeNotes(TRTLLM, r))
		}
	}
}

// A recipe's command says on how many machines it runs, where nobody else does.
func TestServeNodesFromCommand(t *testing.T) {
	command := strings.Fields("vllm serve m --tensor-parallel-size 2 --pipeline_parallel_size=2")
	for nodes, want := range map[int]string{0: "4 --tp 2 --pp 2", 4: "4 --tp 2 --pp 2", 2: "2 --tp 2", 1: "1 --tp 1", 3: "3 --pp 3"} {
		z, n, err := ServeSizes(VLLM, serving(nodes, Serve{Model: "m", Command: command}))
		if got := fmt.Sprint(n, " ", z); err != nil || got != want {
			t.Errorf("--nodes %d: %s, %v, want %s", nodes, got, err, want)
		}
	}
}

func TestParseModel(t *testing.T) {
	m, err := ParseModel([]byte(`{"architectures":["X"],"text_config":{"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"num_hidden_layers":4,
		"max_position_embeddings":262144,"num_experts":128,"layer_types":["linear_attention","linear_attention","linear_attention","full_attention"]}}`))
	want := Model{Heads: 32, KVHeads: 4, HeadDim: 128, Layers: 4, Experts: 128, MaxLen: 262144, KVPerToken: 1 * 2 * 4 * 128}
	if d := cmp.Diff(want, m); err != nil || d != "" {
		t.Error(err, d)
	}
	m, err = ParseModel([]byte(`{"num_attention_heads":128,"num_key_value_heads":128,"num_hidden_layers":61,"kv_lora_rank":512,"qk_rope_head_dim":64,"n_routed_experts":256}`))
	if err != nil || m.KVPerToken != 61*576 || !m.Latent || m.Experts != 256 || m.Bytes != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	for _, text := range []string{"", "[]", `"x"`, `{"num_attention_heads":`, strings.Repeat("[", 1e6)} {
		if _, err := ParseModel([]byte(text)); err == nil {
			t.Errorf("%.20s was taken for a model", text)
		}
	}
}

// A field of another kind is one that its model means otherwise: no reason to refuse a launch.
func TestParseModelOfAnotherKind(t *testing.T) {
	for text, want := range map[string]Model{
		`{"num_attention_heads":"many","num_hidden_layers":8}`:                                                                     {Layers: 8},
		`{"num_attention_heads":[8,16],"num_key_value_heads":[2,4],"head_dim":64,"num_hidden_layers":28}`:                          {HeadDim: 64, Layers: 28}, // OpenELM
		`{"num_attention_heads":-8,"num_hidden_layers":1e308,"max_position_embeddings":1e6,"num_experts":0.5}`:                     {MaxLen: 1e6},
		`{"text_config":5,"llm_config":{"num_attention_heads":4,"hidden_size":64},"layer_types":{"0":"x"}}`:                        {Heads: 4, KVHeads: 4, HeadDim: 16},
		`{"num_hidden_layers":1073741824,"num_attention_heads":1073741824,"num_key_value_heads":1073741824,"head_dim":1073741824}`: {Heads: 1 << 30, KVHeads: 1 << 30, HeadDim: 1 << 30, Layers: 1 << 30},
	} {
		m, err := ParseModel([]byte(text))
		if d := cmp.Diff(want, m); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", text, err, d)
		}
	}
}

// SGLang over several machines may listen where each of them can.
func TestSGLangListensOnAll(t *testing.T) {
	for host, nodes := range map[string]int{"0.0.0.0": 2, "::": 2, "127.0.0.1": 2, "localhost": 2, "10.0.0.11": 1} {
		if _, err := sglangSpec(serving(nodes, Serve{Model: "m", Host: host})); err != nil {
			t.Errorf("--host %s on %d: %v", host, nodes, err)
		}
	}
}

// Weights are looked for where the server looks, and another user's folders are not guessed.
func TestServeShowsCaches(t *testing.T) {
	const std = "/home/ada/.cache/huggingface"
	for name, tc := range map[string]struct {
		change func(*Request)
		cache  string
		mounts int
	}{
		"the caller's":         {func(*Request) {}, std, 4},
		"HF_HOME of the shell": {func(r *Request) { r.Environ = append(r.Environ, "HF_HOME=/shell") }, "/shell", 4},
		"--env HF_HOME": {func(r *Request) {
			r.Environ = append(r.Environ, "HF_HOME=/shell")
			r.Env = []string{"HF_HOME=/data/hf"}
		}, "/data/hf", 4},
		"--env, from a client":  {func(r *Request) { r.Away, r.Env = true, []string{"HF_HOME=/data/hf"} }, "/data/hf", 4},
		"another user's":        {func(r *Request) { r.Job.User, r.Environ = "alice", append(r.Environ, "HF_HOME=/root/hf") }, "", 0},
		"another's, and a flag": {func(r *Request) { r.Job.User, r.Container.ModelCache = "alice", "/models" }, "/models", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := serving(1, Serve{Model: "org/model"})
			r.Container, r.Workdir = &launcher.Container{Image: "i"}, ""
			tc.change(&r)
			spec, err := vllmSpec(r)
			if err != nil {
				t.Fatal(err)
			}
			st := spec.MainStage()
			if c := st.Container; c.ModelCache != tc.cache || len(c.Mounts) != tc.mounts || c.CacheOffered != (tc.cache != "" && tc.mounts > 0) {
				t.Errorf("cache %q (offered %t), mounts %v", c.ModelCache, c.CacheOffered, c.Mounts)
			}
			seen := "" // by the server, of which the last counts
			for _, v := range st.Env {
				if v.Name == "HF_HOME" {
					seen = v.Value.String()
				}
			}
			if tc.cache != std && tc.mounts > 0 && seen != tc.cache || tc.mounts == 0 && seen != "" {
				t.Errorf("HF_HOME is %q", seen)
			}
		})
	}
}

// Each server's own names of its flags are read after --, and no other's.
func TestArgsSay(t *testing.T) {
	for line, want := range map[string]Serve{
		"vllm --tensor-parallel-s 4 -pp=2 -dp 3 --port 1 --host a --distributed-executor-backend mp": {TP: 4, PP: 2, DP: 3, Port: 1, Host: "a", Backend: BackendNative},
		"vllm --distributed_executor_backend=ray --port nine":                                        {Backend: BackendRay, Port: 1},
		"sglang --tp 2 --pp-size 3 --port 7 -dp 2 --distributed-executor-backend ray":                {TP: 2, PP: 3, Port: 7},
		"trtllm --tp_size 2 --host b --data-parallel-size 2":                                         {TP: 2, Host: "b"},
		"vllm --enforce-eager": {},
	} {
		words := strings.Fields(line)
		if diff := cmp.Diff(want, ArgsSay(words[0], words[1:])); diff != "" {
			t.Errorf("%s:\n%s", line, diff)
		}
	}
}
