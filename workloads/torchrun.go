package workloads

import (
	"fmt"
	"path"

	"github.com/sparkrun/sparkrun/launcher"
)

// Torchrun are the options of torchrun that still mean something where sparkrun
// takes the place of its agent.
type Torchrun struct {
	// Python is the interpreter on the nodes: a path, or a name looked up in
	// the ranks' PATH. Empty means the caller's $VIRTUAL_ENV/bin/python3, and
	// python3 where no virtual environment is active.
	Python string
	// Module: the first argument is a module (python -m), no file.
	Module bool
	// NoPython: the first argument is a program and runs by itself.
	NoPython bool
}

// torchrunSpec starts torch workers as torchrun would
// (torch/distributed/run.py, config_from_args), without a Python before them.
func torchrunSpec(r Request) (launcher.Spec, error) {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return launcher.Spec{}, fmt.Errorf("torchrun: %w: no script: sparkrun launch torchrun [flags] -- SCRIPT [ARG...]", launcher.ErrInvalid)
	}
	st := launcher.Stage{
		Name: "torchrun", RanksPerNode: r.ranksPerNode(), Workdir: r.Workdir, UsesPort: true,
	}
	switch t := r.Torchrun; {
	case t.NoPython && t.Module:
		return launcher.Spec{}, fmt.Errorf("--no-python: %w: a --module needs python", launcher.ErrInvalid)
	case t.NoPython && t.Python != "":
		return launcher.Spec{}, fmt.Errorf("--no-python: %w: --python names one", launcher.ErrInvalid)
	case t.NoPython:
		st.Argv = launcher.Lits(r.Args...)
	case t.Module:
		st.Argv = launcher.Lits(append([]string{r.python(), "-u", "-m"}, r.Args...)...)
	default:
		st.Argv = launcher.Lits(append([]string{r.python(), "-u"}, r.Args...)...)
		st.Files = []string{r.Args[0]}
	}
	if r.Job.GPUs == launcher.NoGPUs && !r.NoGPUs {
		r.Job.GPUs = launcher.AnyGPUs
	}
	own := []launcher.Var{r.callersOr("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "torchrun")}
	if _, set := lookup(r.Environ, "OMP_NUM_THREADS"); set || r.ranksPerNode() > 1 {
		// With several ranks on a machine each would otherwise start a thread a core.
		own = append(own, r.callersOr("OMP_NUM_THREADS", "1", "torchrun"))
	}
	var err error
	if st.Env, err = r.environment("torchrun", own...); err != nil {
		return launcher.Spec{}, err
	}
	return finish(r, "torchrun", st)
}

func (r Request) python() string {
	if r.Torchrun.Python != "" {
		return r.Torchrun.Python
	}
	if venv, _ := lookup(r.Environ, "VIRTUAL_ENV"); venv != "" {
		return path.Join(venv, "bin", "python3")
	}
	return "python3"
}
