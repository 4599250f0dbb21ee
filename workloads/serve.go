package workloads

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Serve are the options of the workloads that serve a model: vllm, sglang, trtllm, exo.
type Serve struct {
	// Model is a name on Hugging Face, or a folder of the nodes.
	Model string `json:"model,omitempty"`
	// Program is the server on the nodes: a path, or a name looked up in the ranks' PATH.
	// Empty means the caller's $VIRTUAL_ENV/bin/..., and the bare name where no virtual
	// environment is active, or the ranks run in containers.
	Program string `json:"program,omitempty"`
	// Command is the server's whole command as a recipe has it, in words and without what
	// spreads it over nodes; empty: it is made of Model. Flags in it that say how the model is
	// spread, or where it listens, are read, and written again as they were decided.
	Command []string `json:"command,omitempty"`
	// Args follow the command untouched: what stood after --. Those flags of them are read.
	Args []string `json:"args,omitempty"`
	// Backend is how vLLM spreads: "ray" or "native"; whoever asks the image for "auto"
	// does so before. Empty: what the command says, else native.
	Backend string `json:"backend,omitempty"`
	// TP, PP and DP are the sizes of tensor, pipeline and data parallelism; 0: from the
	// number of nodes and the model.
	TP int `json:"tp,omitempty"`
	PP int `json:"pp,omitempty"`
	DP int `json:"dp,omitempty"`
	// Host is what the server listens on; empty: the management address of rank 0's node.
	Host string `json:"host,omitempty"`
	// Port of the API; 0: the workload's default.
	Port int `json:"port,omitempty"`
	// Env are variables of a recipe, NAME=VALUE: they win over the workload's own, and the
	// user's over them.
	Env []string `json:"env,omitempty"`
	// Config is what the model's config.json says; nil: not known.
	Config *Model `json:"-"`
}

// Model is what the fit and the parallelism of a model hang on, as its config.json and
// safetensors index have it. 0: not said.
type Model struct {
	Heads, KVHeads, HeadDim, Layers int
	Experts                         int
	MaxLen                          int   // tokens
	Bytes                           int64 // of its weights
	// KVPerToken is how many numbers of the cache a token takes, on all machines together;
	// Latent: each machine of tensor parallelism keeps all of them.
	KVPerToken int64
	Latent     bool
}

// The stages of a job that serves, and its port for others.
const (
	ServeStage   = "serve"
	ServeWorkers = "workers"
	ServePort    = ServeStage + ".api"
)

// servePatience is how long a server may say nothing before it is ready: it compiles
// kernels, and fetches weights, without a word.
const servePatience = 30 * time.Minute

// maxMachines bounds on how many a model is served, and each of its sizes, so that their product is
// a number, too.
const maxMachines = 1024

// Workloads that serve a model.
const (
	VLLM   = "vllm"
	SGLang = "sglang"
	TRTLLM = "trtllm"
	EXO    = "exo"
)

// Serves tells whether a workload serves a model.
func Serves(workload string) bool {
	return workload == VLLM || workload == SGLang || workload == TRTLLM || workload == EXO
}

// DefaultImages are those in which the servers run unless somebody says otherwise: NVIDIA's
// for DGX Spark (github.com/NVIDIA/dgx-spark-playbooks), and SGLang's own, which has no tag for it.
// Of exo nobody publishes one.
func DefaultImages() map[string]string {
	return map[string]string{
		VLLM:   "nvcr.io/nvidia/vllm:26.05-py3",
		SGLang: "lmsysorg/sglang:v0.5.18",
		TRTLLM: "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc13",
	}
}

// server is how one program is told what all of them have to be told.
type server struct {
	workload string
	port     int // of its API, where nobody says
	// The sizes, where it listens, and the name that requests give; its flags.
	tp, pp, dp, host, listen, served serverFlag
	// flags are others that are decided here, and taken out of a recipe's command.
	decided []serverFlag
}

// served is a request to serve with all of it decided that hangs on no node.
type served struct {
	words []string // the command, without what is decided
	args  []string // what stood after --
	sizes Sizes
	nodes int
	host  launcher.Value
	// shown is Host where somebody said it; model the name that requests give.
	shown, model string
	port         int
	given        map[string]bool // flags that stand in args already
	notes        []string
}

