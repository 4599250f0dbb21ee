package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// vllmEngine is vLLM. The flags are those of vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py;
// the image is NVIDIA's for DGX Spark (github.com/NVIDIA/dgx-spark-playbooks).
func vllmEngine() Engine {
	return Engine{
		Name: "vllm", Title: "vLLM", Help: vllmHelp(), Image: "nvcr.io/nvidia/vllm:26.05-py3",
		Program: Option{Name: "vllm", Usage: "the `PROGRAM` vllm of the machines " +
			"(default: $VIRTUAL_ENV/bin/vllm, else vllm)"},
		Options: []Option{
			{Name: "ray", Usage: "the `PROGRAM` ray, for --backend ray (default: $VIRTUAL_ENV/bin/ray, else ray)",
				Text: func(r *workloads.Request) *string { return &r.Ray.Program }},
			{Name: "ray-arg", Usage: "a further `ARGUMENT` of each ray start; repeat for more",
				List: func(r *workloads.Request) *[]string { return &r.Ray.Args }},
		},
		Port:   8000,
		TP:     Flag{Name: "--tensor-parallel-size", Least: "--ten", Other: []string{"-tp"}},
		PP:     Flag{Name: "--pipeline-parallel-size", Least: "--pip", Other: []string{"-pp"}},
		DP:     Flag{Name: "--data-parallel-size", Other: []string{"-dp", "--data-parallel"}},
		Host:   Flag{Name: "--host"},
		Listen: Flag{Name: "--port"},
		Served: Flag{Name: "--served-model-name", Least: "--serv"},
		decided: []Flag{
			{Name: "--nnodes", Least: "--nn", Other: []string{"-n"}, ours: "--nodes"},
			{Name: "--node-rank", Least: "--node-r", Other: []string{"-r"}, ours: "--on"},
			{Name: "--master-addr", Least: "--master-a", ours: "--on"},
			{Name: "--master-port", Least: "--master-p"},
			{Name: "--headless", Least: "--headl", Bare: true},
			{Name: "--data-parallel-address", Other: []string{"-dpa"}},
			{Name: "--data-parallel-rpc-port", Other: []string{"-dpp"}},
		},
		Backends: &Backends{
			Flag: Flag{Name: "--distributed-executor-backend", Least: "--distributed-e"},
			// uni: one process, as good as none
			Values: map[string]string{"ray": workloads.BackendRay, "mp": workloads.BackendNative, "uni": ""},
			Ask:    vllmQuestion,
			Knows: func(help string) bool {
				return strings.Contains(help, "--nnodes") && strings.Contains(help, "--headless")
			},
			Sign: "--nnodes",
		},
		Key: Key{Secret: "VLLM_API_KEY", Remedy: "give it with --secret VLLM_API_KEY", Flagged: true},
		memory: memory{ // vllm/config/cache.py; of its worker for CPUs vllm/v1/worker/cpu_worker.py
			Share: 0.9, Flag: Flag{Name: "--gpu-memory-utilization", Least: "--gpu-memory-u"},
			Cache: Flag{Name: "--kv-cache-memory-bytes", Least: "--kv-cache-m"}, CacheVar: "VLLM_CPU_KVCACHE_SPACE",
			limit:  vllmLimit,
			limits: []Flag{{Name: "--gpu-memory-utilization", Least: "--gpu-memory-u"}, {Name: "--kv-cache-memory-bytes", Least: "--kv-cache-m"}},
		},
		compiles: append(kernelCaches(), "VLLM_CACHE_ROOT"), address: "VLLM_HOST_IP", // vllm/envs.py
		Recipes: Recipes{
			Runtimes: map[string]string{"vllm": "", "vllm-distributed": workloads.BackendNative,
				"vllm-ray": workloads.BackendRay, "eugr-vllm": workloads.BackendRay},
			Commands: [][]string{{"vllm", "serve"}},
			Model:    Flag{Name: "--model"}, Positional: true, Revision: revision, Named: true,
			Dropped: []Flag{
				{Name: "--data-parallel-rank", Other: []string{"-dpn"}},
				{Name: "--data-parallel-start-rank", Other: []string{"-dpr"}},
				{Name: "--data-parallel-size-local", Other: []string{"-dpl"}},
				{Name: "--data-parallel-backend", Other: []string{"-dpb"}},
				{Name: "--data-parallel-hybrid-lb", Other: []string{"-dph"}, Bare: true},
				{Name: "--data-parallel-external-lb", Other: []string{"-dpe"}, Bare: true},
			},
		},
		Signs:  launcher.Server{Metrics: vllmMetrics, Log: vllmLog},
		decide: decideVLLM, stages: vllmStages,
	}
}

// vllmMetrics: a histogram counts the steps of its engine, and the share of the KV cache that is taken grows
// while a long prompt is read in chunks, which its counter of prompt tokens counts at the end.
var vllmMetrics = launcher.ServerMetrics{
	Running: "vllm:num_requests_running", Generated: "vllm:generation_tokens_total", Progress: []string{
		"vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count",
		"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
	},
}

