package workloads

import (
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
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

func (r Request) trtllm() (served, error) {
	words := r.Serve.Command
	if len(words) == 0 {
		words = []string{r.program("trtllm-serve"), r.Serve.Model, "--backend", "pytorch"}
	}
	return trtllmServer.settle(r, words)
}

// trtllmSpec serves a model with TensorRT-LLM on one node. Over several it is an MPI program,
// whose ranks come from mpirun.
func trtllmSpec(r Request) (launcher.Spec, error) {
	s, err := r.trtllm()
	if err != nil {
		return launcher.Spec{}, err
	}
	if s.nodes > 1 {
		return launcher.Spec{}, fmt.Errorf("--nodes %d: %w: TensorRT-LLM over several machines is not there yet: one serves (--nodes 1), and vllm and sglang spread", s.nodes, launcher.ErrInvalid)
	}
	r.takesGPUs()
	serve := launcher.Stage{
		Name: ServeStage, Main: true, Where: launcher.OnHead, RanksPerNode: 1, Workdir: r.Workdir, Patience: servePatience,
		Ports: []launcher.NamedPort{s.api()}, Ready: s.ready("/health"),
	}
	if serve.Env, err = r.environmentOf(TRTLLM, false); err != nil {
		return launcher.Spec{}, err
	}
	serve.Argv = append(append(launcher.Lits(s.words...), trtllmServer.listens(s)...), launcher.Lits(s.args...)...)
	return s.finish(r, TRTLLM, []launcher.Stage{serve})
}