func (s *served) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// settle decides what hangs on the request alone.
func (v server) settle(r Request, words []string) (served, error) {
	bad := func(format string, args ...any) (served, error) {
		return served{}, fmt.Errorf(format+": %w: %s", append(args[:len(args)-1:len(args)-1], launcher.ErrInvalid, args[len(args)-1])...)
	}
	o := r.Serve
	switch {
	case o.Model == "" && len(o.Command) == 0:
		return bad("%s", v.workload, "no model: sparkrun launch "+v.workload+" MODEL [flags] [-- SERVER ARGS]")
	case o.Model != "" && !path.IsAbs(o.Model) && !strings.Contains(o.Model, ":") && !hubName.MatchString(o.Model): // s3://, or a file of a repository
		return bad("model %s", o.Model, "it is no name on Hugging Face (OWNER/NAME); a folder is named by its full path, or from ./")
	case r.RanksPerNode > 1:
		return bad("--nproc-per-node %d", r.RanksPerNode, "a Spark has one GPU, and one process of the server")
	case r.Job.MinNodes > 0:
		return bad("--nodes %d:%d", r.Job.MinNodes, r.Job.Nodes, "how a model is cut hangs on the number of machines: give one")
	}
	s := served{words: words, args: o.Args, given: map[string]bool{}, model: o.Model}
	for _, text := range o.Env {
		if name, _, _ := strings.Cut(text, "="); slices.Contains(ownAddresses, name) {
			s.note("the recipe's %s is left out: each machine has its own", text)
		}
	}
	if err := v.noSecrets(slices.Concat(words, o.Args)); err != nil {
		return served{}, err
	}
	if err := v.findable(slices.Concat(words, o.Args)); err != nil {
		return served{}, err
	}
	for _, f := range v.decided {
		if f.stands(o.Args) {
			return served{}, fmt.Errorf("%s stands after --: %w: %s", f.name, launcher.ErrInvalid, f.remedy())
		}
		s.words, _ = f.without(s.words)
	}
	if err := v.readSizes(r, &s); err != nil {
		return served{}, err
	}
	if err := v.readListen(o, &s); err != nil {
		return served{}, err
	}
	if name, given := v.served.in(append(s.words[:len(s.words):len(s.words)], s.args...)); given && v.served.name != "" {
		s.model = name
	}
	return s, nil
}

// noSecrets refuses flags that hold one, and says where it is given instead.
func (v server) noSecrets(words []string) error {
	key := map[string]string{
		VLLM:   "give it with --secret VLLM_API_KEY",
		SGLang: "SGLang takes it in no other way: leave it out, and put a proxy that asks for one before it",
		TRTLLM: "trtllm-serve asks for none: leave it out, and put a proxy that does before it",
	}[v.workload]
	for _, no := range []struct {
		flag   serverFlag
		remedy string
	}{
		{serverFlag{name: "--api-key", least: "--api-k"}, key},
		{serverFlag{name: "--admin-api-key", least: "--adm"}, "leave it out"}, // SGLang's
		{serverFlag{name: "--ssl-keyfile-password", least: "--ssl-keyfile-"}, "leave it out"},
		{serverFlag{name: "--hf-token", least: "--hf-t"}, "give it with --secret HF_TOKEN"},
	} {
		if _, given := no.flag.in(words); given {
			return fmt.Errorf("%s: %w: a secret has no place in a command, which the cluster's record keeps and others see: %s", no.flag.name, launcher.ErrInvalid, no.remedy)
		}
	}
	return nil
}

// findable refuses flags with which a server answers where nobody looks for it: its launch would wait
// for as long as a model may take, and then end it.
func (v server) findable(words []string) error {
	for _, no := range []struct {
		flag   serverFlag
		reason string
	}{
		{serverFlag{name: "--ssl-certfile", least: "--ssl-ce"}, "by TLS"},
		{serverFlag{name: "--ssl-keyfile", least: "--ssl-k"}, "by TLS"},
		{serverFlag{name: "--uds"}, "on a socket in a folder"}, // vLLM's
	} {
		if _, given := no.flag.in(words); given {
			return fmt.Errorf("%s: %w: %s would answer %s, and sparkrun looks at it by http on its port: leave it out, and put a proxy before it", no.flag.name, launcher.ErrInvalid, v.workload, no.reason)
		}
	}
	return nil
}

// one reads a flag that the user may have given us, or the server: after -- it wins, and stays
// where it is; a recipe's gives way. It is taken out of the command.
func (s *served) one(f serverFlag, ours, mine string) (value, from string, err error) {
	var inCommand string
	var has bool
	inCommand, has = f.in(s.words)
	s.words, _ = f.without(s.words)
	inArgs, after := f.in(s.args)
	s.given[f.name] = after
	switch {
	case after && mine != "" && mine != inArgs:
		return "", "", fmt.Errorf("%s %s: %w: %s %s stands after --: say one of them", ours, mine, launcher.ErrInvalid, f.name, inArgs)
	case after:
		return inArgs, "--", nil
	case mine != "":
		if has && mine != inCommand {
			s.note("%s %s of the recipe's command gives way to %s %s", f.name, inCommand, ours, mine)
		}
		return mine, ours, nil
	case has:
		return inCommand, "recipe", nil
	}
	return "", "", nil
}

