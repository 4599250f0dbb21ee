package recipe

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

type field int

const (
	dropped field = iota
	toTP
	toPP
	toDP
	toBackend
	toHost
	toPort
	theKey // a secret, which must not be in a command
)

// option is a flag that is taken out of a command.
type option struct {
	engine.Flag
	to field
}

// options are those of an engine that say where it listens or how it is spread.
func options(e engine.Engine) []option {
	out := []option{{e.TP, toTP}, {e.PP, toPP}, {e.DP, toDP}, {e.Host, toHost}, {e.Listen, toPort}}
	if e.Backends != nil {
		out = append(out, option{e.Backends.Flag, toBackend})
	}
	if e.Key.Flagged {
		out = append(out, option{engine.KeyFlag, theKey})
	}
	for _, f := range e.Spreads() {
		out = append(out, option{f, dropped})
	}
	return out
}

// serving are the engines that serve by recipes.
func serving() []engine.Engine {
	return slices.DeleteFunc(engine.All(), func(e engine.Engine) bool { return !byRecipe(e) })
}

func byRecipe(e engine.Engine) bool { return len(e.Recipes.Commands) > 0 }

// engineOf finds what a command starts; at is how many words that takes.
func engineOf(command []string) (e engine.Engine, at int, ok bool) {
	for _, e := range serving() {
		for _, c := range e.Recipes.Commands {
			if len(command) >= len(c) && path.Base(command[0]) == c[0] && slices.Equal(command[1:len(c)], c[1:]) {
				return e, len(c), true
			}
		}
	}
	return engine.Engine{}, 0, false
}

// runtimeOf finds the engine that version 2 calls by a name, and how it then spreads; empty: as it is.
func runtimeOf(name string) (e engine.Engine, backend string, known bool) {
	for _, e := range serving() {
		if backend, known := e.Recipes.Runtimes[name]; known {
			return e, backend, true
		}
	}
	return engine.Engine{}, "", false
}

// Workload is what a recipe is launched as, as far as it can be told without filling it in;
// empty: not known.
func (r Recipe) Workload() string {
	e, _, known := runtimeOf(r.Runtime)
	if known {
		return e.Name
	}
	if e, _, known = engineOf(strings.Fields(strings.ReplaceAll(r.Command, "\\\n", " "))); !known && r.Command == "" &&
		r.Runtime == "" {
		e = engine.Usual()
	}
	return e.Name
}

// asked is what was taken out of a command.
type asked struct {
	command []string
	serve   workloads.Serve
	key     bool     // a secret was among it
	left    []string // flags that were left out without a word of the request saying the same
}

// take reads flags out of the words of a command, whose first at words are the server's name. As
// for argparse the last of several counts, and a name's dashes may be underscores.
func take(e engine.Engine, words []string, at int) (asked, error) {
	all := options(e)
	out := asked{command: slices.Clone(words[:at])}
	for i := at; i < len(words); i++ {
		which := slices.IndexFunc(all, func(o option) bool { _, _, is := o.Is(words[i]); return is })
		if which < 0 {
			out.command = append(out.command, words[i])
			continue
		}
		f := all[which]
		name, value, joined := strings.Cut(words[i], "=")
		if f.to == dropped {
			out.left = append(out.left, name)
		}
		if f.Bare {
			continue
		}
		if !joined {
			if i++; i == len(words) {
				return out, invalid("command", "%s has no value", name)
			}
			value = words[i]
		}
		if err := out.set(e, f.to, name, value); err != nil {
			return out, err
		}
	}
	out.serve.Command, out.serve.Model = out.command, modelOf(e, out.command, at)
	return out, nil
}

func (a *asked) set(e engine.Engine, to field, name, value string) error {
	count := func(n *int, most int) error {
		i, err := strconv.Atoi(value)
		if err != nil || i < 1 || i > most {
			return invalid("command", "%s %s: want a number from 1 to %d", name, value, most)
		}
		*n = i
		return nil
	}
	switch to {
	case toTP:
		return count(&a.serve.TP, 1024)
	case toPP:
		return count(&a.serve.PP, 1024)
	case toDP:
		return count(&a.serve.DP, 1024)
	case toPort:
		return count(&a.serve.Port, 65535)
	case toHost:
		a.serve.Host = value
	case theKey:
		a.key = true
	case toBackend:
		backend, known := e.Backends.Values[value]
		if !known {
			return invalid("command", "%s %s: want ray or mp", name, value)
		}
		if backend != "" {
			a.serve.Backend = backend
		}
	}
	return nil
}

// modelOf is the model that a command names; empty: none.
func modelOf(e engine.Engine, command []string, at int) string {
	if model, given := e.Recipes.Model.In(command[at:]); given {
		return model
	}
	if e.Recipes.Positional && at < len(command) && !strings.HasPrefix(command[at], "-") {
		return command[at]
	}
	return ""
}
