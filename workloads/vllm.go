package workloads

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// vllmServer is vLLM's command line (vllm/engine/arg_utils.py, vllm/entrypoints/openai/cli_args.py).
var vllmServer = server{
	workload: VLLM, port: 8000,
	tp:     serverFlag{name: "--tensor-parallel-size", least: "--ten", other: []string{"-tp"}},
	pp:     serverFlag{name: "--pipeline-parallel-size", least: "--pip", other: []string{"-pp"}},
	dp:     serverFlag{name: "--data-parallel-size", other: []string{"-dp"}},
	host:   serverFlag{name: "--host"},
	listen: serverFlag{name: "--port"},
	served: serverFlag{name: "--served-model-name", least: "--serv"},
	decided: []serverFlag{
		{name: "--nnodes", least: "--nn", other: []string{"-n"}, ours: "--nodes"}, {name: "--node-rank", least: "--node-r", other: []string{"-r"}, ours: "--on"},
		{name: "--master-addr", least: "--master-a", ours: "--on"}, {name: "--master-port", least: "--master-p"}, {name: "--headless", least: "--headl", bare: true},
		{name: "--data-parallel-address", other: []string{"-dpa"}}, {name: "--data-parallel-rpc-port", other: []string{"-dpp"}},
	},
}

// vllmBackend is the flag that says how its processes find each other.
var vllmBackend = serverFlag{name: "--distributed-executor-backend", least: "--distributed-e"}

// How vLLM spreads over machines.
const (
	BackendNative = "native"
	BackendRay    = "ray"
)

// perNode are variables that differ from node to node. vLLM's Ray executor gives each of its
// workers all VLLM_, NCCL_, UCX_ and HF_ variables of the head's (vllm/ray/ray_env.py), in the
// place of the worker's own; but for these, as a file says that it reads.
var perNode = []string{
	"VLLM_HOST_IP", "VLLM_CONFIG_ROOT", "UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA", "NCCL_IB_DISABLE",
	"NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_SUBNET_AWARE_ROUTING", "NCCL_IB_SUBNET_PREFIX_LEN",
	"NCCL_IB_MERGE_NICS", "NCCL_ALGO", "NCCL_HOSTID",
}

// layNotCarried writes that file before it becomes the server: into the folder that its user has
// for the job, unless the user has one of vLLM's own, where a file that lies there is left alone.
const layNotCarried = `: "${VLLM_CONFIG_ROOT:=${TORCHELASTIC_ERROR_FILE%/*}}"
export VLLM_CONFIG_ROOT
mkdir -p "$VLLM_CONFIG_ROOT"
f=$VLLM_CONFIG_ROOT/ray_non_carry_over_env_vars.json
[ -e "$f" ] || printf '%s\n' "$0" >"$f"
exec "$@"`

// vllm decides what a request for it comes to, and by which backend.
func (r Request) vllm() (served, string, error) {
	words := r.Serve.Command
	if len(words) == 0 {
		words = []string{r.program("vllm"), "serve", r.Serve.Model}
	}
	s, err := vllmServer.settle(r, words)
	if err != nil {
		return served{}, "", err
	}
	backend, err := s.backend(r.Serve.Backend)
	return s, backend, err
}

// backend decides between Ray and vLLM's own, and takes the flag out of the command.
func (s *served) backend(asked string) (string, error) {
	said, inCommand := vllmBackend.in(s.words)
	s.words, _ = vllmBackend.without(s.words)
	if after, given := vllmBackend.in(s.args); given {
		said, inCommand, s.given[vllmBackend.name] = after, true, true
	}
	meant := BackendNative
	if said == BackendRay {
		meant = BackendRay
	}
	switch {
	case asked != "" && asked != BackendNative && asked != BackendRay:
		return "", fmt.Errorf("--backend %s: %w: want ray or native", asked, launcher.ErrInvalid)
	case s.nodes == 1:
		if inCommand && said == BackendRay && !s.given[vllmBackend.name] {
			s.note("one machine needs no Ray: %s %s is left out", vllmBackend.name, said)
		}
		return BackendNative, nil
	case asked != "" && inCommand && asked != meant && s.given[vllmBackend.name]:
		return "", fmt.Errorf("--backend %s: %w: %s %s stands after --: say one of them", asked, launcher.ErrInvalid, vllmBackend.name, said)
	case asked != "" && inCommand && asked != meant:
		s.note("%s %s of the recipe's command gives way to --backend %s", vllmBackend.name, said, asked)
		return asked, nil
	case asked != "":
		meant = asked
	}
	if meant == BackendRay && s.sizes.DP > 1 {
		return "", fmt.Errorf("--dp %d: %w: with Ray vLLM does not deal its copies out to machines: --backend native does", s.sizes.DP, launcher.ErrInvalid)
	}
	return meant, nil
}

