package workloads

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// ExoGateway is the command of sparkrun that stands before exo's API: rank 0's node runs it as a
// rank, with the address and the port that clients know, exo's own port, the number of nodes, how
// the model is cut, and the model. It is not for people.
const ExoGateway = "exo-gateway"

// How exo cuts a model (exo/shared/types/worker/shards.py, Sharding).
const (
	ExoPipeline = "Pipeline"
	ExoTensor   = "Tensor"
)

// The first of the stages of exo itself, which come before the one that serves, and its API.
const (
	exoHead = "head"
	exoAPI  = exoHead + ".api"
)

// exoPort is where exo's API is looked for (exo/main.py, --api-port).
const exoPort = 52415

// exoDecided are those of exo's flags that are decided here (exo/main.py at v1.0.71); without its
// API a node is not found at the addresses that it has (exo/utils/info_gatherer/net_profile.py).
var exoDecided = []struct {
	flag   serverFlag
	remedy string
}{
	{serverFlag{name: "--api-port", least: "--a"}, "--port names the port of the API"},
	{serverFlag{name: "--libp2p-port", least: "--l"}, "sparkrun finds a free one"},
	{serverFlag{name: "--bootstrap-peers", least: "--b"}, "exo dials them anew each 5 s and holds an election each time; machines find each other by multicast"},
	{serverFlag{name: "--no-api", least: "--no-a", bare: true}, "the machines find each other's addresses by it"},
}

// exo decides what hangs on the request alone.
func (r Request) exo() (served, error) {
	o := r.Serve
	bad := func(what, why string) (served, error) {
		return served{}, fmt.Errorf("%s: %w: %s", what, launcher.ErrInvalid, why)
	}
	switch {
	case r.RanksPerNode > 1:
		return bad(fmt.Sprintf("--nproc-per-node %d", r.RanksPerNode), "a Spark has one GPU, and one exo")
	case r.Job.MinNodes > 0:
		return bad(fmt.Sprintf("--nodes %d:%d", r.Job.MinNodes, r.Job.Nodes), "how a model is cut hangs on the number of machines: give one")
	case o.Model != "" && !hubName.MatchString(o.Model):
		return bad("model "+o.Model, "exo takes a name on Hugging Face, such as mlx-community/Qwen3-30B-A3B-4bit; "+
			"a model that lies in /models/OWNER--NAME of every machine is found with --env EXO_MODELS_READ_ONLY_DIRS=/models")
	case r.Job.Service != nil && r.Job.Service.Probe == launcher.ProbeGenerate:
		return bad("--probe generate", "it asks at /v1/completions, which exo does not have")
	case r.Job.Service != nil && r.Job.Service.OnWedge == launcher.WedgeRestart:
		return bad("--on-wedge restart", "exo has no metrics, by which it would be seen")
	}
	for _, d := range exoDecided {
		if _, given := d.flag.in(o.Args); given {
			return bad(d.flag.name, "it is not for the arguments after --: "+d.remedy)
		}
	}
	s := served{args: o.Args, model: o.Model, port: exoPort, shown: o.Host, host: launcher.Lit(o.Host)}
	if o.Host == "" {
		s.host = launcher.Of(launcher.Management)
	} else if _, err := netip.ParseAddr(o.Host); err != nil {
		return bad("--host "+o.Host, "want an address, such as 0.0.0.0")
	}
	if o.Port != 0 {
		s.port = o.Port
	}
	if s.port < 1 || s.port > 1<<16-2 {
		return bad(fmt.Sprintf("--port %d", s.port), "want 1 to 65534: exo itself takes the port after it, on every machine")
	}
	for _, size := range []struct {
		flag string
		n    int
	}{{"--tp", o.TP}, {"--pp", o.PP}} {
		if size.n > maxMachines {
			return bad(fmt.Sprintf("%s %d", size.flag, size.n), fmt.Sprintf("want 1 to %d", maxMachines))
		}
	}
	asked := Sizes{TP: o.TP, PP: o.PP}
	if s.nodes = r.Job.Nodes; s.nodes == 0 {
		s.nodes = max(len(r.Job.On), asked.product())
	}
	if s.nodes > maxMachines {
		return bad(machines(s.nodes), fmt.Sprintf("a model is served on %d at most", maxMachines))
	}
	whole := Sizes{TP: 1, PP: s.nodes, DP: 1}
	if o.TP > 1 {
		whole = Sizes{TP: s.nodes, PP: 1, DP: 1}
	}
	if o.TP < 0 || o.PP < 0 || asked.product() > 1 && (max(o.TP, 1) != whole.TP || max(o.PP, 1) != whole.PP) {
		return bad(fmt.Sprintf("--tp %d --pp %d", max(o.TP, 1), max(o.PP, 1)), fmt.Sprintf("exo cuts a model one way, over all machines: on %s --pp %d or --tp %d", machines(s.nodes), s.nodes, s.nodes))
	}
	s.sizes = whole
	if o.Model == "" {
		s.note("no model is named: once it answers, one is placed in its dashboard, which is at the same URL, or by POST /place_instance")
	}
	return s, nil
}

