package recipe

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// ErrUntrusted is wrapped by the error of a recipe that needs consent. It is an
// launcher.ErrInvalid as well.
var ErrUntrusted error = untrusted{}

type untrusted struct{}

func (untrusted) Error() string        { return "not trusted" }
func (untrusted) Is(target error) bool { return target == launcher.ErrInvalid }

// runtimes are what version 2 calls the workloads; the second word is how vLLM is spread.
var runtimes = map[string][2]string{
	"vllm": {"vllm", ""}, "vllm-distributed": {"vllm", "native"}, "vllm-ray": {"vllm", "ray"}, "eugr-vllm": {"vllm", "ray"},
	"sglang": {"sglang", ""}, "trtllm": {"trtllm", ""},
}

// server fills in the command and takes out of it what the workload decides.
func (r Recipe) server(out *Launch, o *Options, values []Setting) error {
	runtime, knownRuntime := runtimes[r.Runtime]
	if !knownRuntime && r.Runtime != "" {
		return invalid("runtime", "%s: sparkrun serves with vllm, sglang and trtllm; `sparkrun launch exec --image IMAGE` runs other servers", r.Runtime)
	}
	var command []string
	var env []Setting
	if r.Command == "" {
		s, err := serverNamed(cmp.Or(runtime[0], "vllm"))
		if err != nil {
			return err
		}
		command = s.made(out, values)
	} else {
		text, notes, err := r.fill("command", r.Command, values)
		if err != nil {
			return err
		}
		out.Notes = append(out.Notes, notes...)
		if command, env, notes, err = words("command", text); err != nil {
			return err
		}
		out.Notes = append(out.Notes, notes...)
	}
	if at := slices.IndexFunc(command, func(w string) bool { return path.Base(w) == "trtllm-serve" }); at > 0 && isMpirun(command[0]) {
		out.note("command", "`%s` is left out: sparkrun starts the ranks itself", strings.Join(command[:at], " "))
		command = command[at:]
	}
	s, at, ok := serverOf(command)
	switch {
	case !ok:
		return invalid("command", "`%s`: want `vllm serve`, `sglang serve` or `trtllm-serve`; `sparkrun launch exec --image IMAGE` runs other programs", strings.Join(command[:min(len(command), 3)], " "))
	case knownRuntime && s.workload != runtime[0]:
		return invalid("runtime", "%s: the command starts %s", r.Runtime, s.workload)
	}
	got, err := s.take(command, at)
	if err != nil {
		return err
	}
	if len(got.left) > 0 {
		out.note("command", "%s: left out: sparkrun adds what spreads a server over machines", strings.Join(got.left, ", "))
	}
	out.Workload, out.Serve = s.workload, got.serve
	for _, v := range env {
		out.Serve.Env = append(out.Serve.Env, v.Name+"="+v.Value)
	}
	if err := r.key(out, *o, got.key); err != nil {
		return err
	}
	r.model(out, s, values)
	// A path is shown to the container where it lies on the machines.
	if m := out.Serve.Model; strings.HasPrefix(m, "/") || strings.HasPrefix(m, ".") {
		if own, _ := get(o.Set, "model"); own != m && !o.OnHost { // there it reads what its user may anyway
			out.asks("model %s, a folder of your machines, which its image reads (-o model=NAME serves another)", m)
		}
	}
	out.Serve.Backend = cmp.Or(out.Serve.Backend, runtime[1])
	if v, ok := get(values, "distributed_executor_backend"); ok && out.Serve.Backend == "" && v == "ray" {
		out.Serve.Backend = "ray"
	}
	given := func(to *int, n int) {
		if n != 0 {
			*to = n
		}
	}
	out.after = o.after(s.workload)
	given(&out.Serve.TP, o.Serve.TP)
	given(&out.Serve.PP, o.Serve.PP)
	given(&out.Serve.DP, o.Serve.DP)
	given(&out.Serve.Port, o.Serve.Port)
	out.Serve.Host = cmp.Or(o.Serve.Host, out.Serve.Host)
	out.Serve.Backend = cmp.Or(o.Serve.Backend, out.Serve.Backend)
	switch h := out.Serve.Host; {
	case h == "0.0.0.0" || h == "::":
		out.note("host", "%s: it listens on every address of its machine; --host has it listen on one", h)
	case h != "" && o.Serve.Host == "":
		out.note("host", "%s: it listens there, as the recipe has it; --host decides otherwise", h)
	}
	return nil
}

// isMpirun tells whether a program is what starts MPI ranks.
func isMpirun(program string) bool {
	return slices.Contains([]string{"mpirun", "mpiexec", "prterun"}, path.Base(program))
}

func serverNamed(workload string) (server, error) {
	for _, s := range servers() {
		if s.workload == workload {
			return s, nil
		}
	}
	return server{}, errors.New("no server of " + workload)
}

