package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

// Every mistake that can be seen in the trees of a cluster, planted in a sound one: the finding of the file's name is
// not there before, and there after. "-- base --" names the case of testdata/pipeline that it is planted in.
func TestPlantedMistakes(t *testing.T) {
	files, err := filepath.Glob("testdata/mistakes/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	planted := map[string]bool{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		code, _, _ := strings.Cut(name, ".")
		planted[code] = true
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, base, ok := strings.Cut(string(text), "-- base --\n")
			if !ok {
				t.Fatal("no base: nothing shows that the finding is absent without the mistake")
			}
			base, _, _ = strings.Cut(base, "\n")
			has := func(f envgen.Finding) bool { return f.Code == code }
			if slices.ContainsFunc(derived(t, filepath.Join("testdata/pipeline", base+".txtar")), has) {
				t.Errorf("%s has %s already", base, code)
			}
			found := derived(t, file)
			if !slices.ContainsFunc(found, has) {
				t.Errorf("no %s", code)
			}
			for _, f := range found {
				if f.Remedy == "" || f.Evidence == "" || f.Node != "" && f.Host == "" {
					t.Errorf("%+v lacks something", f)
				}
			}
			golden := strings.TrimSuffix(file, ".txtar") + ".golden"
			got := findingsText(found)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (write it with -update)", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, code := range topology.Codes() {
		if !planted[code] {
			t.Errorf("%s has no tree in testdata/mistakes", code)
		}
	}
}

func derived(t *testing.T, file string) []envgen.Finding {
	t.Helper()
	topo, err := topology.Derive(loadPipeline(t, file).in)
	if err != nil {
		t.Fatal(err)
	}
	return topo.Findings
}
