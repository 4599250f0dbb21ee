package engine

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/workloads"
)

// trtllmEngine is TensorRT-LLM. The flags are those of trtllm-serve (tensorrt_llm/commands/serve.py); the
// image is NVIDIA's for DGX Spark (github.com/NVIDIA/dgx-spark-playbooks).
func trtllmEngine() Engine {
	return Engine{
		Name: "trtllm", Title: "TensorRT-LLM", Help: trtllmHelp(), Image: "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc13",
		Program: Option{Name: "trtllm-serve", Usage: "the `PROGRAM` on the machine (default: " +
			"$VIRTUAL_ENV/bin/trtllm-serve, else trtllm-serve)"},
		Options: []Option{{
			Name: "mpirun", Usage: "Open MPI's mpirun on the machines, or in the image (default: the one in PATH)",
			Text: func(r *workloads.Request) *string { return &r.MPI.Mpirun },
		}},
		Port:      8355,
		TP:        Flag{Name: "--tp_size", Other: []string{"--tensor-parallel-size"}},
		PP:        Flag{Name: "--pp_size", Other: []string{"--pipeline-parallel-size"}},
		Host:      Flag{Name: "--host"},
		Listen:    Flag{Name: "--port"},
		Served:    Flag{Name: "--served_model_name"},
		Key:       Key{Remedy: "trtllm-serve asks for none: leave it out, and put a proxy that does before it"},
		noMetrics: "trtllm has no metrics that are read; --probe generate tells of a server that generates nothing",
		memory: memory{limit: trtllmLimit, limits: []Flag{ // tensorrt_llm/commands/serve.py
			{Name: "--kv_cache_free_gpu_memory_fraction", Other: []string{"--free-gpu-memory-fraction"}}}},
		compiles: append(kernelCaches(), "TRTLLM_CACHE_DIR", "TRTLLM_DG_CACHE_DIR"), // tensorrt_llm/_bootstrap.py
		Recipes: Recipes{
			Runtimes: map[string]string{"trtllm": ""},
			Commands: [][]string{{"trtllm-serve", "serve"}, {"trtllm-serve"}, {llmapiLaunch, "trtllm-serve", "serve"},
				{llmapiLaunch, "trtllm-serve"}},
			Keys: map[string]string{"max_model_len": "--max_seq_len"}, Positional: true, Underscores: true, MPI: true,
		},
		decide: decideTRTLLM, stages: trtllmStages,
	}
}

// llmapiLaunch has every MPI rank be a worker, and the server run beside rank 0
// (tensorrt_llm/llmapi/trtllm-llmapi-launch; launcher/mpi/DESIGN.md).
const llmapiLaunch = "trtllm-llmapi-launch"

func decideTRTLLM(e Engine, r workloads.Request) (served, error) {
	words := r.Serve.Command
	switch {
	case len(words) == 0:
		words = []string{program(r, "trtllm-serve"), r.Serve.Model, "--backend", "pytorch"}
	case len(words) > 1 && path.Base(words[0]) == llmapiLaunch: // a recipe's, for several machines
		words = words[1:]
	}
	s, err := e.settle(r, words)
	switch {
	case err != nil:
		return served{}, err
	case s.nodes == 1 && r.MPI.Mpirun != "":
		return served{}, fmt.Errorf("--mpirun %s: %w: on one machine there is no mpirun: --nodes N, or leave it out",
			r.MPI.Mpirun, launcher.ErrInvalid)
	case s.nodes == 1:
		return s, nil
	}
	if program := llmapiProgram(r, s.words[0]); path.IsAbs(program) && besides(e, r, program) == nil && !saysPath(r) {
		dir := path.Dir(program)
		s.note("%s calls the python and python3 of its PATH, which is not known here, so that those of %s are not put "+
			"first: give --env PATH=%[2]s:... for that", program, dir)
	}
	return s, nil
}

