package workloads

import (
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
)

// IBTest is a test of the links by perftest. It is for the machines that Job.On names, in
// that order, as its plan is.
type IBTest struct {
	// Command is sparkrun's own that each rank runs, with its first port and Plan behind it.
	Command string
	// Plan is the text of an ibtest.Plan; Size how many machines it is for.
	Plan string
	Size int
	// Program is the first of perftest's that is needed: every node looks for it before
	// any rank starts.
	Program string
	// Ports is how many servers a node has at one time.
	Ports int
}

// ibPorts is the name of the ports that a node's servers listen on.
const ibPorts = "perftest"

// ibTestSpec runs one rank a node, which is sparkrun itself: it carries the plan out by
// starting perftest's programs. The ranks speak PMI, for whose turn it is and which ports
// their servers have, so that the job's own connections are all they need.
func ibTestSpec(r Request) (launcher.Spec, error) {
	t := r.IBTest
	bad := func(what string) (launcher.Spec, error) {
		return launcher.Spec{}, fmt.Errorf("ib-test: %w: %s", launcher.ErrInvalid, what)
	}
	switch {
	case r.Container != nil:
		return bad("--image: perftest is looked for on the machines themselves")
	case r.ranksPerNode() != 1:
		return bad("--nproc-per-node: a machine has one rank")
	case len(t.Plan) > launcher.MaxTextBytes/2:
		return bad(fmt.Sprintf("%d machines have too many pairs for one test: name fewer with --on", t.Size))
	}
	env, err := r.Variables("ib-test", false,
		launcher.Var{Name: "PMI_RANK", Value: launcher.Of(launcher.Rank), Source: "ib-test"},
		launcher.Var{Name: "PMI_SIZE", Value: launcher.Of(launcher.WorldSize), Source: "ib-test"})
	if err != nil {
		return launcher.Spec{}, err
	}
	return finish(r, "ib-test", launcher.Stage{
		Name: "ib-test", RanksPerNode: 1, Env: env, Workdir: r.Workdir,
		Argv: []launcher.Value{launcher.Of(launcher.Program), launcher.Lit(t.Command),
			launcher.Of(launcher.PortNamed(ibPorts)), launcher.Lit(t.Plan)},
		Ports: []launcher.NamedPort{{Name: ibPorts, Count: max(1, t.Ports)}},
		MPI:   &launcher.MPI{Family: launcher.MPICH, Program: t.Program, Forced: true},
	})
}
