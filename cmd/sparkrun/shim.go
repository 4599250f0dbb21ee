package main

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/launcher/shim"
)

// newShimCmd is not for people: agents start it.
func newShimCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "shim DIR",
		Short:  "Own the ranks of one job on this machine",
		Long:   "Started by the agent, once a job. It owns the ranks and outlives the agent.",
		Hidden: true,
		Args:   takes(1, "the shim's folder"),
		RunE: func(_ *cobra.Command, args []string) error {
			return exits(shim.Main(args[0]), nil)
		},
	}
}
