package bench

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

func newPlotCmd(a *app.App) *cobra.Command {
	var d bench.Drawn
	out := ""
	cmd := &cobra.Command{
		Use:   "plot RUN...",
		Short: "Draw a figure of runs as SVG",
		Long: `Draws a figure over one of the values that vary: a point for each median, from its lower
to its upper quartile, and a line for each combination of the other values and each run.`,
		Example: `  sparkrun bench plot pair -o pair.svg
  sparkrun bench plot pair-20261128-0900 pair --figure ttft_p50 --by concurrency -o -`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return app.Usagef("the run is missing: `sparkrun bench ls` lists them")
			case out == "":
				return app.Usagef("--output is missing: name a file, or - for standard output")
			}
			return nil
		},
		ValidArgsFunction: completeRuns(a),
		RunE: over(a, func(runs []bench.Run) error {
			svg, err := bench.Draw(runs, d)
			if err != nil {
				return err
			}
			return a.WriteFile(out, svg)
		}),
	}
	fs := cmd.Flags()
	fs.StringVarP(&out, "output", "o", "", "write to this `FILE` (- for standard output)")
	fs.StringVar(&d.Figure, "figure", "", "the `NAME` of the figure (default: the first)")
	fs.StringVar(&d.By, "by", "", "the `NAME` of the value (default: that which takes most)")
	return cmd
}
