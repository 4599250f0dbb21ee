package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newServiceDisableCmd(complete completion, run func(context.Context, serviceSetOptions) error) *cobra.Command {
	opts := &serviceSetOptions{}
	return &cobra.Command{
		Use:   "disable JOB...",
		Short: "Leave services off after all their machines were off",
		Long: `Takes back what service enable, or launch --autostart, has asked for. A service that
runs goes on: sparkrun stop ends it.`,
		Example: `  sparkrun service disable llm`,
		Args:    oneService, ValidArgsFunction: complete.jobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.jobs = args
			return running(opts, run)(cmd, args)
		},
	}
}