// vllmLog has the texts of vLLM 0.32: vllm/logger.py; vllm/v1/engine/utils.py, exceptions.py, core_client.py;
// vllm/v1/executor/multiproc_executor.py. A worker that aborts (6) may do so over a lost peer.
var vllmLog = launcher.ServerLog{
	Prefix: `^(?:\x1b\[[0-9;]*m)*\([^() ]+ pid=\d+\)(?:\x1b\[[0-9;]*m)* ` +
		`(?:(?:\x1b\[[0-9;]*m)*(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:\x1b\[[0-9;]*m)* ` +
		`(?:\x1b\[[0-9;]*m)*\d\d-\d\d \d\d:\d\d:\d\d(?:\x1b\[[0-9;]*m)* ` +
		`(?:\x1b\[[0-9;]*m)*\[[^\]]*\](?:\x1b\[[0-9;]*m)* ?)?`,
	Elsewhere: `Engine core initialization failed|Engine process failed to start|See root cause above|EngineDeadError|` +
		`WorkerProc initialization failed|Worker failed with error`,
	Died: `Worker proc \S+ died unexpectedly \(exit code: -?\d+\)|RayWorkerProc rank=\S+ died unexpectedly|` +
		`engine core exited unexpectedly`,
	Vague:  `^engine core`,
	Struck: `Worker proc \S+ died unexpectedly \(exit code: -(?:4|7|8|9|11|31)\)`,
	Dead:   `EngineDeadError|encountered a fatal error|died unexpectedly|engine core exited unexpectedly`,
	Causes: []string{
		`Available memory on node .* is less than .*`, // on a CPU
		`Free memory on device .* is less than desired GPU memory utilization .*`,
		`No available memory for the cache blocks.*`,
		`.*larger than the available KV cache memory.*`,
	},
}

// perNode are variables that differ from node to node. vLLM's Ray executor gives each of its
// workers all VLLM_, NCCL_, UCX_ and HF_ variables of the head's (vllm/ray/ray_env.py), in the
// place of the worker's own; but for these, as a file says that it reads.
func perNode() []string {
	return slices.Concat([]string{"VLLM_HOST_IP", "VLLM_CONFIG_ROOT", "VLLM_CACHE_ROOT", "UCX_NET_DEVICES"},
		envgen.NCCLVariables(), []string{"NCCL_HOSTID"})
}

// layNotCarried writes that file before it becomes the server: into the folder that its user has
// for the job, unless the user has one of vLLM's own, where a file that lies there is left alone.
const layNotCarried = `: "${VLLM_CONFIG_ROOT:=${TORCHELASTIC_ERROR_FILE%/*}}"
export VLLM_CONFIG_ROOT
mkdir -p "$VLLM_CONFIG_ROOT"
f=$VLLM_CONFIG_ROOT/ray_non_carry_over_env_vars.json
[ -e "$f" ] || printf '%s\n' "$0" >"$f"
exec "$@"`

// decideVLLM settles what a request for it comes to, and by which backend.
func decideVLLM(e Engine, r workloads.Request) (served, error) {
	words := r.Serve.Command
	if len(words) == 0 {
		words = []string{program(r, "vllm"), "serve", r.Serve.Model}
	}
	s, err := e.settle(r, words)
	if err != nil {
		return served{}, err
	}
	s.backend, err = s.decideBackend(e.Backends.Flag, r.Serve.Backend)
	return s, err
}

// decideBackend decides between Ray and vLLM's own, and takes the flag out of the command.
func (s *served) decideBackend(flag Flag, asked string) (string, error) {
	said, inCommand := flag.In(s.words)
	s.words = flag.without(s.words)
	if after, given := flag.In(s.args); given {
		said, inCommand, s.given[flag.Name] = after, true, true
	}
	meant := workloads.BackendNative
	if said == workloads.BackendRay {
		meant = workloads.BackendRay
	}
	switch {
	case asked != "" && asked != workloads.BackendNative && asked != workloads.BackendRay:
		return "", fmt.Errorf("--backend %s: %w: want ray or native", asked, launcher.ErrInvalid)
	case s.nodes == 1:
		if inCommand && said == workloads.BackendRay && !s.given[flag.Name] {
			s.note("one machine needs no Ray: %s %s is left out", flag.Name, said)
		}
		return workloads.BackendNative, nil
	case asked != "" && inCommand && asked != meant && s.given[flag.Name]:
		return "", fmt.Errorf("--backend %s: %w: %s %s stands after --: say one of them", asked, launcher.ErrInvalid,
			flag.Name, said)
	case asked != "" && inCommand && asked != meant:
		s.note("%s %s of the recipe's command gives way to --backend %s", flag.Name, said, asked)
		return asked, nil
	case asked != "":
		meant = asked
	}
	if meant == workloads.BackendRay && s.sizes.DP > 1 {
		return "", fmt.Errorf("--dp %d: %w: with Ray vLLM does not deal its copies out to machines: --backend native does",
			s.sizes.DP, launcher.ErrInvalid)
	}
	return meant, nil
}

