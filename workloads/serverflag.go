package workloads

import (
	"slices"
	"strings"
)

// serverFlag is one of a server's own, with all that it goes by. Python's argparse takes the
// beginning of a long name where it is enough, vLLM's an underscore for each dash.
type serverFlag struct {
	name string // as it is written here, such as --tensor-parallel-size
	// least is the shortest beginning of name that means no other flag; empty: all of it.
	least string
	other []string // further names
	bare  bool     // it has no value
}

// is tells whether a word is this flag, and gives the value that it may hold itself.
func (f serverFlag) is(word string) (value string, holds, is bool) {
	if f.name == "" || !strings.HasPrefix(word, "-") {
		return "", false, false
	}
	name, value, holds := strings.Cut(word, "=")
	if strings.HasPrefix(name, "--") {
		name = strings.ReplaceAll(name, "_", "-")
	}
	own := strings.ReplaceAll(f.name, "_", "-")
	is = name == own || slices.Contains(f.other, name) || f.least != "" && len(name) >= len(f.least) && strings.HasPrefix(own, name)
	return value, holds, is
}

// in gives the flag's value in words, of which the last counts.
func (f serverFlag) in(words []string) (value string, given bool) {
	for i, w := range words {
		v, holds, is := f.is(w)
		switch {
		case !is:
		case f.bare || holds:
			value, given = v, true
		case i+1 < len(words):
			value, given = words[i+1], true
		}
	}
	return value, given
}

// without leaves the flag and its value out.
func (f serverFlag) without(words []string) (rest []string, had bool) {
	for i := 0; i < len(words); i++ {
		_, holds, is := f.is(words[i])
		if !is {
			rest = append(rest, words[i])
			continue
		}
		if had = true; !f.bare && !holds {
			i++
		}
	}
	return rest, had
}
