package workloads

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// Sources, as a dry run shows them.
const (
	sourceCaller = "caller's environment"
	sourceUser   = "--env"
	sourceRecipe = "recipe"
)

// callersVars are passed from the caller to every rank: what finds programs, libraries
// and caches, and the language of messages. The list is short on purpose: a shell's
// variables describe the machine it runs on, and the ranks run on others.
var callersVars = []string{
	"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "HF_HOME", "LANG", "LC_ALL",
}

// wordyVars are those that are no paths: they are also passed from a machine outside
// the cluster.
var wordyVars = []string{"LANG", "LC_ALL"}

// environment combines what every rank gets; later entries win: the caller's, the
// workload's, the user's.
func (r Request) environment(workload string, own ...launcher.Var) ([]launcher.Var, error) {
	return r.Variables(workload, true, own...)
}

// Variables is environment with the variables of a torch worker, or without them.
func (r Request) Variables(workload string, worker bool, own ...launcher.Var) ([]launcher.Var, error) {
	var env []launcher.Var
	names := callersVars
	if r.Away || r.Container != nil { // an image has programs and libraries of its own
		names = wordyVars
	}
	if r.Serve.Model != "" && !r.Away && r.Container != nil && r.Job.User == "" { // which is shown to it
		names = append(slices.Clone(names), "HF_HOME")
	}
	for _, name := range names {
		if v, ok := Lookup(r.Environ, name); ok && v != "" {
			env = append(env, launcher.Var{Name: name, Value: launcher.Lit(v), Source: sourceCaller})
		}
	}
	if r.TTY != nil { // programs that draw look up what their terminal understands
		env = append(env, r.callersOr("TERM", "xterm", workload))
	}
	for _, v := range r.rankVars(workload) {
		if worker || strings.HasPrefix(v.Name, "SPARKRUN_") {
			env = append(env, v)
		}
	}
	if r.Serve.Cache != "" && !r.Serve.Online { // all nodes have it: nobody need be asked
		env = append(env, launcher.Var{Name: "HF_HUB_CACHE", Value: launcher.Lit(r.Serve.Cache), Source: workload},
			launcher.Var{Name: "HF_HUB_OFFLINE", Value: launcher.Lit("1"), Source: workload})
	}
	env = append(env, own...)
	for _, text := range r.Serve.Env {
		name, value, _ := strings.Cut(text, "=")
		if IsSecret(name) {
			return nil, fmt.Errorf("recipe, env %s: %w: its name says that it holds a secret, and the cluster's record "+
				"would keep it: --secret %[1]s brings it", name, launcher.ErrInvalid)
		}
		env = append(env, launcher.Var{Name: name, Value: launcher.Lit(value), Source: sourceRecipe})
	}
	for _, text := range r.Env {
		v, err := userVar(text, r.Environ)
		if err != nil {
			return nil, err
		}
		env = append(env, v)
	}
	return env, nil
}

// rankVars tell a rank its place under the names that torch's elastic agent
// uses (torch/distributed/elastic/agent/server/local_elastic_agent.py) and,
// where torch has none, under ours.
func (r Request) rankVars(workload string) []launcher.Var {
	of := launcher.Of
	lit := launcher.Lit
	vars := []launcher.Var{
		{Name: "RANK", Value: of(launcher.Rank)},
		{Name: "LOCAL_RANK", Value: of(launcher.LocalRank)},
		{Name: "GROUP_RANK", Value: of(launcher.NodeRank)},
		{Name: "ROLE_RANK", Value: of(launcher.Rank)}, // one role: the ranks in it are all ranks
		{Name: "ROLE_NAME", Value: lit("default")},
		{Name: "LOCAL_WORLD_SIZE", Value: of(launcher.LocalWorldSize)},
		{Name: "WORLD_SIZE", Value: of(launcher.WorldSize)},
		{Name: "GROUP_WORLD_SIZE", Value: of(launcher.NodeCount)},
		{Name: "ROLE_WORLD_SIZE", Value: of(launcher.WorldSize)},
		{Name: "MASTER_ADDR", Value: of(launcher.Head)},
		{Name: "MASTER_PORT", Value: of(launcher.Port)},
		{Name: "TORCHELASTIC_RESTART_COUNT", Value: of(launcher.RestartCount)},
		{Name: "TORCHELASTIC_MAX_RESTARTS", Value: lit(strconv.Itoa(r.Job.MaxRestarts))},
		{Name: "TORCHELASTIC_RUN_ID", Value: of(launcher.Job)},
		// torch compares with exactly "True", which would make every rank a
		// client of a store that we do not run. With any other text rank 0
		// listens at MASTER_ADDR:MASTER_PORT; "False" is what torchrun writes.
		{Name: "TORCHELASTIC_USE_AGENT_STORE", Value: lit("False")},
		{Name: "SPARKRUN_JOB", Value: of(launcher.Job)},
		{Name: "SPARKRUN_HOST", Value: of(launcher.Host)},
		{Name: "SPARKRUN_ADDR", Value: of(launcher.NodeAddr)},
		{Name: "SPARKRUN_NODE_RANK", Value: of(launcher.NodeRank)},
		{Name: "SPARKRUN_NODE_COUNT", Value: of(launcher.NodeCount)},
	}
	for i := range vars {
		vars[i].Source = workload
	}
	return vars
}

// callersOr takes a variable from the caller where it is set, else gives it the
// workload's default: what torchrun does with those that tune a run.
func (r Request) callersOr(name, value, workload string) launcher.Var {
	if v, ok := Lookup(r.Environ, name); ok {
		return launcher.Var{Name: name, Value: launcher.Lit(v), Source: sourceCaller}
	}
	return launcher.Var{Name: name, Value: launcher.Lit(value), Source: workload}
}

// userVar reads one --env.
func userVar(text string, environ []string) (launcher.Var, error) {
	name, value, given := strings.Cut(text, "=")
	if !given {
		v, ok := Lookup(environ, name)
		if !ok && name != "" {
			return launcher.Var{}, fmt.Errorf("--env %s: %w: it is not set here; set it, or write --env %s=VALUE", name,
				launcher.ErrInvalid, name)
		}
		value = v
	}
	if IsSecret(name) {
		return launcher.Var{}, fmt.Errorf("--env %s: %w: its name says that it holds a secret, and the cluster's record "+
			"would keep it; --secret %[1]s brings it to the ranks, from this variable here or with --secret %[1]s=FILE "+
			"from a file", name, launcher.ErrInvalid)
	}
	return launcher.Var{Name: name, Value: launcher.Lit(value), Source: sourceUser}, nil
}

// IsSecret tells whether a variable holds a secret, by its name alone: what a value is cannot be told.
func IsSecret(name string) bool {
	n := strings.ToUpper(name)
	for _, end := range []string{"_TOKEN", "_KEY", "_SECRET"} {
		if strings.HasSuffix(n, end) {
			return true
		}
	}
	return strings.Contains(n, "PASSWORD")
}
