package engine

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// The stages of a job that serves.
const (
	serveStage   = "serve"
	serveWorkers = "workers"
)

// servePatience is how long a server may say nothing before it is ready: it compiles
// kernels, and fetches weights, without a word.
const servePatience = 30 * time.Minute

// maxMachines bounds on how many a model is served, and each of its sizes, so that their product is
// a number, too.
const maxMachines = 1024

// served is a request to serve with all decisions that depend on no node.
type served struct {
	words []string // the command, without what is decided
	args  []string // what stood after --
	sizes workloads.Sizes
	nodes int
	host  launcher.Value
	// shown is Host where somebody said it; model the name that requests give.
	shown, model string
	port         int
	given        map[string]bool // flags that stand in args already
	backend      string          // of an engine that has two
	notes        []string
}

func (s *served) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// settle makes the decisions that depend only on the request, for a server whose
// command is words.
func (e Engine) settle(r workloads.Request, words []string) (served, error) {
	bad := func(format string, args ...any) (served, error) {
		return served{}, fmt.Errorf(format+": %w: %s", append(args[:len(args)-1:len(args)-1], launcher.ErrInvalid,
			args[len(args)-1])...)
	}
	o := r.Serve
	switch {
	case o.Model == "" && len(o.Command) == 0:
		return bad("%s", e.Name, "no model: sparkrun launch "+e.Name+" MODEL [flags] [-- SERVER ARGS]")
	case o.Model != "" && !path.IsAbs(o.Model) && !strings.Contains(o.Model, ":") && !modelName().MatchString(o.Model):
		// s3://, or a file of a repository
		return bad("model %s", o.Model, "it is no name on Hugging Face (OWNER/NAME); a folder is named by its full path, "+
			"or from ./")
	case r.RanksPerNode > 1:
		return bad("--nproc-per-node %d", r.RanksPerNode, "a Spark has one GPU, and one process of the server")
	case r.Job.MinNodes > 0:
		return bad("--nodes %d:%d", r.Job.MinNodes, r.Job.Nodes, "how a model is cut depends on the number of machines: "+
			"give one")
	}
	s := served{words: e.fromSnapshot(o, words), args: o.Args, given: map[string]bool{}, model: o.Model}
	if o.Snapshot != "" {
		s.words, s.args = revision.without(s.words), revision.without(s.args)
	}
	for _, text := range o.Env {
		if isOwnAddress(text) {
			s.note("the recipe's %s is left out: each machine has its own", text)
		}
	}
	if err := e.noSecrets(slices.Concat(words, o.Args)); err != nil {
		return served{}, err
	}
	if err := e.findable(slices.Concat(words, o.Args)); err != nil {
		return served{}, err
	}
	for _, f := range e.decided {
		if f.Stands(o.Args) {
			return served{}, fmt.Errorf("%s stands after --: %w: %s", f.Name, launcher.ErrInvalid, f.remedy())
		}
		s.words = f.without(s.words)
	}
	if err := e.readSizes(r, &s); err != nil {
		return served{}, err
	}
	if err := e.readListen(o, &s); err != nil {
		return served{}, err
	}
	if err := e.limit(r, &s); err != nil {
		return served{}, err
	}
	if name, given := e.Served.In(append(s.words[:len(s.words):len(s.words)], s.args...)); given && e.Served.Name != "" {
		s.model = name
	}
	return s, nil
}

// fromSnapshot is the command with the folder of a model in place of its name, which requests give all the same.
func (e Engine) fromSnapshot(o workloads.Serve, words []string) []string {
	if o.Snapshot == "" {
		return words
	}
	out := slices.Clone(words)
	for i, word := range out {
		if flag, model, is := strings.Cut(word, "="); is && model == o.Model && strings.HasPrefix(flag, "-") &&
			!e.Served.Stands([]string{flag}) {
			out[i] = flag + "=" + o.Snapshot
		} else if word == o.Model && (i == 0 || !e.Served.Stands(out[i-1:i])) {
			out[i] = o.Snapshot
		}
	}
	if !e.Served.Stands(slices.Concat(out, o.Args)) {
		out = append(out, e.Served.Name, o.Model)
	}
	return out
}

