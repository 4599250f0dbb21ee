package workloads

import (
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
)

// execSpec runs any program, once a rank. It gets the same variables as a torch
// worker, so that `exec -- python3 train.py` is a torch job too.
func execSpec(r Request) (launcher.Spec, error) {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return launcher.Spec{}, fmt.Errorf("exec: %w: no command: sparkrun launch exec [flags] -- COMMAND [ARG...]", launcher.ErrInvalid)
	}
	env, err := r.environment("exec", r.callersOr("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "exec"))
	if err != nil {
		return launcher.Spec{}, err
	}
	return finish(r, "exec", launcher.Stage{
		Name: "exec", RanksPerNode: r.ranksPerNode(),
		Argv: launcher.Lits(r.Args...), Env: env, Workdir: r.Workdir, UsesPort: true,
		Ready: answers(r.Job.Service),
	})
}

// answers has a service's rank 0 answer before it is called ready.
func answers(v *launcher.Service) []launcher.Probe {
	switch {
	case v == nil || len(v.Port) == 0: // what it lacks is told by the spec's check
		return nil
	case v.Health == "":
		return []launcher.Probe{{Kind: launcher.ProbeTCP, Head: true, Port: v.Port, What: "a listener"}}
	}
	return []launcher.Probe{{Kind: launcher.ProbeHTTP, Head: true, Port: v.Port, Path: v.Health, What: "GET " + v.Health}}
}