// vllmStages serve a model with vLLM: on one node as it is, on several by its own means, or on a
// Ray cluster.
func vllmStages(e Engine, r workloads.Request, s served) (launcher.Spec, error) {
	if s.backend == workloads.BackendRay {
		return vllmOnRay(e, r, s)
	}
	env, err := r.Variables(e.Name, false, e.own()...)
	if err != nil {
		return launcher.Spec{}, err
	}
	serve := launcher.Stage{
		Name: serveStage, Main: true, Where: launcher.OnHead, RanksPerNode: 1,
		Env: env, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"),
	}
	stages := []launcher.Stage{}
	argv := append(launcher.Lits(s.words...), e.spread(s)...)
	if s.nodes > 1 {
		const master, rpc = serveStage + ".master", serveStage + ".dp"
		serve.Ports = append(serve.Ports, launcher.NamedPort{Name: master})
		argv = append(argv,
			launcher.Lit("--nnodes"), launcher.Of(launcher.NodeCount),
			launcher.Lit("--node-rank"), launcher.Of(launcher.NodeRank),
			launcher.Lit("--master-addr"), launcher.Of(launcher.Head),
			launcher.Lit("--master-port"), launcher.Of(launcher.HeadPortNamed(master)))
		if s.sizes.DP > 1 {
			serve.Ports = append(serve.Ports, launcher.NamedPort{Name: rpc})
			argv = append(argv, launcher.Lit("--data-parallel-rpc-port"), launcher.Of(launcher.HeadPortNamed(rpc)))
		}
		// They wait for the head, and have no API.
		workers := launcher.Stage{Name: serveWorkers, Where: launcher.OnRest, RanksPerNode: 1, Env: env, Workdir: r.Workdir}
		workers.Argv = append(append(argv[:len(argv):len(argv)], launcher.Lit("--headless")), launcher.Lits(s.args...)...)
		stages = append(stages, workers)
	}
	serve.Argv = append(append(argv[:len(argv):len(argv)], e.listens(s)...), launcher.Lits(s.args...)...)
	return e.finish(r, s, append(stages, serve)...)
}

// vllmOnRay is a Ray cluster first, and vLLM on its head then.
func vllmOnRay(e Engine, r workloads.Request, s served) (launcher.Spec, error) {
	own := e.own()
	head, workers, err := r.RayCluster(own...)
	if err != nil {
		return launcher.Spec{}, err
	}
	env, err := r.RayVariables(workloads.RayHead, append(own, workloads.RayAddress(e.Name))...)
	if err != nil {
		return launcher.Spec{}, err
	}
	names, err := json.Marshal(perNode())
	if err != nil {
		return launcher.Spec{}, err
	}
	argv := append(launcher.Lits("sh", "-ec", layNotCarried, string(names)), launcher.Lits(s.words...)...)
	argv = append(argv, e.spread(s)...)
	argv = append(argv, s.flag(e.Backends.Flag, launcher.Lit(workloads.BackendRay))...)
	argv = append(append(argv, e.listens(s)...), launcher.Lits(s.args...)...)
	serve := launcher.Stage{
		Name: serveStage, Main: true, Where: launcher.OnHead, PIDsOf: workloads.RayHead, RanksPerNode: 1,
		Argv: argv, Env: env, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"),
	}
	return e.finish(r, s, head, workers, serve)
}

// vllmQuestion is the command whose output tells whether the vLLM of a request spreads by its own means.
func vllmQuestion(r workloads.Request) []string {
	of := []string{program(r, "vllm")}
	if i := slices.Index(r.Serve.Command, "serve"); i > 0 {
		of = slices.Clone(r.Serve.Command[:i])
	}
	return append(of, "serve", "--help=all")
}

func vllmHelp() Help {
	return Help{
		Args: "MODEL [-- SERVER ARGS]", Short: "Serve a model with vLLM, on one machine or cut over several",
		Long: `Starts vLLM with MODEL, a name on Hugging Face or a folder of every machine, and prints
the URL once it answers /health. What it waits for meanwhile is told as it changes.

On several machines the model is cut; sparkrun help serving says how, and what else is
worked out for you. --dry-run shows each machine's command and variables.

The backend is how vLLM's processes find each other. native: each machine runs vllm
serve. ray: a Ray cluster comes up first, then vllm serve on its head. auto takes native
where the program knows it; another image than sparkrun's own, or the host's program, is
asked once, by running ` + "`vllm serve --help=all`" + ` on one machine (not with --dry-run).

SERVER ARGS go to vllm serve untouched. Those that say how the model is cut or where
the server listens are read, and not given twice.

` + serveHelp,
		Example: `  sparkrun launch vllm Qwen/Qwen3-32B
  sparkrun launch vllm Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 --nodes 2 --secret HF_TOKEN
  sparkrun launch vllm /models/llama --nodes 4 --tp 2 --pp 2 --port 8001 -- --max-model-len 32768

  # vLLM of the machines' own, in a virtual environment; what would run
  sparkrun launch vllm Qwen/Qwen3-8B --nodes 2 --runtime host --backend ray --dry-run`,
	}
}
