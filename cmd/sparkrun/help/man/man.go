// Package man decides how the guide's chapters and the commands' help become manual
// pages: both become Markdown, from which go-md2man makes roff. (cobra/doc would write
// the commands' pages, but leaves out what a flag takes.)
//
// It must not be linked into the program: packaging runs it, with the build tag man.
package man

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
)

// Pages are the manual pages of root, of all commands below it, and of the chapters, by file name.
func Pages(root *cobra.Command, version string, date time.Time) map[string][]byte {
	out := map[string][]byte{}
	add := func(name, section, markdown string) {
		header := fmt.Sprintf("%% %q %q %q %q %q\n",
			strings.ToUpper(name), section, date.Format(time.DateOnly), "sparkrun "+version, "sparkrun")
		page := md2man.Render([]byte(header + markdown))
		out[name+"."+section] = title.ReplaceAll(page, []byte("$0\n.nh\n.ad l")) // hyphenate no option or variable
	}
	for _, cmd := range Documented(root) {
		add(pageName(cmd), "1", command(cmd))
	}
	for _, t := range help.Topics() {
		add("sparkrun-"+t.Name, "7", chapter(t))
	}
	return out
}

// Documented are a command and all below it that are not hidden.
func Documented(cmd *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			out = append(out, Documented(c)...)
		}
	}
	return out
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func command(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# NAME\n%s \\- %s\n\n# SYNOPSIS\n",
		pageName(cmd), literal(strings.ToLower(cmd.Short[:1])+cmd.Short[1:]))
	path := cmd.CommandPath()
	usage := strings.TrimPrefix(cmd.UseLine(), path)
	if cmd.HasAvailableSubCommands() && !strings.Contains(cmd.Use, " ") {
		usage = " COMMAND [flags]"
	}
	fmt.Fprintf(&b, "**%s**%s\n\n# DESCRIPTION\n%s\n", path, literal(usage), prose(cmd.Long))
	var also []string
	if cmd.HasAvailableSubCommands() {
		b.WriteString("# COMMANDS\n")
	}
	if cmd.HasParent() {
		also = append(also, pageName(cmd.Parent())+"(1)")
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			fmt.Fprintf(&b, "**%s(1)**\n: %s\n\n", pageName(c), literal(c.Short))
			also = append(also, pageName(c)+"(1)")
		}
	}
	options(&b, "OPTIONS", cmd.NonInheritedFlags())
	options(&b, "OPTIONS OF COMMANDS ABOVE", cmd.InheritedFlags())
	fmt.Fprintf(&b, "# EXAMPLES\n```\n%s\n```\n\n# SEE ALSO\n", strings.Trim(cmd.Example, "\n"))
	for _, name := range help.Chapters(cmd) {
		also = append(also, "sparkrun-"+name+"(7)")
	}
	fmt.Fprintf(&b, "**%s**\n", strings.Join(also, "**, **"))
	return b.String()
}

func options(b *strings.Builder, heading string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, "# %s\n", heading)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(b, "**--%s**", f.Name)
		if f.Shorthand != "" {
			fmt.Fprintf(b, ", **-%s**", f.Shorthand)
		}
		if value != "" && f.NoOptDefVal != "true" {
			fmt.Fprintf(b, " *%s*", literal(value))
		}
		fmt.Fprintf(b, "\n: %s\n\n", literal(usage))
	})
}

var special = regexp.MustCompile("[\\\\`*_{}\\[\\]<>#|~]")

// literal escapes plain text for Markdown.
func literal(text string) string { return special.ReplaceAllString(text, `\$0`) }

// prose turns plain help text into Markdown: lines that are indented or have columns stay
// as they are, and a short line on its own that ends no sentence is a heading.
func prose(text string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		switch last := part[len(part)-1]; {
		case len(part) < 40 && !strings.ContainsAny(part, "\n ") || len(part) < 40 &&
			!strings.ContainsRune(".:;,!?\n", rune(last)) && !strings.Contains(part, "\n"):
			fmt.Fprintf(&b, "## %s\n\n", literal(part))
		case columns.MatchString(part):
			fmt.Fprintf(&b, "```\n%s\n```\n\n", part)
		default:
			fmt.Fprintf(&b, "%s\n\n", literal(part))
		}
	}
	return b.String()
}

var columns = regexp.MustCompile(`(?m)^\s{2,}\S|\S\s{2,}\S`)

var (
	title   = regexp.MustCompile(`(?m)^\.TH .*$`)
	heading = regexp.MustCompile(`(?m)^## `)
	link    = regexp.MustCompile(`\[([^\]]+)\]\([^)]+\)`)
)

// chapter is a topic as a manual page: its title becomes NAME, and tables stay as text.
func chapter(t help.Topic) string {
	_, body, _ := strings.Cut(t.Text, "\n")
	var b strings.Builder
	fenced, table := false, false
	for line := range strings.Lines(link.ReplaceAllString(body, "$1")) {
		fenced = fenced != strings.HasPrefix(line, "```")
		if row := !fenced && strings.HasPrefix(line, "|"); row != table {
			b.WriteString("```\n")
			if table = row; !row {
				b.WriteString("\n")
			}
		}
		if table {
			line = strings.ReplaceAll(strings.Trim(strings.ReplaceAll(line, "`", ""), "|\n"), " | ", "   ") + "\n"
			if strings.Trim(line, "-| \n") == "" {
				continue
			}
		}
		b.WriteString(line)
	}
	if table {
		b.WriteString("```\n")
	}
	lower := strings.ToLower(t.Title[:1]) + t.Title[1:]
	return fmt.Sprintf("# NAME\nsparkrun-%s \\- %s\n\n# DESCRIPTION\n%s", t.Name, literal(lower),
		heading.ReplaceAllString(b.String(), "# "))
}
