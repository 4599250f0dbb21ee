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
a and b with median, spread and n, change, p, verdict), only_a, only_b, and scaling_a,
scaling_b (case, figure, by, from, to, speedup, efficiency).`,
		Example: `  sparkrun bench compare pair-20261128-0900 pair-20261129-0900
  sparkrun bench compare before.jsonl pair --json | jq '.figures[] | select(.verdict == "worse")'`,
		Args:              app.Takes(2, "a run"),
		ValidArgsFunction: completeRuns(a),
		RunE: over(a, func(runs []bench.Run) error {
			c := bench.Compare(runs[0], runs[1])
			if json {
				return a.Object(c)
			}
			return compare(a, runs[0].ID(), runs[1].ID(), c)
		}),
	}
	cmd.Flags().BoolVar(&json, "json", false, "print JSON")
	return cmd
}

func compare(a *app.App, from, to string, c bench.Comparison) error {
	say := func(format string, args ...any) { fmt.Fprintln(a.Out, plain.Line(fmt.Sprintf(format, args...))) }
	say("A: %s", from)
	say("B: %s", to)
	for _, d := range c.Circumstances {
		say("differs: %s: %s, in B %s", d.What, d.A, d.B)
	}
	rows := [][]string{{"CASE", "FIGURE", "A", "B", "B TO A", "P", "VERDICT"}}
	told := 0
	for _, f := range c.Figures {
		if f.Verdict != bench.TooFew {
			told++
		}
		rows = append(rows, []string{f.Case, f.Figure, middle(f.A, f.Unit), middle(f.B, f.Unit), percent("%+.1f %%", f.Change),
			fmt.Sprintf("%.3f", f.P), string(f.Verdict)})
	}
	if err := table(a, rows); err != nil {
		return err
	}
	if len(c.OnlyA) > 0 {
		say("only in A: %s", strings.Join(c.OnlyA, "; "))
	}
	if len(c.OnlyB) > 0 {
		say("only in B: %s", strings.Join(c.OnlyB, "; "))
	}
	if by := float64(told) * bench.Alpha; by >= 1 {
		say("of %d comparisons about %.0f would differ by chance alone", told, by)
	}
	scaling(a, "A: ", c.ScalingA)
	scaling(a, "B: ", c.ScalingB)
	return nil
}

func middle(m bench.Middle, unit string) string {
	if m.N < 2 {
		return number(m.Median, unit)
	}
	return number(m.Median, unit) + " (" + percent("%.1f %%", m.Spread) + ")"
}

func percent(format string, part *float64) string {
	if part == nil {
		return "-"
	}
	return fmt.Sprintf(format, 100**part)
}