// trtllmStages serve a model with TensorRT-LLM: the server on one node; on several an Open MPI
// program with a rank on each, of which the first has the server beside it.
func trtllmStages(e Engine, r workloads.Request, s served) (launcher.Spec, error) {
	serve := launcher.Stage{
		Name: serveStage, Main: true, RanksPerNode: 1, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"),
	}
	argv := append(launcher.Lits(s.words...), e.spread(s)...)
	argv = append(append(argv, e.listens(s)...), launcher.Lits(s.args...)...)
	own := e.own()
	if s.nodes == 1 {
		serve.Where, serve.Argv = launcher.OnHead, argv
	} else {
		program := llmapiProgram(r, s.words[0])
		serve.MPI = &launcher.MPI{Family: launcher.OpenMPI, Program: program, Forced: true}
		own = slices.Concat(own, workloads.MPIVariables(e.Name), besides(e, r, program))
		r.Stdin, r.TTY = launcher.StdinNone, nil
		if err := r.UnderMpirun(&serve, mpi.Options{Task: 1}, append(launcher.Lits(program), argv...)); err != nil {
			return launcher.Spec{}, err
		}
		r.BindTo = serve.BindTo // mpirun binds its ranks
	}
	var err error
	if serve.Env, err = r.Variables(e.Name, false, own...); err != nil {
		return launcher.Spec{}, err
	}
	return e.finish(r, s, serve)
}

// llmapiProgram is that program: where a recipe has it, else where the server is.
func llmapiProgram(r workloads.Request, server string) string {
	if c := r.Serve.Command; len(c) > 1 && path.Base(c[0]) == llmapiLaunch {
		return c[0]
	}
	if !strings.Contains(server, "/") {
		return llmapiLaunch
	}
	return path.Join(path.Dir(server), llmapiLaunch)
}

// saysPath tells whether the user, or a recipe, says what PATH is.
func saysPath(r workloads.Request) bool {
	_, given := workloads.Lookup(slices.Concat(r.Serve.Env, r.Env), "PATH")
	return given || slices.Contains(r.Env, "PATH") // the caller's
}

// besides has a script find the Python beside it, where it was named by a path: it calls python and
// python3, and wants the one that has TensorRT-LLM. Nil, too, where the rest of PATH is not known: an
// image has its own, and so has a machine that the caller's is not like.
func besides(e Engine, r workloads.Request, program string) []launcher.Var {
	at, said := workloads.Lookup(r.Environ, "PATH")
	if !path.IsAbs(program) || !said || r.Away || r.Container != nil {
		return nil
	}
	return []launcher.Var{{Name: "PATH", Value: launcher.Lit(path.Dir(program) + ":" + at), Source: e.Name}}
}

func trtllmHelp() Help {
	return Help{
		Args: "MODEL [-- SERVER ARGS]", Short: "Serve a model with TensorRT-LLM, on one machine or cut over several",
		Long: `Starts trtllm-serve with MODEL, a name on Hugging Face or a folder of every machine, and
its PyTorch backend, and prints the URL once it answers /health.

On several machines it is a program of Open MPI's: mpirun on the first one starts
trtllm-llmapi-launch on each, without ssh, and that trtllm-serve on the first one, which
alone listens; its port has to be free on all of them. mpirun is the image's, or with
--runtime host the machine's (in PATH, or --mpirun). Where a machine's part or the server
itself ends, all of it ends, and launch names which.

How the model is cut is worked out as for vllm (see launch vllm --help).

Its metrics are not read, so that a wedge is not seen in them and --on-wedge restart is
refused; --probe generate sees that no token comes.

SERVER ARGS go to the server untouched. Those that say how the model is cut or where
the server listens are read, and not given twice.

` + serveHelp,
		Example: `  sparkrun launch trtllm nvidia/Qwen3-14B-FP4
  sparkrun launch trtllm nvidia/Qwen3-235B-A22B-FP4 --nodes 2 -- --max_batch_size 4
  sparkrun launch trtllm /models/llama --on spark2 -- --max_batch_size 4 --max_num_tokens 32768

  # the machines' own TensorRT-LLM and Open MPI
  sparkrun launch trtllm /models/llama --nodes 2 --runtime host --trtllm-serve /opt/trtllm/bin/trtllm-serve`,
	}
}
