package workloads

import (
	"fmt"
	"strconv"

	"github.com/sparkrun/sparkrun/launcher"
)

// Torchrun are the options of torchrun that still have a meaning where sparkrun
// replaces its agent.
type Torchrun struct {
	// Python is the interpreter on the nodes: a path, or a name looked up in
	// the ranks' PATH. Empty means the caller's $VIRTUAL_ENV/bin/python3, and
	// python3 where no virtual environment is active.
	Python string
	// Module: the first argument is a module (python -m), no file.
	Module bool
	// NoPython: the first argument is a program and runs by itself.
	NoPython bool
	// Text: the first argument is the program itself (python -c).
	Text bool
	// Agent starts torchrun itself, once a node, which starts the workers; else
	// each worker is a rank of ours.
	Agent bool
	// Rendezvous is the Agent's: RendezvousStatic, also for "", or RendezvousC10d.
	Rendezvous string
}

// How torchrun's agents find each other (torch/distributed/run.py, --rdzv_backend).
const (
	RendezvousStatic = "static"
	RendezvousC10d   = "c10d"
)

// torchrunSpec starts torch workers as torchrun would
// (torch/distributed/run.py, config_from_args), without a Python before them.
func torchrunSpec(r Request) (launcher.Spec, error) { return torchSpec(r, "torchrun") }

// torchSpec does so for every workload whose ranks are torch workers.
func torchSpec(r Request, workload string, own ...launcher.Var) (launcher.Spec, error) {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return launcher.Spec{}, fmt.Errorf("torchrun: %w: no script: sparkrun launch torchrun [flags] -- SCRIPT [ARG...]",
			launcher.ErrInvalid)
	}
	st := launcher.Stage{
		Name: workload, RanksPerNode: r.ranksPerNode(), Workdir: r.Workdir, UsesPort: true,
	}
	if !r.Torchrun.NoPython && !r.Torchrun.Module && !r.Torchrun.Text {
		if r.Args[0] == "python" || r.Args[0] == "python3" {
			return launcher.Spec{}, fmt.Errorf("%s: %w: %s is no script: leave it out and name the script; --python "+
				"chooses the interpreter", workload, launcher.ErrInvalid, r.Args[0])
		}
		st.Files = []string{r.Args[0]}
	}
	switch t := r.Torchrun; {
	case !t.Agent && t.Rendezvous != "":
		return launcher.Spec{}, fmt.Errorf("--rdzv-backend: %w: leave it out, without --agent torchrun there is "+
			"no rendezvous to choose", launcher.ErrInvalid)
	case t.NoPython && t.Module:
		return launcher.Spec{}, fmt.Errorf("--no-python: %w: a --module needs python", launcher.ErrInvalid)
	case t.NoPython && t.Python != "" && !t.Agent: // which is written in it
		return launcher.Spec{}, fmt.Errorf("--no-python: %w: --python names one", launcher.ErrInvalid)
	case t.Agent:
		st.RanksPerNode, st.Argv, st.Agents = 1, r.torchAgent(), true
	case t.NoPython:
		st.Argv = launcher.Lits(r.Args...)
	case t.Text:
		st.Argv = launcher.Lits(append([]string{r.python(), "-u", "-c"}, r.Args...)...)
	case t.Module:
		st.Argv = launcher.Lits(append([]string{r.python(), "-u", "-m"}, r.Args...)...)
	default:
		st.Argv = launcher.Lits(append([]string{r.python(), "-u"}, r.Args...)...)
	}
	if r.Job.GPUs == launcher.NoGPUs && !r.NoGPUs {
		r.Job.GPUs = launcher.AnyGPUs
	}
	own = append(own, r.callersOr("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", workload))
	if _, set := Lookup(r.Environ, "OMP_NUM_THREADS"); set || r.ranksPerNode() > 1 {
		// With several ranks on a machine each would otherwise start a thread a core.
		own = append(own, r.callersOr("OMP_NUM_THREADS", "1", workload))
	}
	if r.Torchrun.Agent {
		// The address that other nodes' workers reach rank 0's store at; where torch
		// is older than 2.0, and does not know it, they look up its host's name. As
		// a flag (--local-addr) an older one would refuse it.
		own = append(own, launcher.Var{Name: "PET_LOCAL_ADDR", Value: launcher.Of(launcher.NodeAddr), Source: "torchrun"})
	}
	var err error
	if st.Env, err = r.environment(workload, own...); err != nil {
		return launcher.Spec{}, err
	}
	return finish(r, workload, st)
}

// torchAgent is torchrun's own command line, for one node. Flags have
// underscores, which every version takes; with dashes 1.13 knows none of them.
func (r Request) torchAgent() []launcher.Value {
	flag := func(name string, value ...launcher.Part) launcher.Value {
		return append(launcher.Value{{Lit: "--" + name + "="}}, value...)
	}
	lit := func(text string) launcher.Part { return launcher.Part{Lit: text} }
	ref := func(r launcher.Ref) launcher.Part { return launcher.Part{Ref: r} }
	argv := launcher.Lits(r.python(), "-u", "-m", "torch.distributed.run")
	argv = append(argv,
		flag("nnodes", ref(launcher.NodeCount)), flag("nproc_per_node", lit(strconv.Itoa(r.ranksPerNode()))),
		flag("rdzv_id", ref(launcher.Job)), flag("max_restarts", lit("0")), // another try is ours to make
		// Its defaults, "0", mean that nothing is redirected, and are an
		// AttributeError with torch before 2.0 on Python 3.11, where iterating over
		// an IntFlag (Std.from_str) passes over 0 and 3. A map of single workers
		// works everywhere; that of a tenth on a machine would be shown all the same.
		flag("redirects", lit("9:1")), flag("tee", lit("9:1")))
	if r.Torchrun.Rendezvous == RendezvousC10d {
		// is_host: torch would compare the endpoint with its host's name.
		argv = append(argv, flag("rdzv_backend", lit(RendezvousC10d)), flag("rdzv_endpoint", ref(launcher.Head), lit(":"),
			ref(launcher.Port)),
			flag("rdzv_conf", lit("is_host="), ref(launcher.HeadHere)))
	} else {
		argv = append(argv, flag("node_rank", ref(launcher.NodeRank)), flag("master_addr", ref(launcher.Head)),
			flag("master_port", ref(launcher.Port)))
	}
	switch attempts := r.Job.MaxRestarts; {
	case attempts > 0: // torchrun's own counts are of this attempt alone, and scripts look whether they recover
		argv = append(argv, launcher.Lits("--no_python", "env")...)
		argv = append(argv, launcher.Value{{Lit: "TORCHELASTIC_RESTART_COUNT="}, ref(launcher.RestartCount)},
			launcher.Lit("TORCHELASTIC_MAX_RESTARTS="+strconv.Itoa(attempts)))
		if !r.Torchrun.NoPython {
			argv = append(argv, launcher.Lits(r.python(), "-u")...)
		}
		if r.Torchrun.Module {
			argv = append(argv, launcher.Lit("-m"))
		}
	case r.Torchrun.NoPython:
		argv = append(argv, launcher.Lit("--no_python"))
	case r.Torchrun.Module:
		argv = append(argv, launcher.Lit("-m"))
	}
	return append(argv, launcher.Lits(r.Args...)...)
}

func (r Request) python() string {
	if r.Torchrun.Python != "" {
		return r.Torchrun.Python
	}
	return r.InVenv("python3")
}
