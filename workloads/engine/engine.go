// Package engine decides how each server of models is started: one value for each server, in a file
// of its own, with all that is known of it. A new engine is a file, its test and a line in All.
//
// It is pure, as workloads is: a request in, a launcher.Spec, notes and questions out. It must not
// look at machines, and whoever reads a row must not ask which engine it is.
package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// All lists the engines. The first is Usual.
func All() []Engine {
	return []Engine{vllmEngine(), sglangEngine(), trtllmEngine(), llamacppEngine(), exoEngine()}
}

// Usual is the engine of a recipe that does not say which it is for.
func Usual() Engine { return All()[0] }

// Engine is a server of models.
type Engine struct {
	// Name is the workload's; Title is what people call it.
	Name, Title string
	Help        Help
	// Image is the one that it runs in unless somebody names another; empty: nobody publishes one.
	Image string
	// Program is the flag of launch that names it on the nodes; Options are others that it alone
	// has.
	Program Option
	Options []Option
	// Usages are of flags of every engine that mean something else here.
	Usages map[string]string
	// Model is what form models have.
	Model ModelForm

	// Port is where its API listens unless somebody says otherwise.
	Port int
	// The flags that set how a model is cut and where the server listens; without a name the server
	// has no such flag. With neither TP nor PP it spreads the layers over all machines by itself.
	// Served is the name that requests give.
	TP, PP, DP, Host, Listen, Served Flag
	// decided are flags that each machine is told its own value of.
	decided []Flag
	// hides are flags with which it answers where no probe looks.
	hides []hiding
	// Backends is of an engine that spreads over machines in two ways; nil: it has one.
	Backends *Backends
	// Key is how it asks for a key of its API.
	Key Key
	// noMetrics says why a wedge is not seen in its metrics; empty: they are at /metrics, and tell.
	noMetrics string
	// Signs are how its metrics and its log are read.
	Signs launcher.Server
	// memory is what it takes of a machine's memory, whatever the model.
	memory memory
	// caches are folders below the user's home that it keeps models in.
	caches []string
	// compiles are the variables that tell it, and what it is built of, where compiled code is kept.
	compiles []string
	// address is the variable that tells it the address of its own machine; empty: none does.
	address string
	Recipes Recipes
	// ranks are programs of sparkrun's own that its stages start, by their command.
	ranks map[string]func(args []string) int

	// decide makes the decisions that depend only on the request, and stages makes the
	// spec from them.
	decide func(Engine, workloads.Request) (served, error)
	stages func(Engine, workloads.Request, served) (launcher.Spec, error)
}

// Help is what `sparkrun launch NAME --help` says.
type Help struct{ Args, Short, Long, Example string }

// Option is a flag of launch that binds into the request: a text, or a list.
type Option struct {
	Name, Usage string
	Text        func(*workloads.Request) *string
	List        func(*workloads.Request) *[]string
}

// ModelForm is what an engine takes for a model.
type ModelForm int

// Forms of models.
const (
	HuggingFace ModelForm = iota // a name there, or a folder with a config.json
	OwnStore                     // a name, which the engine itself looks up in a store of its own
	File                         // a file of the nodes, or a name, which the engine itself fetches
)

// Backends is how an engine is told between its own way over machines and Ray's.
type Backends struct {
	Flag Flag
	// Values are Flag's, by what they mean; empty: neither.
	Values map[string]string
	// Ask is the command whose output tells whether a program has a way of its own, as Knows reads
	// it: it then has Sign. That of Image is known to.
	Ask   func(workloads.Request) []string
	Knows func(output string) bool
	Sign  string
}

// Key is about keys of an API, which must not stand in a command.
type Key struct {
	// Secret is the variable that has the server ask for one; empty: none does.
	Secret string
	// Remedy is what a user does who wants one.
	Remedy string
	// Flagged: its command line takes one, so that a recipe may have it there.
	Flagged bool
}

// memory is what a server takes of a machine's memory, all of it together.
type memory struct {
	// Share is the part of all memory that it takes unless Flag says otherwise; 0: what it needs.
	Share float64
	Flag  Flag
	// Cache and CacheVar say how large its cache is: on a CPU it then does not hold its share against
	// what is free. On a GPU it does all the same.
	Cache    Flag
	CacheVar string
	// limit gives the flags that have it take no more than a budget, which are of these; nil: it has none.
	limit  func(budget) ([]string, error)
	limits []Flag
}

