package recipe

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// Options are what a user asks for besides the recipe; they override it, field by
// field.
type Options struct {
	// Name is what the recipe goes by in messages.
	Name string
	// Set are values of placeholders, and of executor_config: -o NAME=VALUE.
	Set []Setting
	// Nodes is a number of machines; 0: as many as the recipe wants.
	Nodes int
	// Serve has the sizes, backend, host and port that were asked for by flags of their own.
	Serve workloads.Serve
	// Image in place of the recipe's; OnHost: in no container at all.
	Image  string
	OnHost bool
	// Env and Secrets are what the user gives by --env and --secret, whose names the recipe's
	// variables give way to.
	Env, Secrets []string
	// Environ is the caller's environment, for variables that a recipe of version 2 takes of it.
	Environ []string
	// Trusted: the recipe may change its image (mods, pre_exec), ask for more rights than its user
	// has, and have folders and variables of its user's in its image.
	Trusted bool
}

// Launch is a recipe with everything filled in.
type Launch struct {
	Workload string `json:"workload"`
	// Nodes is how many machines it takes.
	Nodes int             `json:"nodes"`
	Image string          `json:"image,omitempty"` // empty: the workload's own, or none
	Serve workloads.Serve `json:"serve"`
	// Setup is what runs in each container first; Mods are the folders that it wants at
	// ModsDir/NAME of what the job brings along.
	Setup string   `json:"setup,omitempty"`
	Mods  []string `json:"mods,omitempty"`
	// Secrets are variables of the caller's that the ranks get as such: --secret.
	Secrets  []string          `json:"secrets,omitempty"`
	Args     []string          `json:"docker_args,omitempty"` // of docker run
	ShmBytes int64             `json:"shm_bytes,omitempty"`
	Ulimits  []launcher.Ulimit `json:"ulimits,omitempty"`
	Notes    []Note            `json:"notes,omitempty"`
	// consent is what it has that its user must allow, in words.
	consent []string
	// after is what the user's words after -- say, which the workload reads there.
	after workloads.Serve
}

// Into puts it into a request, whose own wishes stay.
func (l Launch) Into(r *workloads.Request) {
	asked := r.Serve
	r.Serve = l.Serve
	r.Serve.Program, r.Serve.Worker, r.Serve.Args, r.Serve.Config = asked.Program, asked.Worker, asked.Args, asked.Config
	r.Job.Nodes, r.Setup = l.Nodes, l.Setup
	r.Ulimits = append(slices.Clone(l.Ulimits), r.Ulimits...)
}

// Launch fills a recipe in. Its errors wrap launcher.ErrInvalid and say what is the nearest that
// works.
func (r Recipe) Launch(o Options) (Launch, error) {
	out := Launch{Notes: slices.Clone(r.Notes), Image: cmp.Or(o.Image, r.Image), ShmBytes: r.Executor.ShmBytes,
		Ulimits: r.Executor.Ulimits}
	if o.OnHost {
		if out.Image != "" && o.Image == "" {
			out.note("container", "%s: left out: it runs on the machines themselves", out.Image)
		}
		out.Image, out.ShmBytes = "", 0
	}
	if out.Image == r.Image && r.Image != "" && !strings.Contains(r.Image, "/") {
		out.note("container", "%s names no registry: the project that wrote the recipe builds it, on each machine; "+
			"--image names another", r.Image)
	}
	r.unused(&out)
	if err := o.sizes(); err != nil {
		return Launch{}, err
	}
	values, err := r.values(o)
	if err != nil {
		return Launch{}, err
	}
	if err := r.rights(&out, o, values); err != nil {
		return Launch{}, err
	}
	if err := r.server(&out, &o, values); err != nil {
		return Launch{}, err
	}
	if err := r.settle(&out, o); err != nil {
		return Launch{}, err
	}
	out.giveWay()
	if err := r.env(&out, o); err != nil {
		return Launch{}, err
	}
	if len(out.consent) > 0 && !o.Trusted {
		return Launch{}, fmt.Errorf("recipe %s: %w: it has %s: read it (`sparkrun recipe show %[1]s`), then allow it "+
			"with --trust-recipe", o.Name, ErrUntrusted, strings.Join(out.consent, "; and "))
	}
	return out, nil
}

