package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manPage renders a command's help as a manual page, man(7), with what manual
// adds. The help is plain text, so it is not taken for Markdown: blank lines part
// paragraphs, and what is indented keeps its lines.
func manPage(cmd *cobra.Command, version, date string) []byte {
	cmd.InitDefaultHelpFlag()
	p := &page{}
	p.macro("TH", strings.ToUpper(pageName(cmd)), "1", date, "sparkrun "+version, "sparkrun")
	p.WriteString(".nh\n.ad l\n") // options and variables are not hyphenated, nor lines stretched
	p.macro("SH", "NAME")
	p.text(pageName(cmd) + ` \- ` + escaped(lowerFirst(cmd.Short)))
	p.macro("SH", "SYNOPSIS")
	p.macro("SY", cmd.CommandPath())
	args := escaped(strings.TrimSpace(strings.TrimPrefix(synopsis(cmd), cmd.CommandPath())))
	p.text(strings.ReplaceAll(args, "|", `|\:`)) // a long choice may be broken there
	p.macro("YS")
	p.macro("SH", "DESCRIPTION")
	p.prose(cmd.Long)
	if below := documented(cmd)[1:]; len(below) > 0 {
		p.macro("SH", "COMMANDS")
		for _, c := range below {
			if c.Parent() == cmd {
				p.item(bold(pageName(c))+"(1)", c.Short)
			}
		}
	}
	p.options("OPTIONS", cmd.NonInheritedFlags())
	p.options("OPTIONS OF EVERY "+strings.ToUpper(inheritedOf(cmd)), cmd.InheritedFlags())
	for _, s := range manual(cmd.CommandPath()) {
		p.macro("SH", s.title)
		p.prose(s.text)
	}
	p.macro("SH", "EXAMPLES")
	p.verbatim(strings.Split(strings.Trim(cmd.Example, "\n"), "\n"))
	p.macro("SH", "SEE ALSO")
	p.text(seeAlso(cmd))
	return p.Bytes()
}

// synopsis is how a command is typed.
func synopsis(cmd *cobra.Command) string {
	if !cmd.HasAvailableSubCommands() {
		return strings.ReplaceAll(cmd.UseLine(), "[flags]", "[OPTION]...")
	}
	if isLaunch(cmd) {
		return cmd.CommandPath() + " [OPTION]... WORKLOAD [OPTION]... -- PROGRAM [ARG]..."
	}
	return cmd.CommandPath() + " COMMAND [OPTION]..."
}

func seeAlso(cmd *cobra.Command) string {
	var names []string
	if cmd.HasParent() {
		names = append(names, pageName(cmd.Parent()))
		for _, c := range documented(cmd.Parent())[1:] {
			if c.Parent() == cmd.Parent() && c != cmd && cmd.Parent().HasParent() {
				names = append(names, pageName(c))
			}
		}
	}
	for _, name := range related[cmd.CommandPath()] {
		names = append(names, "sparkrun-"+name)
	}
	for _, c := range documented(cmd)[1:] {
		if c.Parent() == cmd && !slices.Contains(names, pageName(c)) {
			names = append(names, pageName(c))
		}
	}
	for i, name := range names {
		names[i] = bold(name) + "(1)"
	}
	return strings.Join(names, ", ")
}

// page is roff in the making.
type page struct{ bytes.Buffer }

func (p *page) macro(name string, args ...string) {
	p.WriteString("." + name)
	for _, a := range args {
		fmt.Fprintf(p, ` "%s"`, strings.ReplaceAll(escaped(a), `"`, `\(dq`))
	}
	p.WriteByte('\n')
}

// text writes what is roff already.
func (p *page) text(roff string) {
	if strings.HasPrefix(roff, ".") || strings.HasPrefix(roff, "'") {
		roff = `\&` + roff
	}
	p.WriteString(roff + "\n")
}

func (p *page) item(term, text string) {
	p.macro("TP")
	p.text(term)
	p.text(escaped(text))
}

// prose writes plain text. A line with a tab is a term and what it means; a
// short one that stands alone and ends no sentence is a heading.
func (p *page) prose(text string) {
	for part := range strings.SplitSeq(text, "\n\n") {
		if isHeading(part) {
			p.macro("SS", part)
		} else {
			p.paragraph(part)
		}
	}
}

func isHeading(text string) bool {
	return len(text) < 40 && !strings.ContainsAny(text, "\n\t") && text != "" && !strings.HasPrefix(text, " ") && !strings.ContainsRune(".:;,!?", rune(text[len(text)-1]))
}

func (p *page) paragraph(text string) {
	first := true
	var kept []string
	flush := func() {
		if len(kept) > 0 {
			p.verbatim(kept)
			kept = nil
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		term, means, isItem := strings.Cut(line, "\t")
		switch {
		case strings.HasPrefix(line, "  "):
			kept = append(kept, line)
		case line == "":
			flush()
			first = true
		case isItem:
			flush()
			p.item(bold(term), means)
			first = false
		default:
			flush()
			if first {
				p.macro("PP")
			}
			first = false
			p.text(escaped(line))
		}
	}
	flush()
}

// verbatim keeps lines as they are, an indent of two off.
func (p *page) verbatim(lines []string) {
	p.macro("PP")
	p.macro("RS", "4")
	p.macro("EX")
	for _, line := range lines {
		p.text(escaped(strings.TrimPrefix(line, "  ")))
	}
	p.macro("EE")
	p.macro("RE")
}

func (p *page) options(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	p.macro("SH", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		switch {
		case value == "strings" || value == "stringArray":
			value = "value"
		case f.NoOptDefVal != "" && f.Value.Type() == "bool":
			value = ""
		}
		term := bold("--" + f.Name)
		if f.Shorthand != "" {
			term = bold("-"+f.Shorthand) + ", " + term
		}
		if value != "" {
			term += ` \fI` + escaped(value) + `\fP`
		}
		if !slices.Contains([]string{"", "0", "0s", "false", "[]", "<nil>"}, f.DefValue) && !strings.Contains(usage, "(default") {
			usage += " (default: " + f.DefValue + ")"
		}
		p.item(term, usage)
	})
}

func bold(s string) string { return `\fB` + escaped(s) + `\fP` }

// escaped has every character come out as itself: an unescaped - may become a
// hyphen, which no shell takes for an option's.
func escaped(s string) string {
	return strings.NewReplacer(`\`, `\(rs`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`, `…`, `...`).Replace(s)
}

func lowerFirst(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToLower(r)) + s[size:]
}
