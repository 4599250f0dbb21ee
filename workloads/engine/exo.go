package engine

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/exo"
)

// exoEngine is exo (exo/main.py at v1.0.71), of which nobody publishes an image.
func exoEngine() Engine {
	return Engine{
		Name: "exo", Title: "exo", Help: exoHelp(), Model: OwnStore, Port: 52415,
		Program: Option{Name: "exo", Usage: "the `PROGRAM` exo of the machines (default: $VIRTUAL_ENV/bin/exo, else exo)"},
		Usages: map[string]string{
			"tp":   "tensor parallelism: all `N` machines work on each layer together",
			"pp":   "pipeline parallelism: the layers are dealt out to all `N` machines (default)",
			"port": "the port of its API; exo itself takes the one after it on every machine (default: 52415)",
		},
		// Without its API a node is not found at the addresses that it has (exo/utils/info_gatherer/net_profile.py).
		decided: []Flag{
			{Name: "--api-port", Least: "--a", ours: "--port names the port of the API"},
			{Name: "--libp2p-port", Least: "--l", ours: "sparkrun finds a free one"},
			{Name: "--bootstrap-peers", Least: "--b", ours: "exo dials them anew each 5 s and holds an election each time; " +
				"machines find each other by multicast"},
			{Name: "--no-api", Least: "--no-a", Bare: true, ours: "the machines find each other's addresses by it"},
		},
		noMetrics: "exo has no metrics, by which it would be seen",
		caches:    []string{exoModels},
		ranks:     map[string]func([]string) int{exo.GatewayCommand: exo.GatewayMain},
		decide:    decideExo, stages: exoStages,
	}
}

// exoModels is the folder of exo's models below the user's home (exo/shared/constants.py). A container
// has a home that is empty, and is shown the host's.
const exoModels = ".local/share/exo/models"

// The first of the stages of exo itself, which come before the one that serves, and its API.
const (
	exoHead = "head"
	exoAPI  = exoHead + ".api"
)

// decideExo settles what depends on the request alone.
func decideExo(e Engine, r workloads.Request) (served, error) {
	o := r.Serve
	bad := func(what, why string) (served, error) {
		return served{}, fmt.Errorf("%s: %w: %s", what, launcher.ErrInvalid, why)
	}
	switch {
	case r.RanksPerNode > 1:
		return bad(fmt.Sprintf("--nproc-per-node %d", r.RanksPerNode), "a Spark has one GPU, and one exo")
	case r.Job.MinNodes > 0:
		return bad(fmt.Sprintf("--nodes %d:%d", r.Job.MinNodes, r.Job.Nodes),
			"how a model is cut depends on the number of machines: give one")
	case o.Model != "" && !modelName().MatchString(o.Model):
		return bad("model "+o.Model, "exo takes a name on Hugging Face, such as mlx-community/Qwen3-30B-A3B-4bit; "+
			"a model that lies in /models/OWNER--NAME of every machine is found with --env EXO_MODELS_READ_ONLY_DIRS=/models")
	case r.Job.Service != nil && r.Job.Service.Probe == launcher.ProbeGenerate:
		return bad("--probe generate", "it asks at /v1/completions, which exo does not have")
	}
	for _, f := range e.decided {
		if _, given := f.In(o.Args); given {
			return bad(f.Name, "it is not for the arguments after --: "+f.remedy())
		}
	}
	s := served{args: o.Args, model: o.Model, port: e.Port, shown: o.Host, host: launcher.Lit(o.Host)}
	if o.Host == "" {
		s.host = launcher.Of(launcher.Management)
	} else if _, err := netip.ParseAddr(o.Host); err != nil {
		return bad("--host "+o.Host, "want an address, such as 0.0.0.0")
	}
	if o.Port != 0 {
		s.port = o.Port
	}
	if s.port < 1 || s.port > 1<<16-2 {
		return bad(fmt.Sprintf("--port %d", s.port), ""+
			"want 1 to 65534: exo itself takes the port after it, on every machine")
	}
	for _, size := range []struct {
		flag string
		n    int
	}{{"--tp", o.TP}, {"--pp", o.PP}} {
		if size.n > maxMachines {
			return bad(fmt.Sprintf("%s %d", size.flag, size.n), fmt.Sprintf("want 1 to %d", maxMachines))
		}
	}
	asked := workloads.Sizes{TP: o.TP, PP: o.PP}
	if s.nodes = r.Job.Nodes; s.nodes == 0 {
		s.nodes = max(len(r.Job.On), asked.Product())
	}
	if s.nodes > maxMachines {
		return bad(workloads.Machines(s.nodes), fmt.Sprintf("a model is served on %d at most", maxMachines))
	}
	whole := workloads.Sizes{TP: 1, PP: s.nodes, DP: 1}
	if o.TP > 1 {
		whole = workloads.Sizes{TP: s.nodes, PP: 1, DP: 1}
	}
	if o.TP < 0 || o.PP < 0 || asked.Product() > 1 && (max(o.TP, 1) != whole.TP || max(o.PP, 1) != whole.PP) {
		return bad(fmt.Sprintf("--tp %d --pp %d", max(o.TP, 1), max(o.PP, 1)),
			fmt.Sprintf("exo cuts a model one way, over all machines: on %s --pp %d or --tp %[2]d",
				workloads.Machines(s.nodes), s.nodes))
	}
	s.sizes = whole
	if o.Model == "" {
		s.note("no model is named: once it answers, one is placed in its dashboard, which is at the same URL, " +
			"or by POST /place_instance")
	}
	return s, nil
}

