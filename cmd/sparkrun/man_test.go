package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help/man"
)

// Every command and chapter has a page with all that its help says; scripts/release_test has man(1) render them.
func TestManPages(t *testing.T) {
	root := newRootCmd(&app.App{})
	pages := man.Pages(root, "1.2.3", time.Unix(1767225600, 0).UTC())
	sections := func(name string, want ...string) string {
		page := string(pages[name])
		if !strings.Contains(page, `"2026-01-01" "sparkrun 1.2.3"`) {
			t.Errorf("%s begins with %.200q", name, page)
		}
		at := 0
		for _, s := range want {
			i := strings.Index(page, ".SH "+s+"\n")
			if i < at {
				t.Errorf("%s has no section %s, or not in its place", name, s)
			}
			at = i
		}
		return strings.ReplaceAll(page, `\-`, "-")
	}
	var names []string
	for _, cmd := range man.Documented(root) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		names = append(names, name)
		page := sections(name, "NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "SEE ALSO")
		for _, flags := range []*pflag.FlagSet{cmd.NonInheritedFlags(), cmd.InheritedFlags()} {
			flags.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden && !strings.Contains(page, `\fB--`+f.Name+`\fP`) {
					t.Errorf("%s says nothing of --%s", name, f.Name)
				}
			})
		}
	}
	for _, topic := range help.Topics() {
		name := "sparkrun-" + topic.Name + ".7"
		names = append(names, name)
		page := sections(name, "NAME", "DESCRIPTION")
		for _, h := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(topic.Text, -1) {
			if !strings.Contains(page, ".SH "+h[1]+"\n") {
				t.Errorf("%s has no section %q", name, h[1])
			}
		}
	}
	for name := range pages {
		if !slices.Contains(names, name) {
			t.Errorf("%s is of no command and no chapter", name)
		}
	}
}
