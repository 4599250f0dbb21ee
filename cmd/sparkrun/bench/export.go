package bench

import (
	"encoding/csv"
	"slices"
	"strconv"
	"strings"
	"time"

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

func newExportCmd(a *app.App) *cobra.Command {
	asCSV, asJSON := false, false
	cmd := &cobra.Command{
		Use:   "export RUN",
		Short: "Print all that is kept of a run, as CSV or JSON",
		Long: `--csv prints a row for each figure of each run of a case: run, scenario, the values that
vary, repeat, at, figure, value, unit, better, error. What a spreadsheet would take for a
formula has a ' before it. --json prints an object: run (the circumstances, once for each
time that it was begun or resumed), results (key, scenario, values, argv, env, load,
repeat, at, client, server, before and after with the GPUs' clocks, figures,
input_tokens, output_tokens, notes, error) and ended.`,
		Example: "  sparkrun bench export pair --csv > pair.csv\n  sparkrun bench export pair --json | jq '.results[].figures'",
		Args: func(_ *cobra.Command, args []string) error {
			if asCSV == asJSON {
				return app.Usagef("want one of --csv and --json")
			}
			return app.Takes(1, "the run")(nil, args)
		},
		ValidArgsFunction: completeRuns(a),
		RunE: over(a, func(runs []bench.Run) error {
			if asJSON {
				return a.Object(runs[0])
			}
			w := csv.NewWriter(a.Out)
			w.WriteAll(rows(runs[0])) //nolint:errcheck // Error has it
			return w.Error()
		}),
	}
	cmd.Flags().BoolVar(&asCSV, "csv", false, "print CSV")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func rows(r bench.Run) [][]string {
	var names []string
	for _, res := range r.Results {
		for _, v := range res.Values {
			if !slices.Contains(names, v.Name) {
				names = append(names, v.Name)
			}
		}
	}
	behind := []string{"repeat", "at", "figure", "value", "unit", "better", "error"}
	out := [][]string{slices.Concat([]string{"run", "scenario"}, names, behind)}
	add := func(res bench.Result, more ...string) {
		row := []string{r.ID(), res.Scenario}
		for _, name := range names {
			row = append(row, res.Value(name))
		}
		row = append(append(row, strconv.Itoa(res.Repeat), res.At.Format(time.RFC3339)), more...)
		for i := range row {
			row[i] = cell(row[i])
		}
		out = append(out, row)
	}
	for _, res := range r.Results {
		for _, f := range res.Figures {
			add(res, f.Name, strconv.FormatFloat(f.Value, 'g', -1, 64), f.Unit, string(f.Better), "")
		}
		if res.Error != "" {
			add(res, "", "", "", "", res.Error)
		}
	}
	return out
}

// cell is a text of one line, that a spreadsheet does not take for a formula.
func cell(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if _, err := strconv.ParseFloat(text, 64); err != nil && strings.ContainsAny(text[:min(1, len(text))], "=+-@") {
		return "'" + text
	}
	return text
}
