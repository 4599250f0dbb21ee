package job

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func newServiceRestartCmd(a *app.App) *cobra.Command {
	var jobs []string
	return &cobra.Command{
		Use:   "restart JOB...",
		Short: "End the ranks of services and start them anew",
		Long: `The ranks get TERM, then KILL after the job's grace; then the service starts again, on
the same machines where they are there, with the files and secrets of its launch. It
counts as one of the failures that --restart allows; where none is left, or the service
has not answered yet, it is refused: stop it, and launch it again. It does not wait:
sparkrun attach JOB follows.

JOB is an id, the beginning of one, or a name.`,
		Example: `  sparkrun service restart llm`,
		Args:    oneService, ValidArgsFunction: a.CompleteJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			jobs = args
			return app.Running(a, &jobs, restartServices)(cmd, args)
		},
	}
}

func restartServices(ctx context.Context, a *app.App, jobs []string) error {
	b := a.Dial()
	defer b.Close()
	var failed error
	for _, job := range jobs {
		res, err := wire.Restart.Call(ctx, b, wire.JobRequest{Job: job})
		if err == nil {
			_, err = fmt.Fprintf(a.Out, "%[1]s starts again: `sparkrun attach %[1]s` follows it\n", res.Job)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
