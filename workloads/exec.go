package workloads

import (
	"fmt"
	"strconv"

	"github.com/sparkrun/sparkrun/launcher"
)

// execSpec runs any program, once a rank. It gets the same variables as a torch
// worker, so that `exec -- python3 train.py` is a torch job too.
func execSpec(r Request) (launcher.Spec, error) {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return launcher.Spec{}, fmt.Errorf("exec: %w: no command: sparkrun launch exec [flags] -- COMMAND [ARG...]",
			launcher.ErrInvalid)
	}
	env, err := r.environment("exec", r.callersOr("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "exec"))
	if err != nil {
		return launcher.Spec{}, err
	}
	st := launcher.Stage{
		Name: "exec", RanksPerNode: r.ranksPerNode(),
		Argv: launcher.Lits(r.Args...), Env: env, Workdir: r.Workdir, UsesPort: true,
	}
	if r.Job.Service != nil {
		if r.Job.Service, err = answers(*r.Job.Service, &st); err != nil {
			return launcher.Spec{}, err
		}
	}
	return finish(r, "exec", st)
}

// answers gives a stage the port of its service, which is a number, and has rank 0 answer
// there before it is called ready.
func answers(v launcher.Service, st *launcher.Stage) (*launcher.Service, error) {
	at, err := strconv.ParseUint(v.Port.String(), 10, 16)
	if err != nil || at == 0 {
		return nil, fmt.Errorf("--serve %s: %w: want a port from 1 to 65535", v.Port, launcher.ErrInvalid)
	}
	st.Ports = []launcher.NamedPort{{Name: ServePort, At: uint16(at)}}
	v.Port = launcher.Of(launcher.PortNamed(ServePort))
	ready := launcher.Probe{Kind: launcher.ProbeTCP, Head: true, Port: v.Port, What: "a listener"}
	if v.Health != "" {
		ready.Kind, ready.Path, ready.What = launcher.ProbeHTTP, v.Health, "GET "+v.Health
	}
	st.Ready = []launcher.Probe{ready}
	return &v, nil
}
