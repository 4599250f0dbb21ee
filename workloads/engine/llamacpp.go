package engine

import (
	"cmp"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// llamacppEngine is llama.cpp (github.com/ggml-org/llama.cpp): the flags are those of common/arg.cpp and
// tools/rpc/rpc-server.cpp at ggml 0.25.3. Its published images are built without RPC (.devops/cuda.Dockerfile).
func llamacppEngine() Engine {
	return Engine{
		Name: "llamacpp", Title: "llama.cpp", Help: llamacppHelp(), Model: File, Port: 8080,
		Program: Option{Name: "llama-server", Usage: "the `PROGRAM` llama-server of the machines " +
			"(default: the one in PATH)"},
		Options: []Option{{
			Name: "rpc-server", Usage: "the `PROGRAM` of the other machines (default: ggml-rpc-server beside llama-server)",
			Text: func(r *workloads.Request) *string { return &r.Serve.Worker },
		}},
		Usages: map[string]string{
			"tp": "tensor parallelism: llama.cpp has none over machines",
			"pp": "pipeline parallelism: the layers are dealt out to all `N` machines (default)",
		},
		Host:    Flag{Name: "--host"},
		Listen:  Flag{Name: "--port"},
		Served:  Flag{Name: "--alias", Other: []string{"-a"}},
		decided: []Flag{{Name: "--rpc", ours: "it is told where the others are: leave it out"}},
		hides: []hiding{
			{Flag{Name: "--ssl-cert-file"}, "by TLS"}, {Flag{Name: "--ssl-key-file"}, "by TLS"},
			{Flag{Name: "--api-prefix"}, "below a path of its own"},
		},
		Key:     Key{Secret: "LLAMA_API_KEY", Remedy: "give it with --secret LLAMA_API_KEY"},
		Recipes: Recipes{Model: Flag{Name: "--model", Other: []string{"-m", "-hf", "--hf-repo"}}},
		caches:  []string{".cache/llama.cpp"},
		Signs: launcher.Server{
			// A request's tokens are counted when it has ended; until then the steps of its engine are.
			Metrics: launcher.ServerMetrics{
				Running: "llamacpp:requests_processing", Generated: "llamacpp:tokens_predicted_total",
				Progress: []string{"llamacpp:n_decode_total", "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total"},
			},
			Log: launcher.ServerLog{
				Elsewhere: llamacppLost,
				Causes: []string{
					llamacppLost, `Failed to connect to \S+`, `RPC handshake failed for \S+`, `RPC server version mismatch: .*`,
					`cudaMalloc failed: out of memory`, `failed to open GGUF file .*`, `error loading model: .*`,
					`couldn't bind HTTP server socket, .*`,
				},
			},
		},
		decide: decideLlamacpp, stages: llamacppStages,
	}
}

// llamacppLost is what llama-server ends with (ggml/src/ggml-rpc/ggml-rpc.cpp, GGML_ABORT) when a machine of its own
// is gone.
const llamacppLost = `Remote RPC server crashed or returned malformed response`

// llamacppRPC is where workers listen: the head is told one port for all of them.
const llamacppRPC = 50052

func decideLlamacpp(e Engine, r workloads.Request) (served, error) {
	model := r.Serve.Model
	if strings.HasSuffix(model, ".gguf") && !path.IsAbs(model) {
		return served{}, fmt.Errorf("model %s: %w: a file is named by its full path, or from ./", model,
			launcher.ErrInvalid)
	}
	from := "-hf"
	if path.IsAbs(model) {
		from = "-m"
	}
	s, err := e.settle(r, []string{cmp.Or(r.Serve.Program, "llama-server"), from, model}) // no virtual environment has it
	if e.Served.Stands(s.args) {
		s.model, _, _ = strings.Cut(s.model, ",") // of several names; the server lists the others
	}
	return s, err
}

// llamacppStages serve a model with llama.cpp: llama-server on the head, which alone reads the model, and deals
// out its layers to an RPC server on each other node. Where both have RDMA they find that by themselves.
func llamacppStages(e Engine, r workloads.Request, s served) (launcher.Spec, error) {
	env, err := r.Variables(e.Name, false)
	if err != nil {
		return launcher.Spec{}, err
	}
	serve := launcher.Stage{
		Name: serveStage, Main: true, Where: launcher.OnHead, RanksPerNode: 1,
		Env: env, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"), // which answers 503 while the model is loaded
		Argv: launcher.Lits(s.words...),
	}
	if path.IsAbs(r.Serve.Model) && r.Container == nil { // others have no need of it
		serve.Files = []string{r.Serve.Model}
	}
	var stages []launcher.Stage
	if s.nodes > 1 {
		const rpc = serveWorkers + ".rpc"
		worker := r.Serve.Worker
		if worker == "" {
			worker = path.Join(path.Dir(s.words[0]), "ggml-rpc-server")
		}
		stages = append(stages, launcher.Stage{
			Name: serveWorkers, Where: launcher.OnRest, RanksPerNode: 1, Env: env, Workdir: r.Workdir,
			Ports: []launcher.NamedPort{{Name: rpc, At: llamacppRPC}},
			Ready: []launcher.Probe{{Kind: launcher.ProbeTCP, What: "the RPC server",
				Port: launcher.Of(launcher.PortNamed(rpc))}},
			Argv: append(launcher.Lits(worker, "--host"), launcher.Of(launcher.NodeAddr),
				launcher.Lit("--port"), launcher.Lit(strconv.Itoa(llamacppRPC))),
		})
		serve.Argv = append(serve.Argv, launcher.Lit("--rpc"), launcher.Of(launcher.RestAt(llamacppRPC)))
	}
	if !(Flag{Name: "--metrics", Bare: true}).Stands(s.args) { // a wedge is seen in them
		serve.Argv = append(serve.Argv, launcher.Lit("--metrics"))
	}
	serve.Argv = append(append(serve.Argv, e.listens(s)...), launcher.Lits(s.args...)...)
	return e.finish(r, s, append(stages, serve)...)
}

func llamacppHelp() Help {
	return Help{
		Args: "MODEL [-- SERVER ARGS]", Short: "Serve a GGUF model with llama.cpp, on one machine or spread over several",
		Long: `Starts llama-server (github.com/ggml-org/llama.cpp) with MODEL, a .gguf file of the
first machine or a name on Hugging Face (OWNER/NAME[:QUANT]), which it fetches there,
and prints the URL once it answers /health: 503 while it loads, 200 then. Its API is
OpenAI's.

On several machines the others run ggml-rpc-server (--rpc-server names another, as older
builds have it), and llama-server deals out the model's layers to all of them, by their
memory: -- --tensor-split says otherwise. All of them are of one build, with
-DGGML_RPC=ON. Only the first machine needs the file. The RPC servers do what they are
told by whoever reaches them: they listen at port 50052 on the network that the job
meets on, and the packet filter lets in the job's machines alone. Between ports with
RDMA the build uses that; --env GGML_RPC_NO_RDMA=1 has it use TCP.

It runs the machines' own programs; images of llama.cpp are published without RPC, and
--image takes one of yours, to which the folder of MODEL is shown on every machine.

It listens on the first machine's address on the management network, and on no other;
--host 0.0.0.0 has it listen on all. --secret LLAMA_API_KEY has it ask for a key; its
metrics are then not read. --api-key and --hf-token in SERVER ARGS are refused: others
would see them there.

SERVER ARGS go to llama-server untouched. Heads, size and memory of a model are not
checked beforehand.

It is a service: launch prints where it answers and leaves, and it goes on until
sparkrun stop. --restart, --autostart, --probe and --on-wedge say what becomes of it
meanwhile.`,
		Example: `  sparkrun launch llamacpp /models/qwen3-30b-a3b-q4_k_m.gguf -- --ctx-size 32768
  sparkrun launch llamacpp ./big-q8_0-00001-of-00004.gguf --nodes 2 --llama-server ~/llama.cpp/build/bin/llama-server
  sparkrun launch llamacpp ggml-org/gpt-oss-120b-GGUF --nodes 2 --secret HF_TOKEN --dry-run`,
	}
}
