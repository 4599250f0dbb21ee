package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type serviceSetOptions struct {
	jobs      []string
	autostart bool
}

func newServiceEnableCmd(a *app) *cobra.Command {
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
		Args: oneService, ValidArgsFunction: a.completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.jobs = args
			return running(a, opts, a.setService)(cmd, args)
		},
	}
}

func oneService(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("the job is missing: sparkrun service ls lists services")
	}
	return nil
}

func (a *app) setService(ctx context.Context, o serviceSetOptions) error {
	b := a.dial()
	defer b.close()
	var failed error
	for _, job := range o.jobs {
		res, err := b.Service(ctx, wire.ServiceRequest{Job: job, Autostart: o.autostart})
		switch {
		case err != nil:
			failed = errors.Join(failed, err)
			continue
		case o.autostart:
			_, err = fmt.Fprintf(a.out, "%s comes back after a power cut\n", res.Job)
		default:
			_, err = fmt.Fprintf(a.out, "%s does not come back after a power cut; until then it goes on\n", res.Job)
		}
		failed = errors.Join(failed, err)
		if res.OnlyOn != "" {
			a.say(aloneText(res.OnlyOn))
		}
	}
	return failed
}
