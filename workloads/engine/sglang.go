package engine

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// sglangEngine is SGLang. The flags are those of sglang/srt/server_args.py; the image is SGLang's own, which
// has no tag for DGX Spark.
func sglangEngine() Engine {
	return Engine{
		Name: "sglang", Title: "SGLang", Help: sglangHelp(), Image: "lmsysorg/sglang:v0.5.18",
		Program: Option{Name: "python", Usage: "the interpreter that has SGLang " +
			"(default: $VIRTUAL_ENV/bin/python3, else python3)"},
		Port:   30000,
		TP:     Flag{Name: "--tp-size", Other: []string{"--tensor-parallel-size", "--tp"}},
		PP:     Flag{Name: "--pp-size", Other: []string{"--pipeline-parallel-size", "--pp"}},
		Host:   Flag{Name: "--host"},
		Listen: Flag{Name: "--port"},
		Served: Flag{Name: "--served-model-name", Least: "--serv"},
		decided: []Flag{
			{Name: "--nnodes", Least: "--nn", ours: "--nodes"},
			{Name: "--node-rank", Least: "--node-r", ours: "--on"},
			{Name: "--dist-init-addr", Least: "--dist-init", Other: []string{"--nccl-init-addr"}, ours: "--on"},
		},
		Key: Key{Remedy: "SGLang takes it in no other way: leave it out, and put a proxy that asks for one before it",
			Flagged: true},
		memory: memory{limit: sglangLimit, limits: []Flag{{Name: "--mem-fraction-static"}}},
		compiles: append(kernelCaches(), "SGLANG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR", "SGLANG_DG_CACHE_DIR", // srt/environ.py
			"TVM_FFI_CACHE_DIR"), // jit_kernel/utils.py
		address: "SGLANG_HOST_IP",
		Recipes: Recipes{
			Runtimes: map[string]string{"sglang": ""},
			Commands: [][]string{{"sglang", "serve"}, {"python3", "-m", "sglang.launch_server"},
				{"python", "-m", "sglang.launch_server"}},
			Model: Flag{Name: "--model-path", Other: []string{"--model"}}, Revision: revision, Named: true,
			Keys: map[string]string{"gpu_memory_utilization": "--mem-fraction-static", "max_model_len": "--context-length"},
		},
		// It counts a request's tokens when it has ended; what moves before is its throughput, and the tokens that it
		// holds.
		Signs: launcher.Server{Metrics: launcher.ServerMetrics{
			Running: "sglang:num_running_reqs", Generated: "sglang:generation_tokens_total", Throughput: "sglang:gen_throughput",
			Progress: []string{
				"sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:realtime_tokens_total",
				"sglang:gen_throughput", "sglang:num_used_tokens", "sglang:token_usage", "sglang:cached_tokens_total",
			},
		}},
		decide: decideSGLang, stages: sglangStages,
	}
}

func decideSGLang(e Engine, r workloads.Request) (served, error) {
	words := r.Serve.Command
	if len(words) == 0 {
		words = []string{program(r, "python3"), "-m", "sglang.launch_server", "--model-path", r.Serve.Model}
	}
	s, err := e.settle(r, words)
	if err != nil {
		return served{}, err
	}
	if a, err := netip.ParseAddr(s.shown); s.nodes > 1 && s.shown != "" && s.shown != "localhost" &&
		(err != nil || !a.IsUnspecified() && !a.IsLoopback()) {
		return served{}, fmt.Errorf("--host %s: %w: SGLang listens on every machine, of which one alone has that "+
			"address: --host 0.0.0.0, or leave it out", s.shown, launcher.ErrInvalid)
	}
	return s, nil
}

// sglangStages serve a model with SGLang: the same program on each node, of which the first
// answers. The others listen too, and answer /health whatever becomes of the model.
func sglangStages(e Engine, r workloads.Request, s served) (launcher.Spec, error) {
	serve := launcher.Stage{
		Name: serveStage, Main: true, RanksPerNode: 1, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health_generate"),
	}
	var err error
	if serve.Env, err = r.Variables(e.Name, false, e.own()...); err != nil {
		return launcher.Spec{}, err
	}
	argv := append(launcher.Lits(s.words...), e.spread(s)...)
	if s.nodes > 1 {
		const meet = serveStage + ".meet"
		serve.Ports = append(serve.Ports, launcher.NamedPort{Name: meet})
		at := launcher.Value{{Ref: launcher.Head}, {Lit: ":"}, {Ref: launcher.HeadPortNamed(meet)}}
		argv = append(argv, launcher.Lit("--nnodes"), launcher.Of(launcher.NodeCount),
			launcher.Lit("--node-rank"), launcher.Of(launcher.NodeRank), launcher.Lit("--dist-init-addr"), at)
	}
	if !slices.Contains(slices.Concat(s.words, s.args), "--enable-metrics") { // a wedge is seen in them
		argv = append(argv, launcher.Lit("--enable-metrics"))
	}
	serve.Argv = append(append(argv, e.listens(s)...), launcher.Lits(s.args...)...)
	return e.finish(r, s, serve)
}

func sglangHelp() Help {
	return Help{
		Args: "MODEL [-- SERVER ARGS]", Short: "Serve a model with SGLang, on one machine or cut over several",
		Long: `Starts SGLang with MODEL, a name on Hugging Face or a folder of every machine, and
prints the URL once it has generated a token (/health_generate). On several machines
each runs sglang.launch_server with its own --node-rank; the first one answers.

How the model is cut is worked out as for vllm (see launch vllm --help); copies of the
whole model (data parallelism) are SGLang's own business: -- --dp-size N and what goes
with it.

SERVER ARGS go to the server untouched. Those that say how the model is cut or where
the server listens are read, and not given twice.

` + serveHelp,
		Example: `  sparkrun launch sglang Qwen/Qwen3-32B --nodes 2
  sparkrun launch sglang /models/llama --tp 2 -- --context-length 32768 --mem-fraction-static 0.8
  sparkrun launch sglang Qwen/Qwen3-8B --runtime host --dry-run`,
	}
}
