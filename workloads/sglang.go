package workloads

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
)

// sglangServer is SGLang's command line (sglang/srt/server_args.py).
var sglangServer = server{
	workload: SGLang, port: 30000,
	tp:     serverFlag{name: "--tp-size", other: []string{"--tensor-parallel-size", "--tp"}},
	pp:     serverFlag{name: "--pp-size", other: []string{"--pipeline-parallel-size", "--pp"}},
	host:   serverFlag{name: "--host"},
	listen: serverFlag{name: "--port"},
	served: serverFlag{name: "--served-model-name", least: "--serv"},
	decided: []serverFlag{
		{name: "--nnodes", least: "--nn", ours: "--nodes"}, {name: "--node-rank", least: "--node-r", ours: "--on"},
		{name: "--dist-init-addr", least: "--dist-init", other: []string{"--nccl-init-addr"}, ours: "--on"},
	},
}

func (r Request) sglang() (served, error) {
	words := r.Serve.Command
	if len(words) == 0 {
		words = []string{r.program("python3"), "-m", "sglang.launch_server", "--model-path", r.Serve.Model}
	}
	return sglangServer.settle(r, words)
}

// sglangSpec serves a model with SGLang: the same program on each node, of which the first
// answers. The others listen too, and answer /health whatever becomes of the model.
func sglangSpec(r Request) (launcher.Spec, error) {
	s, err := r.sglang()
	if err != nil {
		return launcher.Spec{}, err
	}
	if a, err := netip.ParseAddr(s.shown); s.nodes > 1 && s.shown != "" && s.shown != "localhost" && (err != nil || !a.IsUnspecified() && !a.IsLoopback()) {
		return launcher.Spec{}, fmt.Errorf("--host %s: %w: SGLang listens on every machine, of which one alone has that address: --host 0.0.0.0, or leave it out", s.shown, launcher.ErrInvalid)
	}
	r.takesGPUs()
	serve := launcher.Stage{
		Name: ServeStage, Main: true, RanksPerNode: 1, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health_generate"),
	}
	serve.Env, err = r.environmentOf(SGLang, false, launcher.Var{Name: "SGLANG_HOST_IP", Value: launcher.Of(launcher.NodeAddr), Source: SGLang})
	if err != nil {
		return launcher.Spec{}, err
	}
	argv := append(launcher.Lits(s.words...), sglangServer.spread(s)...)
	if s.nodes > 1 {
		const meet = ServeStage + ".meet"
		serve.Ports = append(serve.Ports, launcher.NamedPort{Name: meet})
		argv = append(argv, launcher.Lit("--nnodes"), launcher.Of(launcher.NodeCount), launcher.Lit("--node-rank"), launcher.Of(launcher.NodeRank),
			launcher.Lit("--dist-init-addr"), launcher.Value{{Ref: launcher.Head}, {Lit: ":"}, {Ref: launcher.HeadPortNamed(meet)}})
	}
	if !slices.Contains(slices.Concat(s.words, s.args), "--enable-metrics") { // a wedge is seen in them
		argv = append(argv, launcher.Lit("--enable-metrics"))
	}
	serve.Argv = append(append(argv, sglangServer.listens(s)...), launcher.Lits(s.args...)...)
	return s.finish(r, SGLang, []launcher.Stage{serve})
}