func (v server) readSizes(r Request, s *served) error {
	o, asked := r.Serve, Sizes{}
	recipes := false // what is asked is a recipe's alone
	for _, d := range []struct {
		flag serverFlag
		ours string
		mine int
		size *int
	}{{v.tp, "--tp", o.TP, &asked.TP}, {v.pp, "--pp", o.PP, &asked.PP}, {v.dp, "--dp", o.DP, &asked.DP}} {
		mine := ""
		if d.mine != 0 {
			mine = strconv.Itoa(d.mine)
		}
		if d.flag.name == "" {
			if d.mine > 1 {
				return fmt.Errorf("%s %d: %w: %s does not spread over machines that way", d.ours, d.mine, launcher.ErrInvalid, v.workload)
			}
			continue
		}
		text, from, err := s.one(d.flag, d.ours, mine)
		if err != nil {
			return err
		}
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxMachines {
			return fmt.Errorf("%s %s: %w: want 1 to %d", d.flag.name, text, launcher.ErrInvalid, maxMachines)
		}
		*d.size = n
		recipes = recipes || from == "recipe" && n > 1
	}
	s.nodes = max(r.Job.Nodes, len(r.Job.On))
	if r.Job.Nodes > 0 {
		s.nodes = r.Job.Nodes
	}
	if s.nodes == 0 {
		s.nodes = asked.product()
	}
	if s.nodes > maxMachines {
		return fmt.Errorf("%s: %w: a model is served on %d at most", machines(s.nodes), launcher.ErrInvalid, maxMachines)
	}
	if recipes && asked.product() != s.nodes && o.TP == 0 && o.PP == 0 && o.DP == 0 {
		s.note("the recipe's command is for %s; its sizes are worked out anew for %s", machines(asked.product()), machines(s.nodes))
		asked = Sizes{}
	}
	var err error
	var why string
	if s.sizes, why, err = Spread(s.nodes, asked, o.Config); err != nil {
		return err
	}
	if why != "" {
		s.note("%s", why)
	}
	return nil
}

func (v server) readListen(o Serve, s *served) error {
	host, from, err := s.one(v.host, "--host", o.Host)
	if err != nil {
		return err
	}
	s.shown, s.host = host, launcher.Lit(host)
	switch {
	case host == "":
		s.host = launcher.Of(launcher.Management)
	case from == "recipe":
		s.note("it listens on %s, as the recipe has it; --host decides otherwise", host)
	}
	mine := ""
	if o.Port != 0 {
		mine = strconv.Itoa(o.Port)
	}
	text, _, err := s.one(v.listen, "--port", mine)
	if err != nil {
		return err
	}
	if s.port = v.port; text != "" {
		if s.port, err = strconv.Atoi(text); err != nil || s.port < 1 || s.port > 1<<16-1 {
			return fmt.Errorf("--port %s: %w: want 1 to 65535", text, launcher.ErrInvalid)
		}
	}
	return nil
}

// flag is a word, or two, of the command, unless the user has given it after --.
func (s served) flag(f serverFlag, value launcher.Value) []launcher.Value {
	if s.given[f.name] {
		return nil
	}
	return []launcher.Value{launcher.Lit(f.name), value}
}

// size is a flag that is left out where it says nothing.
func (s served) size(f serverFlag, n int) []launcher.Value {
	if n < 2 || f.name == "" {
		return nil
	}
	return s.flag(f, launcher.Lit(strconv.Itoa(n)))
}

// spread are the flags of the sizes.
func (v server) spread(s served) (argv []launcher.Value) {
	argv = append(argv, s.size(v.tp, s.sizes.TP)...)
	argv = append(argv, s.size(v.pp, s.sizes.PP)...)
	return append(argv, s.size(v.dp, s.sizes.DP)...)
}

// listens are those of host and port.
func (v server) listens(s served) []launcher.Value {
	return append(s.flag(v.host, s.host), s.flag(v.listen, launcher.Lit(strconv.Itoa(s.port)))...)
}

// api is the port of the API, which people know: a node where it is taken refuses.
func (s served) api() launcher.NamedPort {
	return launcher.NamedPort{Name: ServePort, At: uint16(s.port)}
}