// vllmSpec serves a model with vLLM: on one node as it is, on several by its own means, or on a
// Ray cluster.
func vllmSpec(r Request) (launcher.Spec, error) {
	s, backend, err := r.vllm()
	if err != nil {
		return launcher.Spec{}, err
	}
	r.takesGPUs()
	if backend == BackendRay {
		return r.vllmOnRay(s)
	}
	env, err := r.environmentOf(VLLM, false, ownAddress(VLLM))
	if err != nil {
		return launcher.Spec{}, err
	}
	serve := launcher.Stage{
		Name: ServeStage, Main: true, Where: launcher.OnHead, RanksPerNode: 1, Env: env, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"),
	}
	stages := []launcher.Stage{}
	argv := append(launcher.Lits(s.words...), vllmServer.spread(s)...)
	if s.nodes > 1 {
		const master, rpc = ServeStage + ".master", ServeStage + ".dp"
		serve.Ports = append(serve.Ports, launcher.NamedPort{Name: master})
		argv = append(argv,
			launcher.Lit("--nnodes"), launcher.Of(launcher.NodeCount), launcher.Lit("--node-rank"), launcher.Of(launcher.NodeRank),
			launcher.Lit("--master-addr"), launcher.Of(launcher.Head), launcher.Lit("--master-port"), launcher.Of(launcher.HeadPortNamed(master)))
		if s.sizes.DP > 1 {
			serve.Ports = append(serve.Ports, launcher.NamedPort{Name: rpc})
			argv = append(argv, launcher.Lit("--data-parallel-rpc-port"), launcher.Of(launcher.HeadPortNamed(rpc)))
		}
		// They wait for the head, and have no API.
		workers := launcher.Stage{Name: ServeWorkers, Where: launcher.OnRest, RanksPerNode: 1, Env: env, Workdir: r.Workdir}
		workers.Argv = append(append(argv[:len(argv):len(argv)], launcher.Lit("--headless")), launcher.Lits(s.args...)...)
		stages = append(stages, workers)
	}
	serve.Argv = append(append(argv[:len(argv):len(argv)], vllmServer.listens(s)...), launcher.Lits(s.args...)...)
	return s.finish(r, VLLM, append(stages, serve))
}

// vllmOnRay is a Ray cluster first, and vLLM on its head then.
func (r Request) vllmOnRay(s served) (launcher.Spec, error) {
	own := ownAddress(VLLM)
	head, workers, err := r.rayCluster(own)
	if err != nil {
		return launcher.Spec{}, err
	}
	env, err := r.rayEnv(RayHead, own, rayAddress(VLLM))
	if err != nil {
		return launcher.Spec{}, err
	}
	names, err := json.Marshal(perNode)
	if err != nil {
		return launcher.Spec{}, err
	}
	argv := append(launcher.Lits("sh", "-ec", layNotCarried, string(names)), launcher.Lits(s.words...)...)
	argv = append(argv, vllmServer.spread(s)...)
	argv = append(argv, s.flag(vllmBackend, launcher.Lit(BackendRay))...)
	argv = append(append(argv, vllmServer.listens(s)...), launcher.Lits(s.args...)...)
	serve := launcher.Stage{
		Name: ServeStage, Main: true, Where: launcher.OnHead, PIDsOf: RayHead, RanksPerNode: 1, Argv: argv, Env: env, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"),
	}
	return s.finish(r, VLLM, []launcher.Stage{head, workers, serve})
}

// ownAddress is where a node's vLLM is reached by the others; left alone it takes the address
// that has a route to the Internet.
func ownAddress(source string) launcher.Var {
	return launcher.Var{Name: "VLLM_HOST_IP", Value: launcher.Of(launcher.NodeAddr), Source: source}
}

// program is a server's, or Python, on the nodes.
func (r Request) program(name string) string {
	if r.Serve.Program != "" {
		return r.Serve.Program
	}
	if venv, _ := lookup(r.Environ, "VIRTUAL_ENV"); venv != "" && !r.Away && r.Container == nil {
		return path.Join(venv, "bin", name)
	}
	return name
}

// KnowsNodes tells whether vLLM's `vllm serve --help=all` is of one that spreads by its own
// means.
func KnowsNodes(help string) bool {
	return strings.Contains(help, "--nnodes") && strings.Contains(help, "--headless")
}

// NamesBackend tells whether the command of a request, or what stands after --, says how vLLM
// spreads.
func NamesBackend(r Request) bool {
	_, given := vllmBackend.in(slices.Concat(r.Serve.Command, r.Serve.Args))
	return given
}

// VLLMProgram is vLLM's program as a request names it.
func VLLMProgram(r Request) []string {
	if i := slices.Index(r.Serve.Command, "serve"); i > 0 {
		return slices.Clone(r.Serve.Command[:i])
	}
	return []string{r.program("vllm")}
}
