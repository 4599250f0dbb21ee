package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func pages(t *testing.T, environ ...string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	a := &app{version: "1.2.3", environ: environ}
	if err := a.man(t.Context(), manOptions{dir}); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(f.Name(), ".1")] = string(b)
	}
	return out
}

// Every command has a page with all that its help says; scripts/release_test has
// man(1) render them.
func TestManPages(t *testing.T) {
	got := pages(t, "SOURCE_DATE_EPOCH=1767225600")
	macro := regexp.MustCompile(`(?m)^\.(TH|SH|SS|SY|YS|PP|TP|RS|RE|EX|EE|nh$|ad l$)`)
	var want []string
	for _, cmd := range documented(newRootCmd(&app{})) {
		name := pageName(cmd)
		want = append(want, name)
		page := got[name]
		if !strings.HasPrefix(page, `.TH "`+strings.ToUpper(strings.ReplaceAll(name, "-", `\-`))+`" "1" "2026\-01\-01" "sparkrun 1.2.3" "sparkrun"`+"\n") {
			t.Errorf("%s begins with %.80q", name, page)
		}
		at := 0
		for _, s := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"} {
			i := strings.Index(page, ".SH \""+s+"\"\n")
			if i < at {
				t.Errorf("%s has no section %s, or not in its place", name, s)
			}
			at = i
		}
		for _, flags := range []*pflag.FlagSet{cmd.NonInheritedFlags(), cmd.InheritedFlags()} {
			flags.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden && !strings.Contains(page, bold("--"+f.Name)) {
					t.Errorf("%s says nothing of --%s", name, f.Name)
				}
			})
		}
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, ".") && !macro.MatchString(line) || strings.HasPrefix(line, "'") {
				t.Errorf("%s: text taken for a macro: %q", name, line)
			}
		}
	}
	slices.Sort(want)
	var names []string
	for name := range got {
		names = append(names, name)
	}
	slices.Sort(names)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	// What the tables say of a command that is not there would be lost.
	for path := range related {
		if !slices.Contains(names, strings.ReplaceAll(path, " ", "-")) {
			t.Errorf("related: no command %q", path)
		}
		for _, name := range related[path] {
			if !slices.Contains(names, "sparkrun-"+name) {
				t.Errorf("related: %s names %q, which is no command", path, name)
			}
		}
	}
	for path := range exitStatuses {
		if !slices.Contains(names, strings.ReplaceAll(path, " ", "-")) {
			t.Errorf("exitStatuses: no command %q", path)
		}
	}
}

func TestManProse(t *testing.T) {
	p := &page{}
	p.prose(`Two lines of
.one paragraph, with a \ and a 'quote'.

A list:
  a-b  "kept"
    as it is
NAME	what it means

The end.
`)
	want := `.PP
Two lines of
\&.one paragraph, with a \(rs and a \(aqquote\(aq.
.PP
A list:
.PP
.RS "4"
.EX
a\-b  "kept"
  as it is
.EE
.RE
.TP
\fBNAME\fP
what it means
.PP
The end.
`
	if diff := cmp.Diff(want, p.String()); diff != "" {
		t.Error(diff)
	}
}

func TestManDate(t *testing.T) {
	a := &app{environ: []string{"SOURCE_DATE_EPOCH=yesterday"}}
	if err := a.man(t.Context(), manOptions{t.TempDir()}); err == nil || !strings.Contains(err.Error(), `"yesterday"`) {
		t.Errorf("a date that is none: %v", err)
	}
}
