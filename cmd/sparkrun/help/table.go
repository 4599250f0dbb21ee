package help

import (
	"strings"
	"unicode/utf8"
)

// align pads the tables of a chapter, so that their columns line up on a terminal.
func align(text string) string {
	var out strings.Builder
	var table [][]string
	fenced := false
	for line := range strings.Lines(text) {
		if !fenced && strings.HasPrefix(line, "|") {
			table = append(table, strings.Split(strings.Trim(line, "|\n"), "|"))
			continue
		}
		writeTable(&out, table)
		table = nil
		fenced = fenced != strings.HasPrefix(line, "```")
		out.WriteString(line)
	}
	writeTable(&out, table)
	return out.String()
}

func writeTable(out *strings.Builder, rows [][]string) {
	const rule = 1 // the row of dashes
	var widths []int
	for i, row := range rows {
		for k, cell := range row {
			row[k] = strings.TrimSpace(cell)
			if k == len(widths) {
				widths = append(widths, 0)
			}
			if i != rule {
				widths[k] = max(widths[k], utf8.RuneCountInString(row[k]))
			}
		}
	}
	for i, row := range rows {
		for k, cell := range row {
			if i == rule {
				out.WriteString("|" + strings.Repeat("-", widths[k]+2))
			} else {
				out.WriteString("| " + cell + strings.Repeat(" ", widths[k]-utf8.RuneCountInString(cell)+1))
			}
		}
		out.WriteString("|\n")
	}
}
