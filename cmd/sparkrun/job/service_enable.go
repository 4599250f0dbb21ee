package job

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type serviceSetOptions struct {
	jobs      []string
	autostart bool
}

func newServiceEnableCmd(a *app.App) *cobra.Command {
	opts := &serviceSetOptions{autostart: true}
	return &cobra.Command{
		Use:   "enable JOB...",
		Short: "Bring services back after all their machines were off",
		Long: `After a power cut, once its machines are back, a service that is enabled is started
again, as launch --autostart has it; until then ps says what it waits for. It counts
for no failure. One machine of several that restarts alone is a matter of --restart.

JOB is an id, the beginning of one, or a name.`,
		Example: `  sparkrun service enable llm
  sparkrun service enable k3x llm`,
		Args: oneService, ValidArgsFunction: a.CompleteJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.jobs = args
			return app.Running(a, opts, setService)(cmd, args)
		},
	}
}

func oneService(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return app.Usagef("the job is missing: sparkrun service ls lists services")
	}
	return nil
}

func setService(ctx context.Context, a *app.App, o serviceSetOptions) error {
	b := a.Dial()
	defer b.Close()
	var failed error
	for _, job := range o.jobs {
		res, err := wire.Service.Call(ctx, b, wire.ServiceRequest{Job: job, Autostart: o.autostart})
		switch {
		case err != nil:
			failed = errors.Join(failed, err)
			continue
		case o.autostart:
			_, err = fmt.Fprintf(a.Out, "%s comes back after a power cut\n", res.Job)
		default:
			_, err = fmt.Fprintf(a.Out, "%s does not come back after a power cut; until then it goes on\n", res.Job)
		}
		failed = errors.Join(failed, err)
		if res.OnlyOn != "" {
			a.Say(app.AloneText(res.OnlyOn))
		}
	}
	return failed
}