// KeyFlag is that of a server which takes a key of its API on its command line.
var KeyFlag = Flag{Name: "--api-key", Least: "--api-k"}

// secret is a flag that holds one, and where it is given instead.
type secret struct {
	flag   Flag
	remedy string
}

func (e Engine) secrets() []secret {
	return []secret{
		{KeyFlag, e.Key.Remedy},
		{Flag{Name: "--admin-api-key", Least: "--adm"}, "leave it out"}, // SGLang's
		{Flag{Name: "--ssl-keyfile-password", Least: "--ssl-keyfile-"}, "leave it out"},
		{Flag{Name: "--hf-token", Least: "--hf-t", Other: []string{"-hft"}}, "give it with --secret HF_TOKEN"},
	}
}

// noSecrets refuses flags that hold one.
func (e Engine) noSecrets(words []string) error {
	for _, no := range e.secrets() {
		if _, given := no.flag.In(words); given {
			return fmt.Errorf("%s: %w: a secret has no place in a command, which the cluster's record keeps and others see: "+
				"%s", no.flag.Name, launcher.ErrInvalid, no.remedy)
		}
	}
	return nil
}

// hiding is a flag with which a server answers elsewhere, and where that is.
type hiding struct {
	flag   Flag
	reason string
}

// findable refuses flags with which a server answers where no probe looks: its launch would wait for
// as long as a model may take to load, and then end it.
func (e Engine) findable(words []string) error {
	for _, no := range append([]hiding{
		{Flag{Name: "--ssl-certfile", Least: "--ssl-ce"}, "by TLS"},
		{Flag{Name: "--ssl-keyfile", Least: "--ssl-k"}, "by TLS"},
		{Flag{Name: "--uds"}, "on a socket in a folder"}, // vLLM's
	}, e.hides...) {
		if _, given := no.flag.In(words); given {
			return fmt.Errorf("%s: %w: %s would answer %s, and sparkrun looks at it by http on its port: leave it out, and "+
				"put a proxy before it", no.flag.Name, launcher.ErrInvalid, e.Name, no.reason)
		}
	}
	return nil
}

// one reads a flag that the user may have given us, or the server: after -- it wins, and stays
// where it is; a recipe's gives way. It is taken out of the command.
func (s *served) one(f Flag, ours, mine string) (value, from string, err error) {
	var inCommand string
	var has bool
	inCommand, has = f.In(s.words)
	s.words = f.without(s.words)
	inArgs, after := f.In(s.args)
	s.given[f.Name] = after
	switch {
	case after && mine != "" && mine != inArgs:
		return "", "", fmt.Errorf("%s %s: %w: %s %s stands after --: say one of them", ours, mine, launcher.ErrInvalid,
			f.Name, inArgs)
	case after:
		return inArgs, "--", nil
	case mine != "":
		if has && mine != inCommand {
			s.note("%s %s of the recipe's command gives way to %s %s", f.Name, inCommand, ours, mine)
		}
		return mine, ours, nil
	case has:
		return inCommand, "recipe", nil
	}
	return "", "", nil
}

