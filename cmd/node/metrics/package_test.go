package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the package's alerts and dashboard ask for is told by members under that name, and none takes what an engine says
// for a member's word.
func TestPackagedFilesAskForWhatThereIs(t *testing.T) {
	page, err := os.ReadFile("testdata/page.txt")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)[{ ]`).FindAllStringSubmatch(string(page), -1) {
		told[m[1]] = true
	}
	for _, file := range []string{"alerts.yml", "dashboard.json"} {
		b, err := os.ReadFile("../../../scripts/package/monitoring/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".json") && !json.Valid(b) {
			t.Errorf("%s is no JSON", file)
		}
		text := strings.ReplaceAll(string(b), `\"`, `"`)
		found := regexp.MustCompile(`(sparkrun_\w+)(\{?)([^}]*)`).FindAllStringSubmatch(text, -1)
		asked := 0
		for _, m := range found {
			if m[2] == "" { // a label
				continue
			}
			asked++
			if !told[m[1]] {
				t.Errorf("%s asks for %s, which nobody tells", file, m[1])
			}
			if !strings.Contains(m[3], `sparkrun_job=""`) {
				t.Errorf("%s takes %s from engines, too: %s", file, m[1], m[0])
			}
		}
		if asked < 8 {
			t.Errorf("%s asks for %d metrics", file, asked)
		}
	}
}

// Prometheus' own tool reads the rules, and each expression of the dashboard as if it were one.
func TestPackagedExpressionsParse(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Fatal("promtool is missing: ./scripts/test --install")
	}
	b, err := os.ReadFile("../../../scripts/package/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &dashboard); err != nil {
		t.Fatal(err)
	}
	rules, seen := "groups:\n- name: dashboard\n  rules:\n", map[string]bool{}
	for _, p := range dashboard.Panels {
		for _, at := range []string{fmt.Sprint("id ", p.ID), fmt.Sprint("place ", p.GridPos)} {
			if seen[at] {
				t.Errorf("%s: two panels have %s", p.Title, at)
			}
			seen[at] = true
		}
		for i, target := range p.Targets {
			expr, _ := json.Marshal(strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
			rules += fmt.Sprintf("  - {record: \"panel_%d_%d\", expr: %s}\n", p.ID, i, expr)
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{file, "../../../scripts/package/monitoring/alerts.yml"} {
		if out, err := exec.Command("promtool", "check", "rules", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}
