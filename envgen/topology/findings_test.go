package topology

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
)

func codesOf(findings []envgen.Finding) []string {
	var codes []string
	for _, f := range findings {
		if !slices.Contains(codes, f.Code) {
			codes = append(codes, f.Code)
		}
	}
	slices.Sort(codes)
	return codes
}

// Every code has a cluster in which it occurs, made by a change to one in which it does not.
func TestFindings(t *testing.T) {
	files, err := filepath.Glob("testdata/findings/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	covered := map[string]bool{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		code, _, _ := strings.Cut(name, ".")
		covered[code] = true
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, base, ok := strings.Cut(string(text), "use ../")
			if !ok {
				t.Fatal("uses no other fixture: nothing shows that the finding is absent without the change")
			}
			base, _, _ = strings.Cut(base, "\n")
			without := derive(t, load(t, base).in).Findings
			if slices.Contains(codesOf(without), code) {
				t.Errorf("%s has %s before the change", base, code)
			}
			found := derive(t, load(t, filepath.Join("findings", name+".txt")).in).Findings
			if !slices.Contains(codesOf(found), code) {
				t.Errorf("got %v, want %s", codesOf(found), code)
			}
			var b strings.Builder
			writeFindings(&b, found)
			golden(t, filepath.Join("findings", name+".golden"), b.String())
		})
	}
	for _, code := range Codes() {
		if !covered[code] {
			t.Errorf("%s has no fixture in testdata/findings", code)
		}
	}
	for code := range covered {
		if !slices.Contains(Codes(), code) {
			t.Errorf("%s is not among Codes", code)
		}
	}
}

// What stands in a finding is for people and for scripts: none may lack its parts.
func TestFindingsAreWhole(t *testing.T) {
	files, _ := filepath.Glob("testdata/findings/*.txt")
	for _, file := range files {
		for _, f := range derive(t, load(t, filepath.Join("findings", filepath.Base(file))).in).Findings {
			if f.Text == "" || f.Evidence == "" || f.Remedy == "" || !slices.Contains(Codes(), f.Code) {
				t.Errorf("%s: %+v lacks something", file, f)
			}
			if strings.HasSuffix(f.Text, ".") || strings.Contains(f.Remedy, "\n") || strings.Contains(f.Text, "%!") || strings.Contains(f.Evidence, "%!") {
				t.Errorf("%s: %+v is ill formed", file, f)
			}
			if (f.Node == "") != (f.Host == "") || f.Node == "" && f.Port != "" {
				t.Errorf("%s: %+v does not say where", file, f)
			}
		}
	}
}

// Every code can be looked up.
func TestExplanations(t *testing.T) {
	var explained []string
	for _, e := range Explanations() {
		explained = append(explained, e.Code)
		if e.Text == "" || strings.HasSuffix(e.Text, ".") {
			t.Errorf("%s: %q", e.Code, e.Text)
		}
	}
	if !slices.Equal(explained, Codes()) {
		t.Errorf("explained %v\nbut codes are %v", explained, Codes())
	}
}
