package bench

import (
	"encoding/csv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

func printCSV(a *app.App, r bench.Run) error {
	w := csv.NewWriter(a.Out)
	w.WriteAll(rows(r)) //nolint:errcheck // Error has it
	return w.Error()
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