func (e Engine) readSizes(r workloads.Request, s *served) error {
	o, asked := r.Serve, workloads.Sizes{}
	recipes := false // what is asked is a recipe's alone
	layers := e.TP.Name == "" && e.PP.Name == ""
	for _, d := range []struct {
		flag Flag
		ours string
		mine int
		size *int
	}{{e.TP, "--tp", o.TP, &asked.TP}, {e.PP, "--pp", o.PP, &asked.PP}, {e.DP, "--dp", o.DP, &asked.DP}} {
		mine := ""
		if d.mine != 0 {
			mine = strconv.Itoa(d.mine)
		}
		if d.flag.Name == "" {
			if d.ours == "--pp" && layers {
				asked.PP = d.mine
			} else if d.mine > 1 {
				return fmt.Errorf("%s %d: %w: %s does not spread over machines that way", d.ours, d.mine, launcher.ErrInvalid,
					e.Name)
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
			return fmt.Errorf("%s %s: %w: want 1 to %d", d.flag.Name, text, launcher.ErrInvalid, maxMachines)
		}
		*d.size = n
		recipes = recipes || from == "recipe" && n > 1
	}
	s.nodes = max(r.Job.Nodes, len(r.Job.On))
	if r.Job.Nodes > 0 {
		s.nodes = r.Job.Nodes
	}
	if s.nodes == 0 {
		s.nodes = asked.Product()
	}
	if layers {
		if asked.PP > 1 && asked.PP != s.nodes {
			return fmt.Errorf("--pp %d: %w: %s deals out the layers to all machines: --nodes %d, or --pp %d",
				asked.PP, launcher.ErrInvalid, e.Title, asked.PP, s.nodes)
		}
		asked = workloads.Sizes{TP: 1, PP: s.nodes, DP: 1}
	}
	if s.nodes > maxMachines {
		return fmt.Errorf("%s: %w: a model is served on %d at most", workloads.Machines(s.nodes), launcher.ErrInvalid,
			maxMachines)
	}
	if recipes && asked.Product() != s.nodes && o.TP == 0 && o.PP == 0 && o.DP == 0 {
		s.note("the recipe's command is for %s; its sizes are worked out anew for %s", workloads.Machines(asked.Product()),
			workloads.Machines(s.nodes))
		asked = workloads.Sizes{}
	}
	var err error
	var why string
	if s.sizes, why, err = workloads.Spread(s.nodes, asked, o.Config); err != nil {
		return err
	}
	if why != "" {
		s.note("%s", why)
	}
	return nil
}

func (e Engine) readListen(o workloads.Serve, s *served) error {
	host, from, err := s.one(e.Host, "--host", o.Host)
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
	text, _, err := s.one(e.Listen, "--port", mine)
	if err != nil {
		return err
	}
	if s.port = e.Port; text != "" {
		if s.port, err = strconv.Atoi(text); err != nil || s.port < 1 || s.port > 1<<16-1 {
			return fmt.Errorf("--port %s: %w: want 1 to 65535", text, launcher.ErrInvalid)
		}
	}
	return nil
}

// flag is a word, or two, of the command, unless the user has given it after --.
func (s served) flag(f Flag, value launcher.Value) []launcher.Value {
	if s.given[f.Name] {
		return nil
	}
	return []launcher.Value{launcher.Lit(f.Name), value}
}

// size is a flag that is left out where its value is 0.
func (s served) size(f Flag, n int) []launcher.Value {
	if n < 2 || f.Name == "" {
		return nil
	}
	return s.flag(f, launcher.Lit(strconv.Itoa(n)))
}

// spread are the flags of the sizes.
func (e Engine) spread(s served) (argv []launcher.Value) {
	argv = append(argv, s.size(e.TP, s.sizes.TP)...)
	argv = append(argv, s.size(e.PP, s.sizes.PP)...)
	return append(argv, s.size(e.DP, s.sizes.DP)...)
}

// listens are those of host and port.
func (e Engine) listens(s served) []launcher.Value {
	return append(s.flag(e.Host, s.host), s.flag(e.Listen, launcher.Lit(strconv.Itoa(s.port)))...)
}

// api is the port of the API, which people know: a node where it is taken refuses.
func (s served) api() launcher.NamedPort {
	return launcher.NamedPort{Name: workloads.ServePort, At: uint16(s.port)}
}

// ready is the probe that is repeated until the server answers.
func (s served) ready(path string) []launcher.Probe {
	return []launcher.Probe{{Kind: launcher.ProbeHTTP, Head: true, What: "the server's " + path,
		Port: launcher.Of(launcher.PortNamed(workloads.ServePort)), Path: path}}
}

// finish makes the spec: a service, on as many nodes as were decided.
func (e Engine) finish(r workloads.Request, s served, stages ...launcher.Stage) (launcher.Spec, error) {
	r.Job.Nodes = s.nodes
	r.Stdin, r.TTY = launcher.StdinNone, nil
	r.Job.Service = e.service(r.Job.Service, s)
	r.Container = e.shows(r)
	return workloads.Finish(r, e.Name, stages)
}

// service fills in what the engine knows of it; the rest is the user's.
func (e Engine) service(asked *launcher.Service, s served) *launcher.Service {
	var v launcher.Service
	if asked != nil {
		v = *asked
	}
	v.Port, v.Listen, v.Health, v.Model = launcher.Of(launcher.PortNamed(workloads.ServePort)), s.shown, "/health", s.model
	v.Behind = true
	if e.noMetrics == "" {
		v.Metrics = "/metrics"
	}
	return &v
}

// shows is the container that sees the folder of a model, and the user's caches, at the places
// that they have on the nodes; nil: there is none.
func (e Engine) shows(r workloads.Request) *launcher.Container {
	if r.Container == nil {
		return nil
	}
	c := *r.Container
	c.Mounts = slices.Clone(c.Mounts)
	show := func(m launcher.Mount) {
		m.Target = m.Source
		if !slices.ContainsFunc(c.Mounts, func(o launcher.Mount) bool {
			return o.Target == m.Target || strings.HasPrefix(m.Target, o.Target+"/")
		}) {
			c.Mounts = append(c.Mounts, m)
		}
	}
	if dir := path.Clean(r.Serve.Model); path.IsAbs(dir) {
		if e.Model == File { // the other parts of a model are beside it
			dir = path.Dir(dir)
		}
		show(launcher.Mount{Source: dir, ReadOnly: true})
	}
	if r.Serve.Cache != "" {
		show(launcher.Mount{Source: r.Serve.Cache, ReadOnly: true})
	}
	if r.Job.User != "" { // another one's are not where the caller's are, and are found on the nodes
		return &c
	}
	if cache := modelCache(r); e.Model != OwnStore && c.ModelCache == "" && cache != "" {
		c.ModelCache, c.CacheOffered = cache, true
	}
	for _, dir := range e.caches {
		if path.IsAbs(r.Home) && r.Home != "/" {
			show(launcher.Mount{Source: path.Join(r.Home, dir), Make: true})
		}
	}
	return &c
}

// modelCache is the user's folder for Hugging Face on the nodes; empty: not known.
func modelCache(r workloads.Request) string {
	dir := ""
	if !r.Away {
		dir, _ = workloads.Lookup(r.Environ, "HF_HOME")
	}
	if own, said := workloads.Lookup(r.Env, "HF_HOME"); said { // without a value it is the caller's
		dir = own
	}
	switch {
	case path.IsAbs(dir):
		return path.Clean(dir)
	case path.IsAbs(r.Home) && r.Home != "/":
		return path.Join(r.Home, ".cache/huggingface")
	}
	return ""
}

// own are the variables that an engine is given on each node: where its compiled code is kept, and where its
// server is reached by the others; left alone it takes the address that has a route to the Internet.
func (e Engine) own() (env []launcher.Var) {
	if e.address != "" {
		env = append(env, launcher.Var{Name: e.address, Value: launcher.Of(launcher.NodeAddr), Source: e.Name})
	}
	for _, name := range e.compiles {
		at := launcher.Value{{Ref: launcher.CompileCache}, {Lit: "/" + name}}
		env = append(env, launcher.Var{Name: name, Value: at, Source: e.Name})
	}
	return env
}

// kernelCaches are the variables of what all servers of PyTorch's kind compile with:
// torch/_inductor/runtime/cache_dir_utils.py, torch/utils/cpp_extension.py, triton/knobs.py, flashinfer/jit/env.py,
// and of the driver's compiler, CUDA's programming guide ("CUDA Environment Variables").
func kernelCaches() []string {
	return []string{"TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE",
		"CUDA_CACHE_PATH"}
}

// program is a server's, or Python, on the nodes.
func program(r workloads.Request, name string) string {
	if r.Serve.Program != "" {
		return r.Serve.Program
	}
	return r.InVenv(name)
}

// serveHelp is of the help of engines that Hugging Face has the models of.
const serveHelp = `It listens on the first machine's management address (or --host), and asks for no key. It
runs in a container of the image that launch names (or --image); --runtime host runs the
machines' own program. It is a service: launch leaves it once it answers, and it goes on
until sparkrun stop.`
