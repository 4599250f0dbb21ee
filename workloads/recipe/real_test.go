package recipe

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

var update = flag.Bool("update", false, "write the goldens anew")

// real are recipes of both projects, as they lie there. They are not ours to keep, so that they
// are beside the checkout.
const real = "../../../shared/recipes"

// TestRealRecipes plans each of them for so many machines. What comes of it is read by a person
// when the golden changes.
func TestRealRecipes(t *testing.T) {
	files, err := filepath.Glob(real + "/v?/*.yaml")
	if err != nil || len(files) == 0 {
		t.Skipf("no recipes in %s", real)
	}
	var b strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(file, real+"/")
		fmt.Fprintf(&b, "== %s\n", name)
		r, err := Read(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := r.Launch(Options{Name: "IT"}); err != nil {
			if !errors.Is(err, ErrUntrusted) {
				t.Errorf("%s: %v", name, err)
			}
			fmt.Fprintf(&b, "without --trust-recipe: %v\n", err)
		}
		own, err := r.Launch(Options{Name: "IT", Trusted: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b.WriteString(render(own))
		for _, n := range []int{1, 2, 3, 4, 8} {
			l, err := r.Launch(Options{Name: "IT", Trusted: true, Nodes: n})
			if err != nil {
				if !errors.Is(err, launcher.ErrInvalid) {
					t.Errorf("%s, %d nodes: %v wraps no ErrInvalid", name, n, err)
				}
				fmt.Fprintf(&b, "%d: %v\n", n, err)
				continue
			}
			fmt.Fprintf(&b, "%d: %s\n", n, spreadOf(l))
			for _, note := range l.Notes[min(len(own.Notes), len(l.Notes)):] {
				fmt.Fprintf(&b, "   %s\n", note)
			}
			if diff := cmp.Diff(own.Serve.Command, l.Serve.Command); diff != "" {
				t.Errorf("%s: with %d nodes another command:\n%s", name, n, diff)
			}
		}
		b.WriteString("\n")
	}
	golden(t, "testdata/plans.txt", b.String())
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (go test -update writes it anew):\n%s", file, diff)
	}
}

func spreadOf(l Launch) string {
	text := plural(l.Nodes, "machine")
	if s := sizes(l.Serve.TP, l.Serve.PP, l.Serve.DP); s != "" {
		text += ", " + s
	} else {
		text += ", sizes from machines and model"
	}
	if l.Serve.Backend != "" {
		text += ", " + l.Serve.Backend
	}
	return text
}

// render shows a launch; a flag and its values are a line.
func render(l Launch) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s in %s, %s, listens at %s:%d\n", l.Workload, l.Serve.Model, l.Image, spreadOf(l), l.Serve.Host, l.Serve.Port)
	for i, w := range l.Serve.Command {
		switch {
		case i == 0:
			b.WriteString("  $ ")
		case strings.HasPrefix(w, "-"):
			b.WriteString("\n      ")
		default:
			b.WriteString(" ")
		}
		fmt.Fprintf(&b, "%s", shown(w))
	}
	b.WriteString("\n")
	for _, e := range l.Serve.Env {
		fmt.Fprintf(&b, "  %s\n", e)
	}
	for _, a := range l.Args {
		fmt.Fprintf(&b, "  docker %s\n", a)
	}
	if l.ShmBytes > 0 {
		fmt.Fprintf(&b, "  shm %d\n", l.ShmBytes)
	}
	for _, u := range l.Ulimits {
		fmt.Fprintf(&b, "  ulimit %s\n", u)
	}
	for _, s := range l.Secrets {
		fmt.Fprintf(&b, "  secret %s\n", s)
	}
	for line := range strings.Lines(l.Setup) {
		fmt.Fprintf(&b, "  setup> %s\n", strings.TrimSuffix(line, "\n"))
	}
	for _, n := range l.Notes {
		fmt.Fprintf(&b, "  note: %s\n", n)
	}
	return b.String()
}

func shown(w string) string {
	if w == "" || strings.ContainsAny(w, " '\"{}\n") {
		return quote(w)
	}
	return w
}
