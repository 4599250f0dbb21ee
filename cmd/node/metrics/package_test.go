package metrics

import (
	"encoding/json"
	"os"
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