// exoSpec starts exo on each node, and before the first one's API a gateway, which has the model
// placed on all of them. exo's own API listens on every address and cannot be told otherwise
// (exo/api/main.py), and has no path that tells whether a model answers: both are the gateway's.
func exoSpec(r Request) (launcher.Spec, error) {
	s, err := r.exo()
	if err != nil {
		return launcher.Spec{}, err
	}
	r.takesGPUs()
	own := []launcher.Var{{Name: "EXO_LIBP2P_NAMESPACE", Value: launcher.Value{{Lit: "sparkrun-"}, {Ref: launcher.Job}}, Source: EXO}}
	if models := r.exoModels(); models != "" {
		own = append(own, launcher.Var{Name: "EXO_DEFAULT_MODELS_DIR", Value: launcher.Lit(models), Source: EXO})
	}
	env, err := r.environmentOf(EXO, false, own...)
	if err != nil {
		return launcher.Spec{}, err
	}
	// The head is the master whatever elections there are: with a new one the model is forgotten.
	stages := []launcher.Stage{r.exoStage(s, exoHead, launcher.OnHead, env, "--force-master")}
	if s.nodes > 1 {
		stages = append(stages, r.exoStage(s, ServeWorkers, launcher.OnRest, env))
	}

	sharding := ExoPipeline
	if s.sizes.TP > 1 {
		sharding = ExoTensor
	}
	serve := launcher.Stage{
		Name: ServeStage, Main: true, Where: launcher.OnHead, RanksPerNode: 1, Env: env, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"),
		Argv: []launcher.Value{
			launcher.Of(launcher.Program), launcher.Lit(ExoGateway), s.host, launcher.Of(launcher.PortNamed(ServePort)), launcher.Of(launcher.PortNamed(exoAPI)),
			launcher.Lit(strconv.Itoa(s.nodes)), launcher.Lit(sharding), launcher.Lit(s.model),
		},
	}
	r.Job.Nodes = s.nodes
	r.Stdin, r.TTY = launcher.StdinNone, nil
	r.Job.Service = s.service(r.Job.Service, EXO)
	r.showExoModels()
	return finishSteps(r, EXO, append(stages, serve))
}

// exoStage is exo on some of the nodes. Its API has one port on all of them.
func (r Request) exoStage(s served, name string, where launcher.Where, env []launcher.Var, more ...string) launcher.Stage {
	api, peers := launcher.PortNamed(name+".api"), launcher.PortNamed(name+".peers")
	argv := []launcher.Value{launcher.Lit(r.program("exo")), launcher.Lit("--api-port"), launcher.Of(api), launcher.Lit("--libp2p-port"), launcher.Of(peers)}
	return launcher.Stage{
		Name: name, Where: where, RanksPerNode: 1, Env: env, Workdir: r.Workdir, Argv: append(append(argv, launcher.Lits(more...)...), launcher.Lits(s.args...)...),
		Ports: []launcher.NamedPort{{Name: name + ".api", At: uint16(s.port) + 1}, {Name: name + ".peers"}},
		Ready: []launcher.Probe{{Kind: launcher.ProbeHTTP, What: "exo's API", Port: launcher.Of(api), Path: "/node_id"}},
	}
}

// exoModels is the folder of exo's models where it runs in a container, whose home is empty: the
// one that it has on the host (exo/shared/constants.py). Empty: exo's own choice.
func (r Request) exoModels() string {
	if r.Container == nil || r.Job.User != "" || !path.IsAbs(r.Home) || r.Home == "/" {
		return ""
	}
	return path.Join(r.Home, ".local/share/exo/models")
}

// showExoModels shows it to the containers.
func (r *Request) showExoModels() {
	models := r.exoModels()
	if models == "" {
		return
	}
	c := *r.Container
	for _, m := range c.Mounts {
		if m.Target == models || strings.HasPrefix(models, m.Target+"/") {
			return
		}
	}
	c.Mounts = append(c.Mounts[:len(c.Mounts):len(c.Mounts)], launcher.Mount{Source: models, Target: models, Make: true})
	r.Container = &c
}
