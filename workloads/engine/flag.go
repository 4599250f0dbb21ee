package engine

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/workloads"
)

// Flag is one of a server's own, with all that it goes by. Python's argparse takes the
// beginning of a long name where it is enough, vLLM's an underscore for each dash.
type Flag struct {
	Name string // as it is written here, such as --tensor-parallel-size
	// Least is the shortest beginning of Name that means no other flag; empty: all of it.
	Least string
	Other []string // further names
	Bare  bool     // it has no value
	ours  string   // of what is decided here: our flag that says it; empty: none does
}

// Is tells whether a word is this flag, and gives the value that it may hold itself.
func (f Flag) Is(word string) (value string, holds, is bool) {
	if f.Name == "" || !strings.HasPrefix(word, "-") {
		return "", false, false
	}
	name, value, holds := strings.Cut(word, "=")
	if strings.HasPrefix(name, "--") {
		name = strings.ReplaceAll(name, "_", "-")
	}
	own := strings.ReplaceAll(f.Name, "_", "-")
	is = name == own || slices.Contains(f.Other, name) ||
		f.Least != "" && len(name) >= len(f.Least) && strings.HasPrefix(own, name)
	return value, holds, is
}

// In gives the flag's value in words, of which the last counts.
func (f Flag) In(words []string) (value string, given bool) {
	for i, w := range words {
		v, holds, is := f.Is(w)
		switch {
		case !is:
		case f.Bare || holds:
			value, given = v, true
		case i+1 < len(words):
			value, given = words[i+1], true
		}
	}
	return value, given
}

// Stands tells whether the flag is in words, with a value or without.
func (f Flag) Stands(words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { _, _, is := f.Is(w); return is })
}

// remedy says what is done in place of a flag that is decided here.
func (f Flag) remedy() string {
	switch f.ours {
	case "":
		return "each machine gets its own value: leave it out"
	case "--nodes":
		return "--nodes N (or --on HOST,HOST) says how many machines there are: leave it out"
	case "--on":
		return "--on HOST,HOST says which machines these are, and in which order: leave it out"
	}
	return f.ours
}

// Instead says what launch has in place of a server's flag; empty: nothing, so that it comes behind --.
func (e Engine) Instead(word string) string {
	for _, no := range e.secrets() {
		if _, _, is := no.flag.Is(word); is {
			return no.remedy
		}
	}
	for _, f := range e.decided {
		if _, _, is := f.Is(word); is {
			return f.remedy()
		}
	}
	for _, f := range []struct {
		flag Flag
		ours string
	}{
		{e.TP, "--tp N says it"}, {e.PP, "--pp N says it"}, {e.DP, "--dp N says it"},
		{e.Recipes.Model, "the model comes without a flag: sparkrun launch " + e.Name + " MODEL"},
	} {
		if _, _, is := f.flag.Is(word); is {
			return f.ours
		}
	}
	return ""
}

// Ours tells what launch calls the server's flag that words begin with; the model has no name. It gives the value
// that the first word holds, or else the second one.
func (e Engine) Ours(words []string) (name, value string, holds, is bool) {
	for _, f := range []struct {
		flag Flag
		name string
	}{{e.TP, "--tp"}, {e.PP, "--pp"}, {e.DP, "--dp"}, {e.Recipes.Model, ""}} {
		value, holds, is := f.flag.Is(words[0])
		switch {
		case !is:
		case holds:
			return f.name, value, true, true
		case len(words) > 1:
			return f.name, words[1], false, true
		}
	}
	return "", "", false, false
}

// Verb tells whether a word is what the server's own command line has before the model, as in vllm serve.
func (e Engine) Verb(word string) bool {
	return slices.ContainsFunc(e.Recipes.Commands, func(c []string) bool { return slices.Contains(c[1:], word) })
}

// without leaves the flag and its value out.
func (f Flag) without(words []string) (rest []string) {
	for i := 0; i < len(words); i++ {
		_, holds, is := f.Is(words[i])
		if !is {
			rest = append(rest, words[i])
			continue
		}
		if !f.Bare && !holds {
			i++
		}
	}
	return rest
}

// ArgsSay is what a server's arguments say of how it is spread and where it listens: TP, PP, DP,
// Host, Port and Backend, 0 or empty where they say nothing. A number that is none is 1: that it
// is none is said once the request is made.
func (e Engine) ArgsSay(args []string) (out workloads.Serve) {
	for _, f := range []struct {
		flag Flag
		to   *int
	}{{e.TP, &out.TP}, {e.PP, &out.PP}, {e.DP, &out.DP}, {e.Listen, &out.Port}} {
		if text, given := f.flag.In(args); given {
			n, _ := strconv.Atoi(text)
			*f.to = max(n, 1)
		}
	}
	out.Host, _ = e.Host.In(args)
	if e.Backends == nil {
		return out
	}
	if said, given := e.Backends.Flag.In(args); given {
		if out.Backend = workloads.BackendNative; said == workloads.BackendRay {
			out.Backend = workloads.BackendRay
		}
	}
	return out
}
