// Package bench decides how benchmarks are run one after the other, where what they measured is kept, and what is shown
// of it. A server or a command is a child process, as a person would have typed it.
//
// It must not know what a file of benchmarks means, nor draw conclusions: workloads/bench does.
package bench

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

// NewCmd makes `sparkrun bench`.
func NewCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Run benchmarks from a file, keep what they measure, and compare",
		Long: `Runs what a file says, one after the other: models or recipes that are served and asked,
or any command with a pattern for its figure; with values that vary, warming up and
repeats. All is kept with its circumstances: versions, machines, kernels and drivers,
the GPUs' clocks before and after, the last nccl-test, the command lines. Two runs are
compared by their medians, and a difference that may be chance is called none.

sparkrun help bench has a file, and what each key means.`,
		Example: `  sparkrun bench run pair.yaml --dry-run
  sparkrun bench run pair.yaml
  sparkrun bench compare pair-20261128-0900 pair-20261129-0900`,
	}
	app.Group(cmd)
	cmd.AddCommand(newRunCmd(a), newLsCmd(a), newShowCmd(a), newCompareCmd(a), newPlotCmd(a))
	return cmd
}
