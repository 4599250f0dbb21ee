// Package help decides how the program explains itself: which part of a command's help
// fits a screen, and what the chapters of the guide are.
//
// It must not know a command: it is given the tree of commands, whose annotations say
// which flags are common.
package help

import (
	"embed"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

//go:embed *.md
var files embed.FS

// Topic is a chapter of the guide: what `sparkrun help NAME` shows, and the page sparkrun-NAME(7).
type Topic struct {
	Name, Title string
	Text        string // Markdown with aligned tables, readable on a terminal as it is
}

// Topics are all chapters, by name.
func Topics() []Topic {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // cannot happen: the folder is embedded
	}
	var out []Topic
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			panic(err)
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		out = append(out, Topic{strings.TrimSuffix(e.Name(), ".md"), title, align(string(text))})
	}
	return out
}

// chapters lists the chapters that go with a command's help; a group's chapters also go
// with its subcommands.
var chapters = map[string][]string{
	"sparkrun":                  {"install", "jobs", "habits", "troubleshooting"},
	"sparkrun launch":           {"jobs", "containers", "security"},
	"sparkrun launch exec":      {"jobs", "serving", "containers"},
	"sparkrun launch torchrun":  {"training", "jobs", "containers"},
	"sparkrun launch mpi":       {"mpi", "jobs"},
	"sparkrun launch ray":       {"ray", "jobs"},
	"sparkrun launch nccl-test": {"nccl"},
	"sparkrun launch ib-test":   {"nccl"},
	"sparkrun nccl-test":        {"nccl"},
	"sparkrun run":              {"recipes", "serving"},
	"sparkrun recipe":           {"recipes"},
	"sparkrun model":            {"models", "serving"},
	"sparkrun attach":           {"jobs"},
	"sparkrun exec":             {"jobs"},
	"sparkrun logs":             {"jobs"},
	"sparkrun ps":               {"jobs"},
	"sparkrun stop":             {"jobs"},
	"sparkrun service":          {"serving"},
	"sparkrun gateway":          {"serving"},
	"sparkrun notify":           {"operations"},
	"sparkrun bench":            {"bench"},
	"sparkrun env":              {"fabric", "nccl"},
	"sparkrun fabric":           {"fabric"},
	"sparkrun netplan":          {"netplan"},
	"sparkrun doctor":           {"troubleshooting", "fabric"},
	"sparkrun report":           {"troubleshooting"},
	"sparkrun up":               {"install"},
	"sparkrun down":             {"install"},
	"sparkrun init":             {"install"},
	"sparkrun join":             {"install"},
	"sparkrun token":            {"install", "security"},
	"sparkrun login":            {"install"},
	"sparkrun logout":           {"install"},
	"sparkrun context":          {"install"},
	"sparkrun client":           {"security"},
	"sparkrun agent":            {"operations", "security"},
	"sparkrun leave":            {"operations"},
	"sparkrun node":             {"operations"},
	"sparkrun status":           {"operations", "troubleshooting"},
	"sparkrun version":          {"operations"},
	"sparkrun mark-dead":        {"operations", "pairs"},
	"sparkrun takeover":         {"pairs"},
	"sparkrun raft":             {"backup"},
}

// OwnChapters is the annotation of a command that lists its chapters itself, separated by
// blanks.
const OwnChapters = "chapters"

// Chapters lists the chapters that go with a command's help.
func Chapters(cmd *cobra.Command) []string {
	for c := cmd; c.HasParent() || c == cmd; c = c.Parent() {
		if own := c.Annotations[OwnChapters]; own != "" {
			return strings.Fields(own)
		}
		if names, ok := chapters[c.CommandPath()]; ok {
			return names
		}
	}
	return nil
}

// Near gives the words that may have been meant, best first, by cobra's rules for
// suggestions.
func Near(words []string, typed string) []string {
	all := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, w := range words {
		all.AddCommand(&cobra.Command{Use: w, Run: func(*cobra.Command, []string) {}})
	}
	out := all.SuggestionsFor(typed)
	slices.Sort(out)
	return slices.Compact(out)
}
