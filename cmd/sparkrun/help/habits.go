package help

import (
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// habit is a row of the chapter habits, or a part of one: what something of another tool is here.
type habit struct{ tool, there, here string }

var codeSpan = plain.Pattern("`([^`]+)`")

// habits reads the chapter's tables. Where a row has as many commands or flags on its right as on its
// left, they belong together in their order; else all that is on the right answers each.
func habits() (out []habit) {
	text, err := files.ReadFile("habits.md")
	if err != nil {
		panic(err) // cannot happen: the folder is embedded
	}
	tool := ""
	for line := range strings.Lines(string(text)) {
		if heading, is := strings.CutPrefix(line, "## "); is {
			tool = strings.TrimSpace(heading)
		}
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) != 2 {
			continue
		}
		left, right := codeSpan().FindAllStringSubmatch(cells[0], -1), codeSpan().FindAllString(cells[1], -1)
		for i, there := range left {
			h := habit{tool, there[1], strings.TrimSpace(cells[1])}
			if len(right) == len(left) && len(left) > 1 {
				h.here = right[i]
			}
			out = append(out, h)
		}
	}
	return out
}

// HabitOfCommand says what a command of another tool is here; empty: the chapter does not know it. The
// tool's own name, such as kubectl, may be left out. group is the command of ours before these words, if any.
func HabitOfCommand(group, words []string) string {
	var best habit
	most := len(group)
	words = slices.Concat(group, words)
	for _, h := range habits() {
		there := strings.Fields(h.there)
		for _, from := range [][]string{there, there[1:]} {
			n := 0
			for n < min(len(from), len(words)) && from[n] == words[n] {
				n++
			}
			if n > most {
				best, most = h, n
			}
		}
	}
	if most == len(group) {
		return ""
	}
	return "for `" + best.there + "` there is " + best.here
}

// tools are those that a workload takes the place of: their meaning of a flag is meant there, and elsewhere last.
var tools = map[string]string{"mpirun": "launch mpi", "torchrun": "launch torchrun"}

// HabitOfFlag says what a flag of another tool, such as --rdzv-id or "--nproc-per-node gpu", is for a
// command; empty: the chapter does not know it. A row whose right is no command is about launch.
func HabitOfFlag(command, flag string, launches bool) string {
	var own, ofItsTool, ofOthers, within []string
	flag = strings.ReplaceAll(flag, "_", "-")
	is := func(word string) bool {
		name, _, _ := strings.Cut(word, "=")
		family, isFamily := strings.CutSuffix(name, "*")
		return name == flag || isFamily && strings.HasPrefix(flag, family)
	}
	for _, h := range habits() {
		line, isCommand := strings.CutPrefix(h.here, "`sparkrun ")
		about := strings.HasPrefix(line, command+" ") || launches && (!isCommand || strings.HasPrefix(line, "launch "))
		there := strings.Fields(h.there)
		switch {
		case !about:
		case h.there == flag || is(there[0]):
			said := "for `" + h.there + "` (" + h.tool + ") there is " + h.here
			switch workload, is := tools[h.tool]; {
			case workload == command:
				ofItsTool = append(ofItsTool, said)
			case is:
				ofOthers = append(ofOthers, said)
			default:
				own = append(own, said)
			}
		case slices.ContainsFunc(there, is):
			within = append(within, "for `"+h.there+"` there is "+h.here)
		}
	}
	switch {
	case len(ofItsTool) > 0:
		own = ofItsTool
	case len(own) == 0:
		own = ofOthers
	}
	if len(own) == 0 && len(within) > 0 {
		return within[0]
	}
	return strings.Join(own, ", ")
}
