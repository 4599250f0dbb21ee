package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// asTyped rewrites a command line that is typed as users of other tools do: a server's flags beside the model,
// a command right behind the job of exec, -o json. A word with one dash that another tool knows is refused, since
// pflag would take it for several flags.
func asTyped(a *app.App, root *cobra.Command, args []string) (*cobra.Command, []string, error) {
	cmd, rest, unknown := root.Find(args)
	if unknown != nil || cmd == root || len(args) > 0 && strings.HasPrefix(args[0], "__") { // those are the shell's
		return root, args, nil //nolint:nilerr // the command line is as typed, and cobra says what is unknown
	}
	var err error
	cmd.InitDefaultHelpFlag()
	cmd.InheritedFlags() // cmd.Flags has those of its parents from now on
	e, serves := engine.Named(cmd.Name())
	switch {
	case serves && isLaunch(cmd):
		rest = serverFlags(cmd, e, rest)
	case isLaunch(cmd):
		if err := foreign(cmd, rest); err != nil {
			return cmd, nil, err
		}
	case cmd.CommandPath() == "sparkrun exec":
		rest = execCommand(cmd, rest)
	case cmd.Flags().Lookup("json") != nil && cmd.Flags().ShorthandLookup("o") == nil:
		if rest, err = format(a, cmd, rest); err != nil {
			return cmd, nil, err
		}
	}
	return cmd, append(strings.Fields(cmd.CommandPath())[1:], rest...), nil
}

// A word of a command line is one of these.
type wordKind int

const (
	aWord       wordKind = iota // no flag
	aFlag                       // of the command, with its value
	aStranger                   // a flag that the command does not have
	theEnd                      // --
	valueInNext = 2             // words of a flag whose value is the next one
)

// next tells what the first word is, and how many words it is with its value.
func next(fs *pflag.FlagSet, words []string) (kind wordKind, n int) {
	word := words[0]
	switch {
	case word == "--":
		return theEnd, 1
	case len(word) < 2 || word[0] != '-':
		return aWord, 1
	case strings.HasPrefix(word, "--"):
		name, _, holds := strings.Cut(word[2:], "=")
		f := fs.Lookup(name)
		switch {
		case f == nil:
			return aStranger, 1
		case holds || f.NoOptDefVal != "":
			return aFlag, 1
		}
		return aFlag, min(valueInNext, len(words))
	}
	for i := 1; i < len(word); i++ {
		f := fs.ShorthandLookup(word[i : i+1])
		switch {
		case f == nil:
			return aStranger, 1
		case f.NoOptDefVal != "":
		case i+1 < len(word):
			return aFlag, 1
		default:
			return aFlag, min(valueInNext, len(words))
		}
	}
	return aFlag, 1
}

// number is what -t gets in srun and torchrun, where it is no terminal.
var number = regexp.MustCompile(`^[0-9][0-9:-]*$`)

// foreign refuses the flags of other tools that the chapter habits has, all of them at once: a line that was pasted
// has several. pflag would take -hostfile for eight flags, and stop at the first that it does not know.
func foreign(cmd *cobra.Command, words []string) error {
	command := strings.TrimPrefix(cmd.CommandPath(), "sparkrun ")
	var said []string
	value := false // the word before was a stranger's, and this may be its value
	for len(words) > 0 {
		kind, n := next(cmd.Flags(), words)
		word := words[0]
		name, _, holds := strings.Cut(word, "=")
		timed := word == "-t" && len(words) > 1 && number.MatchString(words[1])
		if kind == theEnd || kind == aWord && !value {
			break
		}
		if kind == aStranger || timed || len(word) > 2 && word[0] == '-' && word[1] != '-' {
			known := help.HabitOfFlag(command, name, true)
			if known == "" && len(name) > 2 && name[1] != '-' { // -N2
				known = help.HabitOfFlag(command, name[:2], true)
			}
			switch {
			case known != "":
				said = append(said, name+": "+known)
			case kind == aStranger && len(said) == 0:
				return nil // pflag says that it does not know it
			}
		}
		value = kind == aStranger && !holds || timed
		words = words[n:]
	}
	if len(said) == 0 {
		return nil
	}
	return app.Usagef("%s has other flags: %s", cmd.CommandPath(), strings.Join(said, "; "))
}

// serverFlags puts what launch does not know, and what the engine's row calls otherwise, where it belongs: a
// server's flags come behind --. A flag that may be one of ours with a slip stays, to be refused.
func serverFlags(cmd *cobra.Command, e engine.Engine, words []string) []string {
	var ours, theirs []string
	model, last := false, false // last: the word before was a stranger, whose value this may be
	for len(words) > 0 {
		kind, n := next(cmd.Flags(), words)
		name, value, holds, isOurs := e.Ours(words)
		isOurs = isOurs && (name == "" || cmd.Flags().Lookup(name[2:]) != nil)
		if isOurs && !holds {
			n = valueInNext
		}
		said := e.Instead(words[0]) != "" || nearFlag(cmd, words[0]) != ""
		switch {
		case kind == theEnd:
			theirs, words = append(theirs, words[1:]...), nil
			continue
		case kind == aWord && last:
			theirs = append(theirs, words[0])
			last = false
		case kind == aWord && !model && e.Verb(words[0]):
		case kind == aWord:
			ours, model = append(ours, words[0]), true
		case kind == aStranger && isOurs && name == "":
			ours, model = append(ours, value), true
		case kind == aStranger && isOurs:
			ours = append(ours, name+"="+value)
		case kind == aStranger && model && !said:
			theirs = append(theirs, words[0])
			last = !strings.Contains(words[0], "=")
		default:
			ours = append(ours, words[:n]...)
		}
		if kind != aWord && kind != aStranger {
			last = false
		}
		words = words[n:]
	}
	if len(theirs) == 0 {
		return ours
	}
	return slices.Concat(ours, []string{"--"}, theirs)
}

// execCommand puts -- before the command: the second word that is no flag.
func execCommand(cmd *cobra.Command, words []string) []string {
	job := false
	for i := 0; i < len(words); {
		kind, n := next(cmd.Flags(), words[i:])
		switch {
		case kind == theEnd || kind == aStranger && !job:
			return words
		case job && (kind == aWord || kind == aStranger):
			return slices.Concat(words[:i], []string{"--"}, words[i:])
		case kind == aWord:
			job = true
		}
		i += n
	}
	return words
}

// format takes kubectl's -o json and -o yaml for --json, and -o wide for --wide, or for the table that there is.
func format(a *app.App, cmd *cobra.Command, words []string) ([]string, error) {
	var out []string
	for len(words) > 0 {
		kind, n := next(cmd.Flags(), words)
		word := words[0]
		glued, short := strings.CutPrefix(word, "-o")
		value, long := strings.CutPrefix(word, "--output=")
		switch {
		case kind == theEnd:
			return append(out, words...), nil
		case kind != aStranger, !short && !long && word != "--output":
			out, words = append(out, words[:n]...), words[n:]
			continue
		case short && glued != "":
			value = strings.TrimPrefix(glued, "=")
		case !long && len(words) > 1:
			value, n = words[1], valueInNext
		}
		switch {
		case value == "json", value == "yaml":
			out, a.YAML = append(out, "--json"), value == "yaml"
		case value == "wide" && cmd.Flags().Lookup("wide") != nil:
			out = append(out, "--wide")
		case value != "wide":
			return nil, app.Usagef("-o %s: want json, yaml or wide", value)
		}
		words = words[n:]
	}
	return out, nil
}
