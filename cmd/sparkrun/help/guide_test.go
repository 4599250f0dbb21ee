package help

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// A chapter is read in a terminal as it is: lines fit, fences end, and tables are aligned.
func TestChaptersAreReadableAsTheyAre(t *testing.T) {
	for _, topic := range Topics() {
		if topic.Title == "" || !strings.HasPrefix(topic.Text, "# ") {
			t.Errorf("%s has no title", topic.Name)
		}
		fenced, row := false, ""
		for line := range strings.Lines(topic.Text) {
			line = strings.TrimSuffix(line, "\n")
			if strings.ContainsAny(line, "\t\r\x1b") {
				t.Errorf("%s: a control character in %q", topic.Name, line)
			}
			fenced = fenced != strings.HasPrefix(line, "```")
			width := 82
			if fenced || strings.HasPrefix(line, "|") {
				width = 120 // commands and tables are not broken
			}
			if utf8.RuneCountInString(line) > width {
				t.Errorf("%s: a line of more than %d letters: %s", topic.Name, width, line)
			}
			if fenced || !strings.HasPrefix(line, "|") {
				row = ""
				continue
			}
			if row != "" && bars(line) != bars(row) {
				t.Errorf("%s: the table's columns do not stand below each other:\n%s\n%s", topic.Name, row, line)
			}
			row = line
		}
		if fenced {
			t.Errorf("%s: a fence does not end", topic.Name)
		}
	}
}

// bars tells where a table's row has its columns: what is no bar becomes a blank.
func bars(row string) string {
	return strings.Map(func(r rune) rune {
		if r != '|' {
			return ' '
		}
		return r
	}, row)
}

func TestPager(t *testing.T) {
	for _, c := range []struct {
		o    Output
		want string
	}{
		{Output{}, "text"},
		{Output{Pager: "tr a-z A-Z"}, "text"}, // no terminal
		{Output{TTY: true}, "text"},
		{Output{TTY: true, Pager: "tr a-z A-Z"}, "TEXT"},
	} {
		var out bytes.Buffer
		if err := c.o.show(&out, "text"); err != nil || out.String() != c.want {
			t.Errorf("%+v: %q, %v", c.o, out.String(), err)
		}
	}
	if err := (Output{TTY: true, Pager: "exit 3"}).show(&bytes.Buffer{}, ""); err == nil || !strings.Contains(err.Error(), "exit 3") {
		t.Errorf("a pager that fails: %v", err)
	}
}