// ready is asked until the server answers.
func (s served) ready(path string) []launcher.Probe {
	return []launcher.Probe{{Kind: launcher.ProbeHTTP, Head: true, What: "the server's " + path, Port: launcher.Of(launcher.PortNamed(ServePort)), Path: path}}
}

// finish makes the spec: a service, on as many nodes as were decided.
func (s served) finish(r Request, workload string, stages []launcher.Stage) (launcher.Spec, error) {
	r.Job.Nodes = s.nodes
	r.Stdin, r.TTY = launcher.StdinNone, nil
	r.Job.Service = s.service(r.Job.Service, workload)
	r.showCaches()
	return finishSteps(r, workload, stages)
}

// service fills in what the workload knows of it; the rest is the user's.
func (s served) service(asked *launcher.Service, workload string) *launcher.Service {
	var v launcher.Service
	if asked != nil {
		v = *asked
	}
	v.Port, v.Listen, v.Health, v.Model = launcher.Of(launcher.PortNamed(ServePort)), s.shown, "/health", s.model
	if workload != TRTLLM && workload != EXO { // whose are no Prometheus metrics
		v.Metrics = "/metrics"
	}
	return &v
}

// caches are those of the user's folders that servers keep kernels in, which took long to
// compile.
var caches = []string{".cache/vllm", ".cache/sglang", ".cache/flashinfer", ".triton"}

// showCaches shows the containers the folder of a model, and the user's caches, at the places
// that they have on the nodes.
func (r *Request) showCaches() {
	if r.Container == nil {
		return
	}
	c := *r.Container
	c.Mounts = slices.Clone(c.Mounts)
	show := func(m launcher.Mount) {
		m.Target = m.Source
		if !slices.ContainsFunc(c.Mounts, func(o launcher.Mount) bool { return o.Target == m.Target || strings.HasPrefix(m.Target, o.Target+"/") }) {
			c.Mounts = append(c.Mounts, m)
		}
	}
	if path.IsAbs(r.Serve.Model) {
		show(launcher.Mount{Source: path.Clean(r.Serve.Model), ReadOnly: true})
	}
	if r.Job.User == "" { // another one's are not where the caller's are, and are found on the nodes
		if hub := r.hub(); c.ModelCache == "" && hub != "" {
			c.ModelCache, c.CacheOffered = hub, true
		}
		for _, dir := range caches {
			if path.IsAbs(r.Home) && r.Home != "/" {
				show(launcher.Mount{Source: path.Join(r.Home, dir), Make: true})
			}
		}
	}
	r.Container = &c
}

// hub is the user's folder for Hugging Face on the nodes; empty: not known.
func (r *Request) hub() string {
	hub := ""
	if !r.Away {
		hub, _ = lookup(r.Environ, "HF_HOME")
	}
	if own, said := lookup(r.Env, "HF_HOME"); said { // without a value it is the caller's
		hub = own
	}
	switch {
	case path.IsAbs(hub):
		return path.Clean(hub)
	case path.IsAbs(r.Home) && r.Home != "/":
		return path.Join(r.Home, ".cache/huggingface")
	}
	return ""
}

// ownAddresses are variables of which each node has its own: a recipe's one value would be
// wrong on all nodes but one.
var ownAddresses = []string{"VLLM_HOST_IP", "SGLANG_HOST_IP", "RAY_NODE_IP_ADDRESS", "RAY_OVERRIDE_NODE_IP_ADDRESS"}

// takesGPUs has a job that serves take the GPUs of its machines, unless the user says otherwise.
func (r *Request) takesGPUs() {
	if r.Job.GPUs == launcher.NoGPUs && !r.NoGPUs {
		r.Job.GPUs = launcher.AllGPUs
	}
}

// ServeNotes says in words what was decided for a request that its user did not ask for, or
// asked for otherwise. The request is one of which there is a Spec.
func ServeNotes(workload string, r Request) []string {
	var s served
	switch workload {
	case VLLM:
		s, _, _ = r.vllm()
	case SGLang:
		s, _ = r.sglang()
	case TRTLLM:
		s, _ = r.trtllm()
	case EXO:
		s, _ = r.exo()
	}
	return s.notes
}

// ServeSizes are those that a request comes to, and on how many nodes.
func ServeSizes(workload string, r Request) (Sizes, int, error) {
	var s served
	var err error
	switch workload {
	case VLLM:
		s, _, err = r.vllm()
	case SGLang:
		s, err = r.sglang()
	case TRTLLM:
		s, err = r.trtllm()
	case EXO:
		s, err = r.exo()
	}
	return s.sizes, s.nodes, err
}

func machines(n int) string {
	if n == 1 {
		return "1 machine"
	}
	return strconv.Itoa(n) + " machines"
}