// exoStages start exo on each node, and before the first one's API a gateway, which has the model
// placed on all of them. exo's own API listens on every address and cannot be told otherwise
// (exo/api/main.py), and has no path that tells whether a model answers: both are the gateway's.
func exoStages(e Engine, r workloads.Request, s served) (launcher.Spec, error) {
	namespace := launcher.Value{{Lit: "sparkrun-"}, {Ref: launcher.Job}}
	own := []launcher.Var{{Name: "EXO_LIBP2P_NAMESPACE", Value: namespace, Source: e.Name}}
	if r.Container != nil && r.Job.User == "" && path.IsAbs(r.Home) && r.Home != "/" {
		models := path.Join(r.Home, exoModels)
		own = append(own, launcher.Var{Name: "EXO_DEFAULT_MODELS_DIR", Value: launcher.Lit(models), Source: e.Name})
	}
	env, err := r.Variables(e.Name, false, own...)
	if err != nil {
		return launcher.Spec{}, err
	}
	// The head is the master whatever elections there are: with a new one the model is forgotten.
	stages := []launcher.Stage{exoStage(r, s, exoHead, launcher.OnHead, env, "--force-master")}
	if s.nodes > 1 {
		stages = append(stages, exoStage(r, s, serveWorkers, launcher.OnRest, env))
	}

	sharding := exo.Pipeline
	if s.sizes.TP > 1 {
		sharding = exo.Tensor
	}
	serve := launcher.Stage{
		Name: serveStage, Main: true, Where: launcher.OnHead, RanksPerNode: 1,
		Env: env, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"),
		Argv: []launcher.Value{
			launcher.Of(launcher.Program), launcher.Lit(exo.GatewayCommand), s.host,
			launcher.Of(launcher.PortNamed(workloads.ServePort)), launcher.Of(launcher.PortNamed(exoAPI)),
			launcher.Lit(strconv.Itoa(s.nodes)), launcher.Lit(sharding), launcher.Lit(s.model),
		},
	}
	return e.finish(r, s, append(stages, serve)...)
}

// exoStage is exo on some of the nodes. Its API has one port on all of them.
func exoStage(r workloads.Request, s served, name string, where launcher.Where, env []launcher.Var,
	more ...string) launcher.Stage {
	api, peers := launcher.PortNamed(name+".api"), launcher.PortNamed(name+".peers")
	argv := []launcher.Value{launcher.Lit(program(r, "exo")), launcher.Lit("--api-port"), launcher.Of(api),
		launcher.Lit("--libp2p-port"), launcher.Of(peers)}
	return launcher.Stage{
		Name: name, Where: where, RanksPerNode: 1, Env: env, Workdir: r.Workdir,
		Argv:  append(append(argv, launcher.Lits(more...)...), launcher.Lits(s.args...)...),
		Ports: []launcher.NamedPort{{Name: name + ".api", At: uint16(s.port) + 1}, {Name: name + ".peers"}},
		Ready: []launcher.Probe{{Kind: launcher.ProbeHTTP, What: "exo's API", Port: launcher.Of(api), Path: "/node_id"}},
	}
}

func exoHelp() Help {
	return Help{
		Args: "[MODEL] [-- EXO ARGS]", Short: "Serve a model with exo, on one machine or spread over several",
		Long: `Starts exo (github.com/exo-explore/exo) on each machine and, once they have found each
other, has MODEL placed on all of them: a name on Hugging Face, of weights in MLX's form,
such as mlx-community/Llama-3.2-1B-Instruct-4bit. Once each part is loaded, launch prints
the URL, where exo's dashboard and its OpenAI API (/v1/chat/completions) are. Without a
MODEL it answers once the machines have found each other, and places what you ask for.

This is for exo 1.0.71, built from its source on the machines; PyPI's exo is another
program, and nobody publishes an image. By default the layers are dealt out to the
machines (--pp); --tp N, where N is the number of machines, cuts each. sparkrun help
serving tells who reaches it, where weights lie, and what exo can do.`,
		Example: `  sparkrun launch exo mlx-community/Llama-3.2-1B-Instruct-4bit --exo ~/exo/.venv/bin/exo
  sparkrun launch exo mlx-community/Qwen3-30B-A3B-4bit --nodes 2 --env EXO_MODELS_READ_ONLY_DIRS=/models -- --offline

  # exo alone, and a model when you want one
  sparkrun launch exo --nodes 2 --name exo
  curl http://spark1:52415/place_instance -H 'Content-Type: application/json' -d '{"model_id": "mlx-community/Llama-3.2-1B-Instruct-4bit", "min_nodes": 2}'`,
	}
}
