package main

import (
	"github.com/spf13/cobra"
)

func newServiceDisableCmd(a *app) *cobra.Command {
	opts := &serviceSetOptions{}
	return &cobra.Command{
		Use:   "disable JOB...",
		Short: "Leave services off after all their machines were off",
		Long: `Takes back what service enable, or launch --autostart, has asked for. A service that
runs goes on: sparkrun stop ends it.`,
		Example: `  sparkrun service disable llm`,
		Args:    oneService, ValidArgsFunction: a.completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.jobs = args
			return running(a, opts, a.setService)(cmd, args)
		},
	}
}
