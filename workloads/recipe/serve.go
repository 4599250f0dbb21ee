package recipe

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// ErrUntrusted is wrapped by the error of a recipe that needs consent. It is an
// launcher.ErrInvalid as well.
var ErrUntrusted error = untrusted{}

type untrusted struct{}

func (untrusted) Error() string        { return "not trusted" }
func (untrusted) Is(target error) bool { return target == launcher.ErrInvalid }

// server fills in the command and takes out of it what the workload decides.
func (r Recipe) server(out *Launch, o *Options, values []Setting) error {
	wanted, backend, knownRuntime := runtimeOf(r.Runtime)
	if !knownRuntime && r.Runtime != "" {
		return invalid("runtime", "%s: sparkrun serves with %s by recipes; %s", r.Runtime,
			listed(serving(), " and ", func(e engine.Engine) string { return e.Name }), withoutRecipe())
	}
	if !knownRuntime {
		wanted = engine.Usual()
	}
	command, env, err := r.command(out, wanted, values)
	if err != nil {
		return err
	}
	e, at, ok := engineOf(command)
	switch {
	case !ok:
		commands := listed(serving(), " or ", func(e engine.Engine) string {
			return "`" + strings.Join(e.Recipes.Commands[0], " ") + "`"
		})
		return invalid("command", "`%s`: want %s; %s", strings.Join(command[:min(len(command), 3)], " "), commands,
			withoutRecipe())
	case knownRuntime && e.Name != wanted.Name:
		return invalid("runtime", "%s: the command starts %s", r.Runtime, e.Name)
	}
	got, err := take(e, command, at)
	if err != nil {
		return err
	}
	if len(got.left) > 0 {
		out.note("command", "%s: left out: sparkrun adds what spreads a server over machines", strings.Join(got.left, ", "))
	}
	out.Workload, out.Serve = e.Name, got.serve
	for _, v := range env {
		out.Serve.Env = append(out.Serve.Env, v.Name+"="+v.Value)
	}
	if err := r.key(out, *o, e.Key.Secret, got.key); err != nil {
		return err
	}
	r.model(out, e, values)
	// A path is shown to the container where it lies on the machines.
	if m := out.Serve.Model; strings.HasPrefix(m, "/") || strings.HasPrefix(m, ".") {
		if own, _ := get(o.Set, "model"); own != m && !o.OnHost { // there it reads what its user may anyway
			out.asks("model %s, a folder of your machines, which its image reads (-o model=NAME serves another)", m)
		}
	}
	out.Serve.Backend = cmp.Or(out.Serve.Backend, backend)
	if v, ok := get(values, "distributed_executor_backend"); ok && out.Serve.Backend == "" && v == workloads.BackendRay {
		out.Serve.Backend = v
	}
	given := func(to *int, n int) {
		if n != 0 {
			*to = n
		}
	}
	out.after = o.after(e)
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

// command is the server's, with its values in it and without an mpirun before it, and the environment that it sets.
func (r Recipe) command(out *Launch, e engine.Engine, values []Setting) (command []string, env []Setting, err error) {
	if r.Command == "" {
		command = made(e, out, values)
	} else {
		text, notes, err := r.fill("command", r.Command, values)
		if err != nil {
			return nil, nil, err
		}
		out.Notes = append(out.Notes, notes...)
		if command, env, notes, err = words("command", text); err != nil {
			return nil, nil, err
		}
		out.Notes = append(out.Notes, notes...)
	}
	if at := slices.IndexFunc(command, byMPI); at > 0 && isMpirun(command[0]) {
		out.note("command", "`%s` is left out: sparkrun starts the ranks itself", strings.Join(command[:at], " "))
		command = command[at:]
	}
	return command, env, nil
}

// isMpirun tells whether a program is what starts MPI ranks.
func isMpirun(program string) bool {
	return slices.Contains([]string{"mpirun", "mpiexec", "prterun"}, path.Base(program))
}

// byMPI tells whether a program is a server that mpirun may start.
func byMPI(program string) bool {
	return slices.ContainsFunc(serving(), func(e engine.Engine) bool {
		return e.Recipes.MPI && path.Base(program) == e.Recipes.Commands[0][0]
	})
}

// listed names engines, of which there is at least one, in a sentence.
func listed(engines []engine.Engine, last string, word func(engine.Engine) string) string {
	var all []string
	for _, e := range engines {
		all = append(all, word(e))
	}
	if len(all) == 1 {
		return all[0]
	}
	return strings.Join(all[:len(all)-1], ", ") + last + all[len(all)-1]
}

// withoutRecipe says what serves that no recipe is read for.
func withoutRecipe() string {
	text := "`sparkrun launch exec --image IMAGE` runs other servers"
	if rest := slices.DeleteFunc(engine.All(), byRecipe); len(rest) > 0 {
		text = "without a recipe there is " + listed(rest, " and ", func(e engine.Engine) string {
			return "`sparkrun launch " + e.Name + "`"
		}) + "; " + text
	}
	return text
}

// key is about a key of the API in the command, where every user of the machine would see it.
func (r Recipe) key(out *Launch, o Options, name string, has bool) error {
	switch {
	case !has:
		return nil
	case name != "" && given(o.Secrets, name):
		out.note("command", "--api-key: left out: it is what --secret %s gives", name)
		return nil
	case name != "":
		return invalid("command", "--api-key: a secret has no place in a command, which the cluster's record keeps and "+
			"others see: give it with --secret %s", name)
	}
	return invalid("command", "--api-key: a secret has no place in a command, which the cluster's record keeps and "+
		"others see: take it out of the recipe")
}

// model settles which model it is, and adds the flags that both tools add to a command without.
func (r Recipe) model(out *Launch, e engine.Engine, values []Setting) {
	inCommand := out.Serve.Model
	out.Serve.Model = cmp.Or(inCommand, r.Model)
	if m, ok := get(values, "model"); ok && inCommand != "" && m != inCommand {
		out.note("model", "%s: the command serves %s", m, inCommand)
	}
	add := func(flag, value string) {
		out.Serve.Command = append(out.Serve.Command, flag, value)
	}
	switch {
	case r.Revision == "" || e.Recipes.Revision.Stands(out.Serve.Command):
	case e.Recipes.Revision.Name == "":
		out.note("model_revision", "%s: left out: %s takes none", r.Revision, e.Name)
	default:
		add(e.Recipes.Revision.Name, r.Revision)
	}
	if name, ok := get(values, "served_model_name"); ok && e.Recipes.Named && !e.Served.Stands(out.Serve.Command) {
		add(e.Served.Name, name)
	}
}

// made is the command of a recipe without one: each of its values is a flag.
func made(e engine.Engine, out *Launch, values []Setting) []string {
	model, _ := get(values, "model")
	command := slices.Clone(e.Recipes.Commands[0])
	if !e.Recipes.Positional {
		command = append(command, e.Recipes.Model.Name)
	}
	command = append(command, model)
	done := map[string]bool{"model": true}
	sizes := map[string]engine.Flag{"tensor_parallel": e.TP, "pipeline_parallel": e.PP, "data_parallel": e.DP}
	for _, v := range values {
		if done[v.Name] {
			continue
		}
		done[v.Name] = true
		value, _ := get(values, v.Name)
		size, isSize := sizes[v.Name]
		flag := cmp.Or(e.Recipes.Keys[v.Name], size.Name)
		switch {
		case flag != "":
		case isSize:
			out.note("defaults."+v.Name, "left out: %s takes none", e.Name)
			continue
		case e.Recipes.Underscores:
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
		return invalid("--nodes", "recipe %s wants %s or more (%s): --nodes %d is the nearest that works", o.Name,
			plural(r.MinNodes, "machine"), r.MinBy, r.MinNodes)
	case r.MaxNodes > 0 && n > r.MaxNodes:
		return invalid("--nodes", "recipe %s is for at most %s (%s): --nodes %d is the nearest that works", o.Name,
			plural(r.MaxNodes, "machine"), r.MaxBy, r.MaxNodes)
	}
	out.Nodes = n
	if made := product(); made != n {
		if out.Serve.TP+out.Serve.PP+out.Serve.DP > 0 && o.Serve.TP+o.Serve.PP+o.Serve.DP == 0 {
			out.note("command", "its sizes (%s) make %s: with %d they are found anew",
				sizes(out.Serve.TP, out.Serve.PP, out.Serve.DP), plural(made, "machine"), n)
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
