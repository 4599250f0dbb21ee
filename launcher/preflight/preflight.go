// Package preflight decides whether a stage's ranks could run on this machine now: whether what the stage names is
// there for its user, and whether the machine has what it needs. What is looked at is a list of named checks, a file
// each, which a prepare and a dry run go through alike.
//
// It must not change anything, and must not weigh jobs against each other: that is the leader's. Where a machine does
// not tell, that is no reason to refuse.
package preflight

import (
	"context"
	"errors"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// Machine is where ranks are to run.
type Machine struct {
	RunDir      string // in memory: an attempt's files, secrets among them
	LogDir      string // output
	MemoryFloor int64  // in bytes of MemAvailable; 0: none
	Secrets     bool   // this node opens secrets
	Containers  *container.Host
}

// Case is one stage of a job on one machine.
type Case struct {
	Machine
	Assignment launcher.Assignment
	Stage      launcher.Stage
	User       login.User
	First      launcher.RankPlan   // what the first of its ranks would be exec'd with
	Container  *container.Prepared // nil: they run on the host
	// Yet: in this dry run the job's files have yet to be brought here, and nothing among them can be looked for.
	Yet bool

	MPI launcher.MPIFamily // what the program is linked to, as a check has found out
}

// check is one thing to look at.
type check struct {
	name string
	// why says why the ranks cannot run; nil: this is no reason.
	why func(context.Context, *Case) error
}

// checks are gone through row by row. In a row all are asked, and what they say is told together; behind a row in
// which one has refused nothing is looked at any more.
var checks = [][]check{
	{{"working directory", workdir}},
	{{"scripts", scripts}},
	{{"program", program}},
	{{"MPI", linkedMPI}},
	{{"mpirun", mpirun}},
	{{"disk", disk}, {"memory", memory}, {"limits", limits}, {"GPU", gpu}},
	{{"secrets", secrets}},
}

// RefusedError is why ranks cannot run.
type RefusedError struct {
	Checks []string // who says so
	why    error
}

func (r *RefusedError) Error() string { return r.why.Error() }
func (r *RefusedError) Unwrap() error { return r.why }

// Run goes through the checks. Its error is a *RefusedError.
func (c *Case) Run(ctx context.Context) error {
	for _, row := range checks {
		var refusal RefusedError
		for _, k := range row {
			if err := k.why(ctx, c); err != nil {
				refusal.Checks = append(refusal.Checks, k.name)
				refusal.why = errors.Join(refusal.why, err)
			}
		}
		if refusal.why != nil {
			return &refusal
		}
	}
	return nil
}