// unused names the defaults that the recipe has no place for.
func (r Recipe) unused(out *Launch) {
	if r.Command == "" { // which is made of them
		return
	}
	places := strings.Join(append([]string{r.Command}, r.Setup...), "\n")
	for _, d := range r.Defaults {
		places += "\n" + d.Value
	}
	for _, d := range r.Defaults {
		if d.Name != "model" && !spread(d.Name) && !strings.Contains(places, "{"+d.Name+"}") {
			out.note("defaults."+d.Name, "left out: the command has no {%s}", d.Name)
		}
	}
}

// asks notes something that goes beyond starting a server: it needs consent.
func (l *Launch) asks(format string, args ...any) {
	l.consent = append(l.consent, fmt.Sprintf(format, args...))
}

func (l *Launch) note(field, format string, args ...any) {
	l.Notes = append(l.Notes, Note{field, fmt.Sprintf(format, args...)})
}

// sizes takes what -o says of the values that have a flag of launch too.
func (o *Options) sizes() error {
	for _, s := range o.Set {
		to := map[string]*int{"tensor_parallel": &o.Serve.TP, "pipeline_parallel": &o.Serve.PP,
			"data_parallel": &o.Serve.DP, "port": &o.Serve.Port}[s.Name]
		switch {
		case s.Name == "host" && o.Serve.Host == "":
			o.Serve.Host = s.Value
		case to == nil || *to != 0: // the flag itself counts more
		default:
			n, err := strconv.Atoi(s.Value)
			if err != nil || n < 1 || n > 65535 {
				return invalid("-o "+s.Name, "want a number, got %q", s.Value)
			}
			*to = n
		}
	}
	return nil
}

// after takes what stands after -- for what no flag says, and gives what it took.
func (o *Options) after(e engine.Engine) workloads.Serve {
	said := e.ArgsSay(o.Serve.Args)
	for _, f := range []struct{ flag, said *int }{{&o.Serve.TP, &said.TP}, {&o.Serve.PP, &said.PP},
		{&o.Serve.DP, &said.DP}, {&o.Serve.Port, &said.Port}} {
		if *f.flag != 0 { // both are the user's: the workload refuses two that differ
			*f.said = 0
		}
		*f.flag = cmp.Or(*f.flag, *f.said)
	}
	for _, f := range []struct{ flag, said *string }{{&o.Serve.Host, &said.Host}, {&o.Serve.Backend, &said.Backend}} {
		if *f.flag != "" {
			*f.said = ""
		}
		*f.flag = cmp.Or(*f.flag, *f.said)
	}
	return said
}

// giveWay leaves out what the arguments after -- set, where the workload reads it.
func (l *Launch) giveWay() {
	s, said := &l.Serve, l.after
	for _, f := range []struct {
		to   *int
		said int
	}{{&s.TP, said.TP}, {&s.PP, said.PP}, {&s.DP, said.DP}, {&s.Port, said.Port}} {
		if f.said != 0 {
			*f.to = 0
		}
	}
	if said.Host != "" {
		s.Host = ""
	}
	if said.Backend != "" {
		s.Backend = ""
	}
}

// served are placeholders that mean the same as a flag of launch, so that both count.
func served(s workloads.Serve) (out []Setting) {
	count := func(name string, n int) {
		if n > 0 {
			out = append(out, Setting{name, strconv.Itoa(n)})
		}
	}
	count("tensor_parallel", s.TP)
	count("pipeline_parallel", s.PP)
	count("data_parallel", s.DP)
	count("port", s.Port)
	if s.Host != "" {
		out = append(out, Setting{"host", s.Host})
	}
	return out
}

// privileged is the field of executor_config that -o may set too, as in the Python tool.
const privileged = "privileged"

// values are those of placeholders, later ones winning.
func (r Recipe) values(o Options) ([]Setting, error) {
	values := slices.Clone(r.Defaults)
	if _, ok := get(values, "model"); !ok && r.Model != "" {
		values = append([]Setting{{"model", r.Model}}, values...)
	}
	for _, s := range o.Set {
		_, isDefault := get(values, s.Name)
		if !isDefault && s.Name != privileged && !strings.Contains(r.Command, "{"+s.Name+"}") && r.Command != "" &&
			!spread(s.Name) {
			return nil, invalid("-o "+s.Name, "the recipe has no such value: it has %s", names(values))
		}
		values = append(values, s)
	}
	return append(values, served(o.Serve)...), nil
}

