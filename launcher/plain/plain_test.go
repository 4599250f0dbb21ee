package plain

import "testing"

func TestPlain(t *testing.T) {
	for text, want := range map[string]struct{ line, text, strip string }{
		"spark1 läuft":       {"spark1 läuft", "spark1 läuft", "spark1 läuft"},
		"a\tb\nc":            {"a?b?c", "a\tb\nc", "a b\nc"},
		"\x1b[31mred\x1b[0m": {"?[31mred?[0m", "?[31mred?[0m", "[31mred[0m"},
		"50%\r100%\a":        {"50%?100%?", "50%?100%?", "50%100%"},
		"C1 \u009b2J":        {"C1 ?2J", "C1 ?2J", "C1 2J"},
		"exe\u202egnp.":      {"exe?gnp.", "exe?gnp.", "exegnp."}, // right to left from here
		"not UTF-8 \xff":     {"not UTF-8 ?", "not UTF-8 ?", "not UTF-8 "},
		"no\u00a0break":      {"no?break", "no?break", "no break"},
	} {
		if got := Line(text); got != want.line {
			t.Errorf("line %q: %q, want %q", text, got, want.line)
		}
		if got := Text(text); got != want.text {
			t.Errorf("text %q: %q, want %q", text, got, want.text)
		}
		if got := Strip(text); got != want.strip {
			t.Errorf("strip %q: %q, want %q", text, got, want.strip)
		}
		if Is(text) != (text == want.line) {
			t.Errorf("%q is plain: %v", text, Is(text))
		}
	}
}
