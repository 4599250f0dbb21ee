package bootstrap

import (
	"cmp"
	"strings"
)

// older compares two versions as dpkg does: numbers by value, '~' before the end of a
// version, letters before other characters. A word that does not begin with a digit, such
// as dev, is neither older nor newer than another.
func older(a, b string) bool {
	if !beginsWithDigit(a) || !beginsWithDigit(b) {
		return false
	}
	for a != "" || b != "" {
		var x, y string
		x, a = cutWhile(a, func(c byte) bool { return !digit(c) })
		y, b = cutWhile(b, func(c byte) bool { return !digit(c) })
		for i := range max(len(x), len(y)) {
			if d := cmp.Compare(order(x, i), order(y, i)); d != 0 {
				return d < 0
			}
		}
		x, a = cutWhile(a, digit)
		y, b = cutWhile(b, digit)
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if d := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); d != 0 {
			return d < 0
		}
	}
	return false
}

func beginsWithDigit(s string) bool { return s != "" && digit(s[0]) }
func digit(c byte) bool             { return '0' <= c && c <= '9' }

func cutWhile(s string, is func(byte) bool) (head, tail string) {
	for i := range len(s) {
		if !is(s[i]) {
			return s[:i], s[i:]
		}
	}
	return s, ""
}

// order is the weight of a character that is no digit; the end of a version has the weight
// of a word's.
func order(s string, i int) int {
	switch {
	case i >= len(s):
		return 0
	case s[i] == '~':
		return -1
	case 'a' <= s[i] && s[i] <= 'z' || 'A' <= s[i] && s[i] <= 'Z':
		return int(s[i])
	}
	return int(s[i]) + 256
}
