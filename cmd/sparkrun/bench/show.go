package bench

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

func newLsCmd(a *app.App) *cobra.Command {
	json := false
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the runs that are kept",
		Long: `Lists your runs, the latest last. They are files in ~/.local/state/sparkrun/bench, one a
run; remove one to forget it.

--json prints an array: id, name, file, at, state (done, failed, running or interrupted)
and results, which counts what was measured.`,
		Example: "  sparkrun bench ls",
		Args:    app.Takes(0, ""),
		RunE:    func(*cobra.Command, []string) error { return list(a, json) },
	}
	cmd.Flags().BoolVar(&json, "json", false, "print JSON")
	return cmd
}

// listed is a run of the list.
type listed struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	File    string    `json:"file"`
	At      time.Time `json:"at"`
	State   string    `json:"state"`
	Results int       `json:"results"`
}

func list(a *app.App, json bool) error {
	runs, err := kept(a)
	if err != nil {
		return err
	}
	all, rows := []listed{}, [][]string{{"RUN", "BEGAN", "STATE", "RESULTS", "FILE"}}
	for _, r := range runs {
		h := r.Headers[0]
		l := listed{ID: r.ID(), Name: h.Name, File: h.File, At: h.At, State: r.state()}
		for _, res := range r.Results {
			if res.Error == "" {
				l.Results++
			}
		}
		all = append(all, l)
		rows = append(rows, []string{l.ID, launcher.Age(time.Since(h.At)) + " ago", l.State, strconv.Itoa(l.Results), h.File})
	}
	if json {
		return a.Object(all)
	}
	return table(a, rows)
}

// state says how far a run is: one whose file is locked goes on.
func (r saved) state() string {
	switch {
	case r.Ended != nil && r.Ended.Failed > 0:
		return "failed"
	case r.Ended != nil:
		return "done"
	}
	f, err := os.Open(r.path)
	if err == nil {
		defer f.Close()
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
			return "running"
		}
	}
	return "interrupted"
}

func newShowCmd(a *app.App) *cobra.Command {
	asCSV, asJSON := false, false
	cmd := &cobra.Command{
		Use:   "show RUN",
		Short: "Show what a run measured, and under which circumstances",
		Long: `Shows a run's circumstances, then for each case the median of each figure, its spread
(the interquartile range, as a part of the median) and how many runs it is of; then what
failed and why, and how rates grow with nodes or tp. RUN is an id; the begin of one, or
the name of a file's benchmarks, for the latest such run; or a FILE.jsonl of another
machine.

--csv and --json print all that is kept. --csv prints a row for each figure of each
run of a case: run, scenario, the values that vary, repeat, at, figure, value, unit,
better, error. What a spreadsheet would take for a formula has a ' before it. --json
prints an object: run (the circumstances, once for each time that it was begun or
resumed), results (key, scenario, values, argv, env, load, repeat, at, client, server,
before and after with the GPUs' clocks, figures, input_tokens, output_tokens, notes,
error) and ended.`,
		Example: `  sparkrun bench show pair
  sparkrun bench show pair --csv > pair.csv
  sparkrun bench show pair --json | jq '.results[].figures'`,
		Args: func(_ *cobra.Command, args []string) error {
			if asCSV && asJSON {
				return app.Usagef("want one of --csv and --json")
			}
			return app.Takes(1, "the run")(nil, args)
		},
		ValidArgsFunction: completeRuns(a),
		RunE: over(a, func(runs []bench.Run) error {
			switch {
			case asJSON:
				return a.Object(runs[0])
			case asCSV:
				return printCSV(a, runs[0])
			}
			return showRun(a, runs[0])
		}),
	}
	cmd.Flags().BoolVar(&asCSV, "csv", false, "print CSV")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showRun(a *app.App, r bench.Run) error {
	fmt.Fprintf(a.Out, "%s, of %s\n", plain.Line(r.ID()), plain.Line(r.Last().File))
	for _, s := range r.Circumstances() {
		fmt.Fprintf(a.Out, "  %s: %s\n", plain.Line(s.Name), plain.Line(s.Value))
	}
	clocks := r.Clocks()
	for _, host := range slices.Sorted(maps.Keys(clocks)) {
		fmt.Fprintf(a.Out, "  GPU clock of %s: %.0f MHz\n", plain.Line(host), bench.Median(clocks[host]))
	}
	rows, notes, of := [][]string{{"CASE", "FIGURE", "MEDIAN", "SPREAD", "RUNS"}}, []string{}, map[string][]string{}
	groups := r.Groups()
	for _, g := range groups {
		label := g.Label()
		for _, f := range g.Figures {
			m, spread := bench.MiddleOf(f.Values), "-"
			if m.N > 1 {
				spread = percent("%.1f %%", m.Spread)
			}
			rows = append(rows, []string{label, f.Name, number(m.Median, f.Unit), spread, strconv.Itoa(m.N)})
		}
		if g.Error != "" {
			notes = append(notes, label+": failed: "+g.Error)
		}
		for _, res := range g.Results {
			for _, n := range res.Notes {
				if of[n] == nil {
					notes = append(notes, n)
				}
				of[n] = append(of[n], fmt.Sprintf("%s, run %d", label, res.Repeat))
			}
		}
	}
	if err := table(a, rows); err != nil {
		return err
	}
	for _, n := range notes {
		if runs := of[n]; len(runs) > 0 {
			n = runs[0] + ": " + n
			if len(runs) > 1 {
				n += fmt.Sprintf(" (and in %d more)", len(runs)-1)
			}
		}
		fmt.Fprintln(a.Out, plain.Line(n))
	}
	scaling(a, "", bench.Scaling(groups))
	return nil
}

// table prints what files of others may say, a line for each row.
func table(a *app.App, rows [][]string) error {
	for _, r := range rows {
		for i := range r {
			r[i] = plain.Line(r[i])
		}
	}
	return a.Table(rows)
}

func number(v float64, unit string) string {
	text := strconv.FormatFloat(v, 'g', 4, 64)
	if v >= 1e4 && v < 1e15 {
		text = strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSpace(text + " " + unit)
}

func scaling(a *app.App, of string, all []bench.Scale) {
	for _, s := range all {
		fmt.Fprintln(a.Out, plain.Line(fmt.Sprintf("%s%s: %s with %s=%d is %.2f times that with %d: %.1f %% of ideal",
			of, s.Case, s.Figure, s.By, s.To, s.Speedup, s.From, 100*s.Efficiency)))
	}
}