// Recipes is what recipes say of an engine in words of their own; without commands none serves by it.
type Recipes struct {
	// Runtimes are its names in version 2, by the backend that each means.
	Runtimes map[string]string
	// Commands are how it is called, up to the model or the first flag.
	Commands [][]string
	// Model is the flag that names the model; Positional: the first word behind the command does too.
	Model      Flag
	Positional bool
	// Revision is the flag of the model's version. Named: a served_model_name becomes Served where a
	// command does not say it.
	Revision Flag
	Named    bool
	// Dropped are further flags that say how it is spread: they are left out of a recipe's command.
	Dropped []Flag
	// Keys are the flags of values that are not called as they are, for a recipe without a command;
	// Underscores: those that are have no dashes.
	Keys        map[string]string
	Underscores bool
	// MPI: a recipe may have mpirun start the first word of the first command.
	MPI bool
}

// Named gives an engine by the name of its workload.
func Named(workload string) (Engine, bool) {
	for _, e := range All() {
		if e.Name == workload {
			return e, true
		}
	}
	return Engine{}, false
}

// Serves tells whether a workload is an engine.
func Serves(workload string) bool { _, is := Named(workload); return is }

// RankProgram gives the program of sparkrun's own that ranks of an engine are; nil: there is none of the name.
func RankProgram(command string) func(args []string) int {
	for _, e := range All() {
		if run := e.ranks[command]; run != nil {
			return run
		}
	}
	return nil
}

// Servers are all engines by their signs. They are the agent's, and stand in no job: what runs by exec, ray
// or torchrun may be any of them, and a job keeps its readers where the agent is a newer one.
func Servers() (out []launcher.Server) {
	for _, e := range All() {
		out = append(out, e.Signs)
	}
	return out
}

// Workloads lists all workloads by name, engines among them.
func Workloads() []workloads.Workload {
	all := workloads.All()
	for _, e := range All() {
		all = append(all, workloads.Workload{Name: e.Name, Spec: e.Spec})
	}
	slices.SortFunc(all, func(a, b workloads.Workload) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Spec makes the job that serves.
func (e Engine) Spec(r workloads.Request) (launcher.Spec, error) {
	s, err := e.settled(r)
	if err != nil {
		return launcher.Spec{}, err
	}
	r.Serve.Env = slices.DeleteFunc(slices.Clone(r.Serve.Env), isOwnAddress)
	if r.Job.GPUs == launcher.NoGPUs && !r.NoGPUs { // it takes those of its machines, unless the user says otherwise
		r.Job.GPUs = launcher.AllGPUs
	}
	return e.stages(e, r, s)
}

func (e Engine) settled(r workloads.Request) (served, error) {
	if v := r.Job.Service; v != nil && v.OnWedge == launcher.WedgeRestart && e.noMetrics != "" {
		return served{}, fmt.Errorf("--on-wedge restart: %w: %s", launcher.ErrInvalid, e.noMetrics)
	}
	return e.decide(e, r)
}

// Notes say in words what was decided for a request that its user did not ask for, or asked for
// otherwise. The request is one of which there is a Spec.
func (e Engine) Notes(r workloads.Request) []string {
	s, err := e.settled(r)
	if err != nil {
		return nil
	}
	return s.notes
}

// Sizes are the sizes of a request, and its number of nodes.
func (e Engine) Sizes(r workloads.Request) (workloads.Sizes, int, error) {
	s, err := e.settled(r)
	return s.sizes, s.nodes, err
}

// NamesBackend tells whether the command of a request, or what stands after --, says how the server spreads.
func (e Engine) NamesBackend(r workloads.Request) bool {
	_, given := e.Backends.Flag.In(slices.Concat(r.Serve.Command, r.Serve.Args))
	return given
}

// Spreads are the flags that say how it is spread over machines, beside those of sizes: each machine is told
// its own, so that a recipe's are left out.
func (e Engine) Spreads() []Flag { return slices.Concat(e.decided, e.Recipes.Dropped) }

// rayAddresses are Ray's own variables for the address of a machine.
var rayAddresses = []string{"RAY_NODE_IP_ADDRESS", "RAY_OVERRIDE_NODE_IP_ADDRESS"}

// isOwnAddress tells whether a setting is of a variable of which each node has its own: a recipe's one
// value would be wrong on all nodes but one.
func isOwnAddress(setting string) bool {
	name, _, _ := strings.Cut(setting, "=")
	return slices.Contains(rayAddresses, name) ||
		slices.ContainsFunc(All(), func(e Engine) bool { return e.address != "" && e.address == name })
}