// key is about a key of the API in the command, where every user of the machine would see it.
func (r Recipe) key(out *Launch, o Options, has bool) error {
	const name = "VLLM_API_KEY"
	switch {
	case !has:
		return nil
	case out.Workload == "vllm" && given(o.Secrets, name):
		out.note("command", "--api-key: left out: it is what --secret %s gives", name)
		return nil
	case out.Workload == "vllm":
		return invalid("command", "--api-key: a secret has no place in a command, which the cluster's record keeps and others see: give it with --secret %s", name)
	}
	return invalid("command", "--api-key: a secret has no place in a command, which the cluster's record keeps and others see: take it out of the recipe")
}

// model settles which model it is, and adds the flags that both tools add to a command without.
func (r Recipe) model(out *Launch, s server, values []Setting) {
	inCommand := out.Serve.Model
	out.Serve.Model = cmp.Or(inCommand, r.Model)
	if m, ok := get(values, "model"); ok && inCommand != "" && m != inCommand {
		out.note("model", "%s: the command serves %s", m, inCommand)
	}
	add := func(flag, value string) {
		out.Serve.Command = append(out.Serve.Command, flag, value)
	}
	switch {
	case r.Revision == "" || s.revision != "" && has(out.Serve.Command, s.revision):
	case s.revision == "":
		out.note("model_revision", "%s: left out: %s takes none", r.Revision, s.workload)
	default:
		add(s.revision, r.Revision)
	}
	if name, ok := get(values, "served_model_name"); ok && s.served != "" && !has(out.Serve.Command, s.served) {
		add(s.served, name)
	}
}

// made is the command of a recipe without one: each of its values is a flag.
func (s server) made(out *Launch, values []Setting) []string {
	model, _ := get(values, "model")
	command := slices.Clone(s.commands[0])
	if len(s.model) > 0 && s.workload == "sglang" {
		command = append(command, s.model[0])
	}
	command = append(command, model)
	done := map[string]bool{"model": true}
	for _, v := range values {
		if done[v.Name] {
			continue
		}
		done[v.Name] = true
		value, _ := get(values, v.Name)
		flag := s.keys[v.Name]
		switch {
		case flag != "":
		case v.Name == "tensor_parallel" || v.Name == "pipeline_parallel" || v.Name == "data_parallel":
			if flag = s.size(v.Name); flag == "" {
				out.note("defaults."+v.Name, "left out: %s takes none", s.workload)
				continue
			}
		case s.workload == "trtllm":
			flag = "--" + v.Name
		default:
			flag = "--" + strings.ReplaceAll(v.Name, "_", "-")
		}
		switch value {
		case "True":
			command = append(command, flag)
		case "False":
		default:
			command = append(command, flag, value)
		}
	}
	return command
}

// size is the flag of a size of parallelism; empty: it has none.
func (s server) size(name string) string {
	to := map[string]field{"tensor_parallel": toTP, "pipeline_parallel": toPP, "data_parallel": toDP}[name]
	best := ""
	for flag, f := range s.flags {
		if f.to == to && len(flag) > len(best) {
			best = flag
		}
	}
	return best
}

// settle decides how many machines it takes. What a recipe says of sizes is for the number of
// machines that they make; with another the workload finds its own.
func (r Recipe) settle(out *Launch, o Options) error {
	product := func() int { return max(1, out.Serve.TP) * max(1, out.Serve.PP) * max(1, out.Serve.DP) }
	n := o.Nodes
	if n == 0 {
		n = max(product(), r.MinNodes)
		if r.MaxNodes > 0 {
			n = min(n, r.MaxNodes)
		}
	}
	switch {
	case n < r.MinNodes:
		return invalid("--nodes", "recipe %s wants %s or more (%s): --nodes %d is the nearest that works", o.Name, plural(r.MinNodes, "machine"), r.MinBy, r.MinNodes)
	case r.MaxNodes > 0 && n > r.MaxNodes:
		return invalid("--nodes", "recipe %s is for at most %s (%s): --nodes %d is the nearest that works", o.Name, plural(r.MaxNodes, "machine"), r.MaxBy, r.MaxNodes)
	}
	out.Nodes = n
	if made := product(); made != n {
		if out.Serve.TP+out.Serve.PP+out.Serve.DP > 0 && o.Serve.TP+o.Serve.PP+o.Serve.DP == 0 {
			out.note("command", "its sizes (%s) make %s: with %d they are found anew", sizes(out.Serve.TP, out.Serve.PP, out.Serve.DP), plural(made, "machine"), n)
		}
		out.Serve.TP, out.Serve.PP, out.Serve.DP = o.Serve.TP, o.Serve.PP, o.Serve.DP
	}
	if n == 1 && o.Serve.Backend == "" {
		out.Serve.Backend = ""
	}
	return nil
}

func sizes(tp, pp, dp int) string {
	var out []string
	for _, s := range []struct {
		name string
		n    int
	}{{"TP", tp}, {"PP", pp}, {"DP", dp}} {
		if s.n > 0 {
			out = append(out, s.name+" "+itoa(s.n))
		}
	}
	return strings.Join(out, ", ")
}
