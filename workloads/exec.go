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
	})
}
