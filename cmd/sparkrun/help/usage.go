package help

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Screen is the most lines that --help prints; --help=all has no bound.
const Screen = 45

const (
	groupKey  = "sparkrun/group"  // of a flag: the heading under which --help=all has it
	commonKey = "sparkrun/common" // of a flag in a group: --help shows it too
)

// Group puts flags of fs under a heading of --help=all; --help leaves out those that are
// not Common.
func Group(fs *pflag.FlagSet, heading string, flags ...string) {
	for _, name := range flags {
		annotate(fs, name, groupKey, heading)
	}
}

// Common has --help show these flags although they are in a group.
func Common(fs *pflag.FlagSet, flags ...string) {
	for _, name := range flags {
		annotate(fs, name, commonKey, "")
	}
}

func annotate(fs *pflag.FlagSet, name, key, value string) {
	if err := fs.SetAnnotation(name, key, []string{value}); err != nil {
		panic(err) // no such flag
	}
}

// Nouns are the headings under which a root lists its commands, the most used ones first.
type Nouns []struct {
	Title    string
	Commands []*cobra.Command
}

// modeFlag is --help: alone it is cobra's; "all" asks for everything.
type modeFlag struct{ asked, all bool }

func (m *modeFlag) Type() string { return "bool" } // cobra requires that

func (m *modeFlag) String() string { return fmt.Sprint(m != nil && m.asked) }

func (m *modeFlag) Set(text string) error {
	switch text {
	case "true", "all":
		m.asked, m.all = true, text == "all"
	case "false":
		m.asked, m.all = false, false
	default:
		return fmt.Errorf("want --help, or --help=all")
	}
	return nil
}

// Install gives root its commands, all of them their help, and the command `help`.
func Install(root *cobra.Command, nouns Nouns, o Output) {
	root.Annotations = map[string]string{}
	for _, n := range nouns {
		root.AddGroup(&cobra.Group{ID: n.Title, Title: n.Title})
		var names []string
		for _, cmd := range n.Commands {
			cmd.GroupID = n.Title
			names = append(names, cmd.Name())
		}
		root.AddCommand(n.Commands...)
		root.Annotations[groupKey+n.Title] = strings.Join(names, " ")
	}
	root.PersistentFlags().VarPF(&modeFlag{}, "help", "h", "show this; --help=all: all flags, "+
		"and the whole text").NoOptDefVal = "true"
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		mode, _ := cmd.Flag("help").Value.(*modeFlag)
		cmd.Print(Of(cmd, mode != nil && mode.all))
	})
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		cmd.Print(Of(cmd, false))
		return nil
	})
	command := newCommand(o)
	root.SetHelpCommand(command)
	root.AddCommand(command)
}

// Of is a command's help: as much as fits a Screen, or all.
func Of(cmd *cobra.Command, all bool) string {
	text := render(cmd, true)
	if all || strings.Count(text, "\n") <= Screen {
		return text
	}
	return render(cmd, false)
}

func render(cmd *cobra.Command, all bool) string {
	var b strings.Builder
	long := strings.TrimSpace(cmd.Long)
	if !all {
		long, _, _ = strings.Cut(long, "\n\n")
	}
	fmt.Fprintf(&b, "%s\n\nUsage:\n  %s\n", long, usageLine(cmd))
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", strings.Trim(cmd.Example, "\n"))
	}
	commands(&b, cmd, all)
	hidden := flags(&b, cmd, all)
	b.WriteString("\n")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "More of a command: %s COMMAND --help\n", cmd.CommandPath())
	}
	if !cmd.HasParent() {
		b.WriteString("Completion for your shell: sparkrun completion bash|zsh|fish --help\n")
	}
	if !all {
		fmt.Fprintf(&b, "More of this one: --help=all%s\n", hidden)
	}
	if names := Chapters(cmd); len(names) > 0 {
		fmt.Fprintf(&b, "Read more: sparkrun help %s\n", strings.Join(names, "|"))
	}
	return b.String()
}

func usageLine(cmd *cobra.Command) string {
	if cmd.HasAvailableSubCommands() && !strings.Contains(cmd.Use, " ") {
		return cmd.CommandPath() + " COMMAND [flags]"
	}
	return cmd.UseLine()
}

// commands lists the commands below cmd, one per line; in groups where there is little
// room, one group per line.
func commands(b *strings.Builder, cmd *cobra.Command, all bool) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	b.WriteString("\nCommands:\n")
	if len(cmd.Groups()) == 0 {
		list(b, cmd, "", "  ")
		return
	}
	for _, g := range cmd.Groups() {
		if all {
			fmt.Fprintf(b, "  %s\n", g.Title)
			list(b, cmd, g.ID, "    ")
			continue
		}
		fmt.Fprintf(b, "  %-9s %s\n", g.Title, cmd.Annotations[groupKey+g.ID])
	}
	topics(b, all)
}

func list(b *strings.Builder, cmd *cobra.Command, group, indent string) {
	for _, c := range cmd.Commands() {
		if c.GroupID == group && c.IsAvailableCommand() {
			fmt.Fprintf(b, "%s%-*s %s\n", indent, cmd.Commands()[0].NamePadding(), c.Name(), c.Short)
		}
	}
}

// topics lists the chapters: by name, or with their titles.
func topics(b *strings.Builder, titles bool) {
	b.WriteString("\nChapters of the guide: sparkrun help CHAPTER\n")
	line := " "
	for _, t := range Topics() {
		if titles {
			fmt.Fprintf(b, "    %-16s %s\n", t.Name, t.Title)
			continue
		}
		if len(line)+len(t.Name) > 78 {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + t.Name
	}
	if !titles {
		b.WriteString(line + "\n")
	}
}

// flags lists a command's flags; where it leaves some out, it returns a note saying how
// many.
func flags(b *strings.Builder, cmd *cobra.Command, all bool) string {
	own, shared := pflag.NewFlagSet("", 0), pflag.NewFlagSet("", 0)
	groups := map[string]*pflag.FlagSet{}
	var headings []string
	left := 0
	add := func(f *pflag.Flag, ungrouped *pflag.FlagSet) {
		group, isCommon := f.Annotations[groupKey], f.Annotations[commonKey] != nil
		switch {
		case f.Hidden:
		case len(group) == 0 && ungrouped != nil:
			ungrouped.AddFlag(f)
		case !all && isCommon:
			shared.AddFlag(f)
		case !all:
			left++
		case len(group) > 0:
			if groups[group[0]] == nil {
				groups[group[0]] = pflag.NewFlagSet("", 0)
				headings = append(headings, group[0])
			}
			groups[group[0]].AddFlag(f)
		}
	}
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { add(f, own) })
	every := shared
	if !all && cmd.HasParent() {
		every = nil // the root's help has --context and --help
	}
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { add(f, every) })
	write := func(heading string, fs *pflag.FlagSet) {
		if fs.HasAvailableFlags() {
			fmt.Fprintf(b, "\n%s:\n%s", heading, fs.FlagUsages())
		}
	}
	write("Flags", own)
	slices.Sort(headings)
	for _, h := range headings {
		write(h, groups[h])
	}
	switch {
	case all:
		write("Flags of every command", shared)
	case own.HasAvailableFlags():
		write("Common flags", shared)
	default:
		write("Flags", shared)
	}
	if left == 0 {
		return ""
	}
	return fmt.Sprintf(", with %d more flags", left)
}
