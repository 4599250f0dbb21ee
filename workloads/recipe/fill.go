package recipe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// fill puts values in place of a template's placeholders, by the rules of the recipe's
// version.
func (r Recipe) fill(field, template string, values []Setting) (string, []Note, error) {
	if r.Version == "1" {
		text, err := fillOnce(field, template, values)
		return text, nil, err
	}
	return fillAll(field, template, values)
}

var placeholder = plain.Pattern(`\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// fillOnce is Python's str.format: a brace that is meant is written twice, and each
// placeholder must have a value.
func fillOnce(field, template string, values []Setting) (string, error) {
	var b strings.Builder
	known := byName(values)
	for i := 0; i < len(template); i++ {
		c := template[i]
		switch {
		case c != '{' && c != '}':
			b.WriteByte(c)
			continue
		case i+1 < len(template) && template[i+1] == c:
			b.WriteByte(c)
			i++
			continue
		case c == '}':
			return "", invalid(field, "line %d: a `}` alone: a brace that is meant is written twice", lineOf(template, i))
		}
		m := placeholder().FindStringSubmatch(template[i:])
		if m == nil || !strings.HasPrefix(template[i:], m[0]) {
			return "", invalid(field, "line %d: `%s`: want {NAME}; a brace that is meant is written twice",
				lineOf(template, i), head(template[i:]))
		}
		v, ok := known[m[1]]
		if !ok {
			return "", invalid(field, "line %d: %s has no value: give it one with -o %s=VALUE; there are %s",
				lineOf(template, i), m[0], m[1], names(values))
		}
		b.WriteString(v)
		if i += len(m[0]) - 1; b.Len() > maxText {
			return "", invalid(field, "it grows beyond %d KiB", maxText>>10)
		}
	}
	return b.String(), nil
}

// fillAll does so until nothing changes, as values may hold placeholders; a brace that is none
// stays as it is, and so does one without a value, which is noted.
func fillAll(field, template string, values []Setting) (string, []Note, error) {
	text, known := template, byName(values)
	for round := 0; ; round++ {
		next, short := replaced(text, known)
		switch {
		case !short:
			return "", nil, invalid(field, "it grows beyond %d KiB", maxText>>10)
		case next == text:
			var notes []Note
			left := placeholder().FindAllString(text, -1)
			slices.Sort(left)
			for _, m := range slices.Compact(left) {
				notes = append(notes, Note{field, fmt.Sprintf("%s has no value, and stays as it is", m)})
			}
			return text, notes, nil
		case round == maxRounds:
			return "", nil, invalid(field, "a value holds a placeholder that leads back to itself")
		}
		text = next
	}
}

// replaced is one such round; false: it comes to more than maxText, which is found out on the way: a
// recipe may name a long value a hundred thousand times.
func replaced(text string, known map[string]string) (string, bool) {
	var b strings.Builder
	for b.Len() <= maxText {
		at := placeholder().FindStringIndex(text)
		if at == nil {
			b.WriteString(text)
			return b.String(), b.Len() <= maxText
		}
		v, ok := known[text[at[0]+1:at[1]-1]]
		if !ok {
			v = text[at[0]:at[1]]
		}
		b.WriteString(text[:at[0]])
		b.WriteString(v)
		text = text[at[1]:]
	}
	return "", false
}

func lineOf(text string, at int) int { return 1 + strings.Count(text[:at], "\n") }

// head is the beginning of a text, for an error.
func head(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > 24 {
		text = strings.ToValidUTF8(text[:24], "") + "..."
	}
	return text
}
