// Package preflight decides whether a stage's ranks could run on this machine now: whether
// what the stage names is there for its user, and whether the machine has what it needs. It
// is a list of named checks, a file each, which a prepare and a dry run both go through.
//
// It must not change anything, and must not weigh jobs against each other: that is for the
// leader. If a machine does not tell, that is no reason to refuse.
package preflight

import (
	"context"
	"errors"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// Machine is the machine that ranks are to run on.
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
	// Yet: in this dry run the job's files are not here yet, and cannot be checked.
	Yet bool

	MPI launcher.MPIFamily // the MPI that the program is linked with, as a check has found out
}

// check is one thing to check.
type check struct {
	name string
	// why returns why the ranks cannot run; nil: nothing is wrong.
	why func(context.Context, *Case) error
}

// checks run row by row. All checks of a row run, and their errors are reported together;
// after a row with an error the next rows do not run.
var checks = [][]check{
	{{"working directory", workdir}},
	{{"files", files}},
	{{"program", program}},
	{{"MPI", linkedMPI}},
	{{"mpirun", mpirun}},
	{{"disk", disk}, {"memory", memory}, {"limits", limits}, {"GPU", gpu}},
	{{"secrets", secrets}},
}

// RefusedError says why ranks cannot run.
type RefusedError struct {
	Checks []string // those that refused
	why    error
}

func (r *RefusedError) Error() string { return r.why.Error() }
func (r *RefusedError) Unwrap() error { return r.why }

// Run runs the checks. Its error is a *RefusedError.
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
