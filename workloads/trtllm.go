package workloads

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// trtllmServer is trtllm-serve's command line (tensorrt_llm/commands/serve.py).
var trtllmServer = server{
	workload: TRTLLM, port: 8355,
	tp:     serverFlag{name: "--tp_size", other: []string{"--tensor-parallel-size"}},
	pp:     serverFlag{name: "--pp_size", other: []string{"--pipeline-parallel-size"}},
	host:   serverFlag{name: "--host"},
	listen: serverFlag{name: "--port"},
	served: serverFlag{name: "--served_model_name"},
}

// llmapiLaunch has every MPI rank be a worker, and the server run beside rank 0
// (tensorrt_llm/llmapi/trtllm-llmapi-launch; launcher/mpi/DESIGN.md).
const llmapiLaunch = "trtllm-llmapi-launch"

func (r Request) trtllm() (served, error) {
	if v := r.Job.Service; v != nil && v.OnWedge == launcher.WedgeRestart {
		return served{}, fmt.Errorf("--on-wedge restart: %w: trtllm has no metrics that are read; --probe generate tells of a server that generates nothing", launcher.ErrInvalid)
	}
	words := r.Serve.Command
	switch {
	case len(words) == 0:
		words = []string{r.program("trtllm-serve"), r.Serve.Model, "--backend", "pytorch"}
	case len(words) > 1 && path.Base(words[0]) == llmapiLaunch: // a recipe's, for several machines
		words = words[1:]
	}
	s, err := trtllmServer.settle(r, words)
	if err != nil || s.nodes == 1 {
		return s, err
	}
	if program := r.llmapiLaunch(s.words[0]); path.IsAbs(program) && r.besides(program) == nil && !r.saysPath() {
		dir := path.Dir(program)
		s.note("%s calls the python and python3 of its PATH, which is not known here, so that those of %s are not put first: give --env PATH=%[2]s:... for that", program, dir)
	}
	return s, nil
}

// trtllmSpec serves a model with TensorRT-LLM: the server on one node; on several an Open MPI
// program with a rank on each, of which the first has the server beside it.
func trtllmSpec(r Request) (launcher.Spec, error) {
	s, err := r.trtllm()
	if err != nil {
		return launcher.Spec{}, err
	}
	if s.nodes == 1 && r.MPI.Mpirun != "" {
		return launcher.Spec{}, fmt.Errorf("--mpirun %s: %w: on one machine there is no mpirun: --nodes N, or leave it out", r.MPI.Mpirun, launcher.ErrInvalid)
	}
	r.takesGPUs()
	serve := launcher.Stage{
		Name: ServeStage, Main: true, RanksPerNode: 1, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"),
	}
	argv := append(launcher.Lits(s.words...), trtllmServer.spread(s)...)
	argv = append(append(argv, trtllmServer.listens(s)...), launcher.Lits(s.args...)...)
	var own []launcher.Var
	if s.nodes == 1 {
		serve.Where, serve.Argv = launcher.OnHead, argv
	} else {
		program := r.llmapiLaunch(s.words[0])
		serve.MPI = &launcher.MPI{Family: launcher.OpenMPI, Program: program, Forced: true}
		own = append(mpiVars(TRTLLM), r.besides(program)...)
		r.Stdin, r.TTY = launcher.StdinNone, nil
		if err := r.underMpirun(&serve, mpi.Options{Task: 1}, append(launcher.Lits(program), argv...)); err != nil {
			return launcher.Spec{}, err
		}
		r.BindTo = serve.BindTo // mpirun binds its ranks
	}
	if serve.Env, err = r.environmentOf(TRTLLM, false, own...); err != nil {
		return launcher.Spec{}, err
	}
	return s.finish(r, TRTLLM, []launcher.Stage{serve})
}

// llmapiLaunch is that program: where a recipe has it, else where the server is.
func (r Request) llmapiLaunch(server string) string {
	if c := r.Serve.Command; len(c) > 1 && path.Base(c[0]) == llmapiLaunch {
		return c[0]
	}
	if !strings.Contains(server, "/") {
		return llmapiLaunch
	}
	return path.Join(path.Dir(server), llmapiLaunch)
}

// saysPath tells whether the user, or a recipe, says what PATH is.
func (r Request) saysPath() bool {
	_, given := lookup(slices.Concat(r.Serve.Env, r.Env), "PATH")
	return given || slices.Contains(r.Env, "PATH") // the caller's
}

// besides has a script find the Python beside it, where it was named by a path: it calls python and
// python3, and wants the one that has TensorRT-LLM. Nil, too, where the rest of PATH is not known: an
// image has its own, and so has a machine that the caller's is not like.
func (r Request) besides(program string) []launcher.Var {
	at, said := lookup(r.Environ, "PATH")
	if !path.IsAbs(program) || !said || r.Away || r.Container != nil {
		return nil
	}
	return []launcher.Var{{Name: "PATH", Value: launcher.Lit(path.Dir(program) + ":" + at), Source: TRTLLM}}
}
