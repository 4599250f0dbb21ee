package job

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

func newServiceDisableCmd(a *app.App) *cobra.Command {
	opts := &serviceSetOptions{}
	return &cobra.Command{
		Use:   "disable JOB...",
		Short: "Leave services off after all their machines were off",
		Long: `Takes back what service enable, or launch --autostart, has asked for. A service that
runs goes on: sparkrun stop ends it.`,
		Example: `  sparkrun service disable llm`,
		Args:    oneService, ValidArgsFunction: a.CompleteJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.jobs = args
			return app.Running(a, opts, setService)(cmd, args)
		},
	}
}
