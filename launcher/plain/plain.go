// Package plain decides how text from elsewhere (other machines, other users' programs) is
// shown on a terminal: without anything that would move its cursor, change its colours or
// reverse its direction.
//
// It must not quote a text or interpret it. The patterns by which others do are compiled
// here, when they are first used.
package plain

import (
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Line makes one line: whatever is not printable becomes "?".
func Line(text string) string { return strings.Map(mark, text) }

// Text is Line that keeps line ends and tabs.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return mark(r)
	}, text)
}

// Strip is for the output of programs: it keeps line ends, and drops what it cannot show.
func Strip(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || printable(r):
			return r
		case r == '\t' || unicode.IsSpace(r) && !unicode.IsControl(r):
			return ' '
		}
		return -1
	}, text)
}

// Is reports whether Line would change nothing.
func Is(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return !printable(r) }) < 0
}

func mark(r rune) rune {
	if printable(r) {
		return r
	}
	return '?'
}

func printable(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }

// Cut keeps the beginning of a text that is longer than n bytes, and marks the cut.
func Cut(s string, n int) string {
	s = strings.TrimRight(s, "\n ")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}

// Pattern compiles a regular expression when it is first used: every command and every shim
// is started with all of them, and few need one. It panics, then, if the expression is
// invalid.
func Pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
