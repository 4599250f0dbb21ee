package bench

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

func newCompareCmd(a *app.App) *cobra.Command {
	json := false
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Say how run B differs from run A",
		Long: `Lists which circumstances differ, then each figure of each case that both runs have: the
medians with their spread, how much B's is more or less, and whether that is better,
worse, or no difference: one that would come by chance in more than 1 of 20 comparisons
(the exact Mann-Whitney U test, p below 0.05, as benchstat has it). It takes 4 runs of
each to tell a difference at all. A and B are runs as for sparkrun bench show.

--json prints an object: circumstances (what, a, b), figures (case, figure, unit, better,
a and b with median, spread and n, ratio, p, verdict), only_a, only_b, and scaling_a,
scaling_b (case, figure, by, from, to, speedup, efficiency).`,
		Example: `  sparkrun bench compare pair-20261128-0900 pair-20261129-0900
  sparkrun bench compare before.jsonl pair --json | jq '.figures[] | select(.verdict == "worse")'`,
		Args:              app.Takes(2, "a run"),
		ValidArgsFunction: completeRuns(a),
		RunE: func(_ *cobra.Command, args []string) error {
			runs, err := find(a, args...)
			if err != nil {
				return err
			}
			c := bench.Compare(runs[0], runs[1])
			if json {
				return a.Object(c)
			}
			return compare(a, runs[0].ID(), runs[1].ID(), c)
		},
	}
	cmd.Flags().BoolVar(&json, "json", false, "print JSON")
	return cmd
}

func compare(a *app.App, from, to string, c bench.Comparison) error {
	fmt.Fprintf(a.Out, "A: %s\nB: %s\n", plain.Text(from), plain.Text(to))
	for _, d := range c.Circumstances {
		fmt.Fprintf(a.Out, "differs: %s: %s, in B %s\n", plain.Text(d.What), plain.Text(d.A), plain.Text(d.B))
	}
	rows := [][]string{{"CASE", "FIGURE", "A", "B", "B TO A", "P", "VERDICT"}}
	told := 0
	for _, f := range c.Figures {
		change := "-"
		if f.Ratio > 0 {
			change = fmt.Sprintf("%+.1f %%", 100*(f.Ratio-1))
		}
		if f.Verdict != bench.TooFew {
			told++
		}
		rows = append(rows, []string{plain.Text(f.Case), f.Figure, middle(f.A, f.Unit), middle(f.B, f.Unit), change,
			fmt.Sprintf("%.3f", f.P), string(f.Verdict)})
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	for _, only := range []struct {
		of    string
		cases []string
	}{{"A", c.OnlyA}, {"B", c.OnlyB}} {
		if len(only.cases) > 0 {
			fmt.Fprintf(a.Out, "only in %s: %s\n", only.of, plain.Text(strings.Join(only.cases, "; ")))
		}
	}
	if by := float64(told) * bench.Alpha; by >= 1 {
		fmt.Fprintf(a.Out, "of %d comparisons about %.0f would differ by chance alone\n", told, by)
	}
	if err := scaling(a, "A: ", c.ScalingA); err != nil {
		return err
	}
	return scaling(a, "B: ", c.ScalingB)
}

func middle(m bench.Middle, unit string) string {
	if m.N < 2 {
		return number(m.Median, unit)
	}
	return number(m.Median, unit) + " (" + spread(m) + ")"
}