// spread tells whether a value is one that says how a server is spread, which counts even where
// a command has no place for it.
func spread(name string) bool {
	return slices.Contains([]string{"tensor_parallel", "pipeline_parallel", "data_parallel", "host", "port",
		"served_model_name", "distributed_executor_backend"}, name)
}

// ModsDir is where a job that brings mods along has them, below launcher.StageEnv's folder.
const ModsDir = "mods"

// rights are what a recipe does to its container, and what it gives it beyond its user's rights.
func (r Recipe) rights(out *Launch, o Options, values []Setting) error {
	root := r.Executor.Privileged
	if v, ok := get(o.Set, privileged); ok {
		root = strings.EqualFold(v, "true")
	}
	if len(r.Mods) > 0 {
		out.asks("mods (%s), folders whose run.sh changes what is in the image before the server starts",
			strings.Join(r.Mods, ", "))
	}
	if len(r.Setup) > 0 {
		out.asks("pre_exec, %s in each container before the server starts", plural(len(r.Setup), "command"))
	}
	if len(r.Executor.Args) > 0 {
		out.asks("%s, which give the container more than you have", strings.Join(r.Executor.Args, " "))
	}
	if root {
		out.asks("privileged: true, the rights of root over the machine")
	}
	if out.Args = slices.Clone(r.Executor.Args); root {
		out.Args = append(out.Args, "--cap-add=ALL", "--security-opt=seccomp=unconfined",
			"--security-opt=apparmor=unconfined")
		out.note("executor_config.privileged", "given as all capabilities without seccomp and AppArmor, to whom the "+
			"machines' policy allows it; devices beside the GPU's and RDMA's are not")
	}
	if o.OnHost && (len(r.Mods) > 0 || len(r.Setup) > 0 || len(out.Args) > 0) {
		return fmt.Errorf("recipe %s: %w: it changes its container, and on the machines themselves there is none: leave "+
			"out --runtime host", o.Name, launcher.ErrInvalid)
	}
	return r.setUp(out, values)
}

// setUp writes the script of mods and pre_exec. What a mod puts into WORKSPACE_DIR the server
// finds where it runs.
func (r Recipe) setUp(out *Launch, values []Setting) error {
	if len(r.Mods) == 0 && len(r.Setup) == 0 {
		return nil
	}
	lines := []string{`export WORKSPACE_DIR="$PWD"`}
	seen := map[string]bool{}
	for _, mod := range r.Mods {
		name := path.Base(mod)
		switch {
		case !clean(mod):
			return invalid("mods", "%q: want a folder beside the recipe, such as mods/NAME, or @REGISTRY/NAME", mod)
		case seen[name]:
			return invalid("mods", "%s: two mods have this name", name)
		}
		seen[name] = true
		lines = append(lines, fmt.Sprintf(`(cd "$%s/%s/%s" && chmod +x run.sh && ./run.sh)`, launcher.StageEnv, ModsDir,
			name))
	}
	long := 0
	for i, command := range r.Setup {
		field := "pre_exec." + strconv.Itoa(i+1)
		text, notes, err := r.fill(field, command, values)
		if err != nil {
			return err
		}
		if long += len(text); long > maxText {
			return invalid(field, "with those before it grows beyond %d KiB", maxText>>10)
		}
		out.Notes = append(out.Notes, notes...)
		lines = append(lines, "bash -c "+quote(text))
	}
	out.Setup, out.Mods = strings.Join(lines, "\n"), slices.Clone(r.Mods)
	return nil
}

// clean tells whether a mod's name leads to a folder below another, in letters that a shell takes
// as they are.
func clean(mod string) bool {
	rest, scoped := strings.CutPrefix(mod, "@")
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-+/", c)
	}
	return rest != "" && !strings.HasPrefix(rest, "/") && rest == path.Clean(rest) && rest != "." &&
		!slices.Contains(strings.Split(rest, "/"), "..") &&
		!strings.ContainsFunc(rest, func(c rune) bool { return !plain(c) }) && (!scoped || strings.Contains(rest, "/"))
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
