package app

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Count is a number and its noun: 1 rank, 2 ranks.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Quote quotes a word for a shell.
func Quote(s string) string { return launcher.Quote(s) }

// QuoteAll quotes a command line for a shell.
func QuoteAll(argv []string) string { return launcher.QuoteAll(argv) }

// Columns writes rows in columns, without spaces at the ends of lines.
func Columns(b *strings.Builder, rows [][]string) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	for _, r := range rows {
		cells := make([]string, len(r))
		for i, cell := range r {
			cells[i] = plain.Text(cell)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // a Builder never fails
	for line := range strings.Lines(text.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

// RankSpan names n ranks, beginning with first.
func RankSpan(first, n int) string {
	if n == 1 {
		return fmt.Sprintf("rank %d", first)
	}
	return fmt.Sprintf("ranks %d to %d", first, first+n-1)
}

// Hosts names a few hosts and counts the rest.
func Hosts(names []string) string {
	const few = 4
	if len(names) > few {
		names = append(slices.Clone(names[:few-1]), "+"+strconv.Itoa(len(names)-few+1))
	}
	return strings.Join(names, ",")
}

// ReadFile reads a regular file of at most that many bytes.
func ReadFile(path string, most int64) ([]byte, error) {
	fi, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case fi.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, fi.Size(), most)
	}
	return os.ReadFile(path)
}
